// What the reader chose, kept in the address (#filter=gpu:mi355x,b200;tp:8&text=…&sort=-error&run=…): a link shows the same.
const $ = id => document.getElementById(id);
const NAMES = Object.keys(DATA.predictors);
const START = {predictor: NAMES[0], fit: DATA.fits.includes('heldout') ? 'heldout' : DATA.fits[0], filters: {}, text: '', sort: '-error',
  parts: 'model', groups: 'large', run: ''};
const CHOICES = {predictor: NAMES, fit: DATA.fits, parts: ['model', 'gpu', 'framework', 'rows'], groups: ['large', 'worst', 'all']};
let state = {...START};

function fromAddress() {
  const asked = new URLSearchParams(location.hash.slice(1)), made = {...START, filters: {}};
  for (const [key, allowed] of Object.entries(CHOICES)) if (allowed.includes(asked.get(key))) made[key] = asked.get(key);
  made.text = asked.get('text') || '';
  made.run = asked.get('run') || '';
  const sort = asked.get('sort') || '';
  if (COLUMNS.some(c => c.key === sort.replace(/^-/, ''))) made.sort = sort;
  for (const part of (asked.get('filter') || '').split(';')) {
    const [key, values] = [part.slice(0, part.indexOf(':')), part.slice(part.indexOf(':') + 1)];
    if (key in FACETS && values) made.filters[key] = new Set(values.split(',').map(decodeURIComponent));
    else if (key === 'predictor' && NAMES.includes(values)) made.predictor = values;
  }
  return made;
}

function toAddress() {
  const asked = [], filter = Object.entries(state.filters).map(([k, v]) => k + ':' + [...v].map(encodeURIComponent).join(',')).join(';');
  if (filter) asked.push('filter=' + encodeURIComponent(filter).replace(/%3A/g, ':').replace(/%2C/g, ',').replace(/%3B/g, ';'));
  for (const key of [...Object.keys(CHOICES), 'text', 'sort', 'run'])
    if (state[key] !== START[key]) asked.push(key + '=' + encodeURIComponent(state[key]));
  history.replaceState(null, '', asked.length ? '#' + asked.join('&') : location.pathname + location.search);
}

function toggle(key, value) {
  const chosen = new Set(state.filters[key] || []);
  if (!chosen.delete(value)) chosen.add(value);
  state.filters = {...state.filters, [key]: chosen};
  if (!chosen.size) delete state.filters[key];
  update();
}

function controls() {
  for (const key of ['predictor', 'fit']) {
    $(key).innerHTML = CHOICES[key].map(v => `<option>${escaped(v)}</option>`).join('');
  }
  for (const key of Object.keys(CHOICES)) $(key)?.addEventListener('change', e => { state[key] = e.target.value; update(); });
  let waiting = 0;
  $('text').addEventListener('input', e => { clearTimeout(waiting); waiting = setTimeout(() => { state.text = e.target.value.trim(); update(); }, 150); });
  $('reset').addEventListener('click', () => { state = {...state, filters: {}, text: ''}; update(); });
  $('facets').innerHTML = ['gpu', 'framework', 'family', 'model', 'precision', 'status'].map(k => `<details class="facet" data-key="${k}"><summary>${FACETS[k]}</summary><div></div></details>`).join('');
  $('facets').addEventListener('change', e => toggle(e.target.closest('.facet').dataset.key, e.target.value));
  document.addEventListener('click', e => document.querySelectorAll('.facet[open]').forEach(d => { if (!d.contains(e.target)) d.open = false; }));
  document.addEventListener('keydown', e => { if (e.key === 'Escape') document.querySelectorAll('.facet[open]').forEach(d => { d.open = false; }); });
  $('chips').addEventListener('click', e => { const b = e.target.closest('button'); if (b) toggle(b.dataset.key, b.dataset.value); });
  $('refusals').addEventListener('click', e => { const b = e.target.closest('button'); if (b) { state.text = b.dataset.text; state.filters = {...state.filters, status: new Set(['refused'])}; update(); $('explore').scrollIntoView(); } });
}

function drawFacets(all) {
  const needles = state.text;
  for (const facet of document.querySelectorAll('.facet')) {
    const key = facet.dataset.key, others = {...state.filters};
    delete others[key];
    const counts = [...grouped(select(all, others, needles), key)].map(([v, m]) => [v, m.length]).sort((a, b) => b[1] - a[1]), chosen = state.filters[key] || new Set();
    for (const v of chosen) if (!counts.some(c => c[0] === v)) counts.push([v, 0]);
    facet.querySelector('div').innerHTML = counts.map(([v, n]) => `<label><input type="checkbox" value="${escaped(v)}"${chosen.has(v) ? ' checked' : ''}>${escaped(v || 'not stated')}<span>${n}</span></label>`).join('');
    facet.toggleAttribute('data-on', chosen.size > 0);
    facet.querySelector('summary').textContent = FACETS[key] + (chosen.size ? ` (${chosen.size})` : '');
  }
  $('chips').innerHTML = Object.entries(state.filters).flatMap(([k, vs]) => [...vs].map(v => `<button type="button" data-key="${k}" data-value="${escaped(v)}" title="remove">${escaped(FACETS[k])}: ${escaped(v || 'not stated')} ×</button>`)).join('');
}

function drawSaid(s) {
  $('said').innerHTML = `<b>${s.rows}</b> rows, <b>${s.compared}</b> compared: mean error <b>${percent(s.mape)}</b> (macro <b>${percent(s.macro)}</b>), bias <b>${signed(s.bias)}</b>, `
    + `<b>${s.within}</b> within ±10 %` + (s.spans ? `, <b>${percent(s.inside / s.spans, 0)}</b> of measurements inside their 90 % interval` : '') + `; <b>${s.refused}</b> not projected.`;
}

const BY = [['by-family', 'family'], ['by-framework', 'framework'], ['by-model', 'model'], ['by-tp', 'tp', 'number'], ['by-pp', 'pp', 'number'],
  ['by-ep', 'ep', 'number'], ['by-cp', 'cp', 'number'], ['by-sharding', 'sharding']];
const MEMORY = [['by-memory', 'model'], ['by-kind', 'memory_kind']];

function drawGroups(rows) {
  const members = grouped(rows.filter(r => r.group && r.error !== null), 'group');
  let found = DATA.groups[state.predictor].filter(g => (members.get(g.name) || []).length > 1);
  const size = g => members.get(g.name).length, tau = g => g.tau === null ? 2 : g.tau;
  // Groups that differ in nothing that a projector sees have no order to find: they come last.
  const seen = (a, b) => b.seen - a.seen;
  found.sort(state.groups === 'large' ? (a, b) => seen(a, b) || size(b) - size(a) || tau(a) - tau(b) : (a, b) => seen(a, b) || tau(a) - tau(b) || size(b) - size(a));
  const all = found.length;
  if (state.groups !== 'all') found = found.slice(0, 6);
  $('slopes-said').textContent = all ? `${found.length} of ${all} groups. Dashed orange: a run that the projection puts on the wrong side of another, where the measurement tells the two apart. Grey: projected equal (their number in brackets). Groups whose runs differ in nothing that a projector sees come last.` : 'No group of this selection has two runs to compare.';
  $('slopes').innerHTML = found.map(() => '<div><p></p><div class="chart"></div></div>').join('');
  found.forEach((g, i) => {
    const card = $('slopes').children[i];
    card.firstChild.innerHTML = `<b>${broken(g.name)}</b><br>tau-b ${g.tau === null ? none : g.tau.toFixed(2).replace('-', '−')}, regret ${percent(g.regret)}, ${g.rows} runs${g.keys.length ? ' that differ in ' + escaped(g.keys.join(', ')) : ''}`;
    slope(card.lastChild, members.get(g.name));
    card.lastChild.dataset.label = 'order of ' + g.name;
    hover(card.lastChild, find);
  });
}

function drawParts(rows) {
  const drawn = rows.filter(r => r.shares && r.step), by = state.parts;
  $('parts-legend').innerHTML = DATA.parts.map(p => `<span><i style="background:${PART_COLOURS[p]}"></i>${PART_NAMES[p]}</span>`).join('');
  if (by === 'rows') {
    const bars = drawn.filter(r => r.measured !== null).slice(0, 40).map(r => ({name: r.id, shares: r.shares.map(v => v / 1000), length: r.measured / r.tgs, row: r}));
    return stacked($('parts-chart'), bars, true);
  }
  const bars = [...grouped(drawn, by)].sort((a, b) => b[1].length - a[1].length).slice(0, 40)
    .map(([v, m]) => ({name: `${v || none} (${m.length})`, shares: DATA.parts.map((_, p) => mean(m.map(r => r.shares[p])) / 1000), length: 1}));
  stacked($('parts-chart'), bars, false);
}

const FEW = 12;
function drawRefusals(rows) {
  const found = new Map(), refused = rows.filter(r => REFUSED.has(r.status));
  for (const r of refused) for (const reason of new Set(r.reason.split('; '))) {
    if (!found.has(reason)) found.set(reason, {reason, n: 0, statuses: new Set(), example: r.id});
    found.get(reason).n += 1;
    found.get(reason).statuses.add(r.status);
  }
  const lines = [...found.values()].sort((a, b) => b.n - a.n), most = lines.length ? lines[0].n : 1;
  const one = l => `<tr><td class="n">${l.n}</td><td><span class="left" style="width:${(6.5 * l.n / most).toFixed(2)}rem"></span></td><td class="long">`
    + `<button type="button" class="link" title="show these rows" data-text="${escaped(l.reason)}">${escaped(l.reason)}</button></td><td>${[...l.statuses].join(', ')}</td><td class="long minor">${escaped(l.example)}</td></tr>`;
  const table = part => '<table class="reasons"><thead><tr><th class="n">rows</th><th></th><th>why there is no projection</th><th>status</th><th class="minor">for example</th></tr></thead><tbody>' + part.map(one).join('') + '</tbody></table>';
  $('refusals').innerHTML = !lines.length ? '<p class="note">Every row of this selection is projected.</p>'
    : `<p class="note">${refused.length} rows, ${lines.length} reasons; a row with two reasons counts in both. A click on a reason shows its rows.</p>` + table(lines.slice(0, FEW))
    + (lines.length > FEW ? `<details><summary>${lines.length - FEW} rarer reasons</summary>${table(lines.slice(FEW))}</details>` : '');
}

// The first screen: the chosen rows, and the heat map of all.
function drawFirst(all, rows) {
  const of = [state.predictor, {heldout: 'held out'}[state.fit] || state.fit].join(', ');
  document.querySelectorAll('.of').forEach(s => { s.textContent = of; });
  byValue($('hero'), rows, 'gpu', '', 'error', 20);
  heat($('heat'), all, state.filters);
}

// From a cell of the heat map to its rows; a cell that is chosen lets go.
function choose(gpu, family, pressed) {
  const {gpu: _, family: __, ...others} = state.filters;
  state.filters = pressed ? others : {...others, ...(gpu === undefined ? {} : {gpu: new Set([gpu])}), ...(family === undefined ? {} : {family: new Set([family])})};
  update();
  const same = [...$('heat').querySelectorAll('button')].find(b => b.dataset.gpu === gpu && b.dataset.family === family);
  if (same) { $('heat').querySelectorAll('[tabindex="0"]').forEach(b => { b.tabIndex = -1; }); same.tabIndex = 0; same.focus({preventScroll: true}); }
  if (!pressed) $('explore').scrollIntoView({behavior: calm() ? 'auto' : 'smooth'});
}
const calm = () => matchMedia('(prefers-reduced-motion: reduce)').matches;

const find = row => { opened.show(row); };
let opened;
let show, listed = [];

// What the order of the rows changes: the table, and the bars where they are its rows.
function order(rows) {
  listed = show(rows, state.sort);
  if (state.parts === 'rows') drawParts(listed);
}

function update() {
  toAddress();
  for (const key of Object.keys(CHOICES)) if ($(key)) $(key).value = state[key];
  if ($('text') !== document.activeElement) $('text').value = state.text;
  const all = rowsOf(state.predictor, state.fit), rows = select(all, state.filters, state.text);
  drawFacets(all);
  drawSaid(summary(rows));
  order(rows);
  drawFirst(all, rows);
  for (const [id, key, by] of BY) byValue($(id), rows, key, by);
  drawGroups(rows);
  if (state.parts !== 'rows') drawParts(rows);
  for (const [id, key] of MEMORY) byValue($(id), rows, key, '', 'gibError');
  drawRefusals(rows);
  document.documentElement.style.setProperty('--bar', $('bar').offsetHeight + 'px');
}

function resort(key) {
  const first = COLUMNS.find(c => c.key === key).n ? '-' : '';
  state.sort = state.sort === '-' + key ? key : state.sort === key ? '-' + key : first + key;
  toAddress();
  order(select(rowsOf(state.predictor, state.fit), state.filters, state.text));
}

function openAsked() {
  const row = state.run && rowsOf(state.predictor, state.fit).find(r => r.id === state.run);
  if (row) opened.show(row);
  else if ($('drawer').open) opened.close();
}

function start() {
  controls();
  show = rowTable($('rows'), resort, find);
  opened = drawer(() => ({rows: listed, every: rowsOf(state.predictor, state.fit)}), row => { state.run = row ? row.id : ''; toAddress(); });
  walkHeat($('heat'), choose);
  hover($('parts-chart'), find);
  for (const [id, key] of [...BY, ...MEMORY, ['hero', 'gpu']]) {
    hover($(id), find);
    $(id).addEventListener('click', e => { const t = e.target.closest('[data-filter]'); if (t) toggle(key, t.dataset.filter); });
  }
  state = fromAddress();
  update();
  openAsked();
  addEventListener('hashchange', () => { state = fromAddress(); update(); openAsked(); });
  let width = innerWidth, waiting = 0;
  addEventListener('resize', () => { clearTimeout(waiting); waiting = setTimeout(() => { if (width !== innerWidth) { width = innerWidth; update(); opened.again(); } }, 200); });
  document.documentElement.dataset.ready = 'yes';
}
start();
