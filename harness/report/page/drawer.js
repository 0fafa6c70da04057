// One row in a drawer: recipe, breakdown, neighbours, the command that projects it again. Left and right go to the rows beside
// it in the table, Escape closes; the row is kept in the address.
const recipeOf = (() => {
  const known = DATA.recipes.words.map(w => { const i = w.indexOf('='); return [w.slice(0, i), w.slice(i + 1)]; });
  return row => DATA.recipes.at[row.i].map(n => known[n]);
})();

const NOT_RECIPE = new Set(['gpu', 'gpus', 'model', 'framework', 'version', 'num_layers']);
const MOST_NEIGHBOURS = 12;

// What changes from a row to another, as words.
function changes(from, to) {
  const a = new Map(recipeOf(from)), b = new Map(recipeOf(to));
  return [...new Set([...a.keys(), ...b.keys()])].filter(k => a.get(k) !== b.get(k)).map(k => `${k} ${b.get(k) ?? 'unset'}`);
}

// Rows of its group; without a group those that state most of the same, of the same model, GPU and framework first.
function neighbours(row, rows) {
  const group = row.group ? rows.filter(r => r.group === row.group && r !== row) : [];
  if (group.length) return {words: `the group ${row.group}`, rows: sorted(group, 'measured', true).slice(0, MOST_NEIGHBOURS)};
  const mine = new Set(DATA.recipes.at[row.i]);
  const alike = r => {
    const theirs = DATA.recipes.at[r.i], shared = theirs.filter(n => mine.has(n)).length;
    return shared / (mine.size + theirs.length - shared) + (r.model === row.model) + .5 * (r.gpu === row.gpu) + .25 * (r.framework === row.framework);
  };
  const found = rows.filter(r => r !== row && r.measured !== null && r.tgs !== null).map(r => [alike(r), r]).sort((a, b) => b[0] - a[0]);
  return {words: 'the rows most like it', rows: found.slice(0, 6).map(([, r]) => r)};
}

// Where measurement and projection stand: the interval as a band on a logarithmic axis.
function strip(host, row) {
  if (row.measured === null || row.tgs === null) return host.replaceChildren();
  const w = host.clientWidth, h = 46, values = [row.measured, row.tgs, row.low ?? row.tgs, row.high ?? row.tgs];
  const low = Math.min(...values) / 1.06, high = Math.max(...values) * 1.06, x = v => 8 + (w - 16) * Math.log(v / low) / Math.log(high / low);
  const band = row.low === null ? '' : `<path class="band" d="M${at(x(row.low))} 16H${at(x(row.high))}V32H${at(x(row.low))}z"/>`;
  const end = v => x(v) < 110 ? 'text-anchor="start"' : x(v) > w - 110 ? 'text-anchor="end"' : 'text-anchor="middle"';
  host.innerHTML = svg(w, h, 'measured and projected throughput', band + line(8, 24, w - 8, 24, 'axis')
    + `<path class="in" d="${circle(x(row.tgs), 24, 5)}"/><path class="measured" d="M${at(x(row.measured))} 14V34"/>`
    + label(x(row.measured), 11, 'measured ' + number(row.measured), end(row.measured)) + label(x(row.tgs), 45, 'projected ' + number(row.tgs), end(row.tgs)));
}

const list = (pairs, kind = '') => `<dl class="${kind}">${pairs.filter(([, v]) => v !== '' && v !== null).map(([k, v]) => `<div><dt>${broken(k)}</dt><dd>${broken(v)}</dd></div>`).join('')}</dl>`;

function parts(row) {
  const rows = DATA.parts.map((p, i) => [p, row.shares[i] / 1000]).filter(([, s]) => s > 0).sort((a, b) => b[1] - a[1]);
  return `<h3>Where the projected step of ${row.step.toPrecision(4)} s goes</h3><div class="chart" id="drawer-parts"></div><table class="shares"><tbody>`
    + rows.map(([p, s]) => `<tr><th scope="row"><i style="background:${PART_COLOURS[p]}"></i>${PART_NAMES[p]}</th><td class="n">${(s * row.step).toPrecision(3)} s</td><td class="n">${percent(s)}</td></tr>`).join('') + '</tbody></table>';
}

function near(row, rows) {
  const found = neighbours(row, rows);
  if (!found.rows.length) return '';
  const one = r => `<tr><td class="long"><button type="button" class="link" data-run="${r.i}">${broken(r.id)}</button><span class="sub">${escaped(cut(changes(row, r).join(', ') || 'states the same', 160))}</span></td>`
    + `<td class="n">${number(r.measured)}</td><td class="n">${number(r.tgs)}</td><td class="n${r.size > .1 ? ' off' : ''}">${signed(r.error)}</td></tr>`;
  return `<h3>Neighbours: ${broken(found.words)}</h3><table class="near"><thead><tr><th>run, and what it changes</th><th class="n">measured</th><th class="n">projected</th><th class="n">error</th></tr></thead><tbody>${found.rows.map(one).join('')}</tbody></table>`;
}

function content(row, rows) {
  const recipe = recipeOf(row), outside = row.low !== null && row.measured !== null && (row.measured < row.low || row.measured > row.high);
  const tell = row.error === null ? '' : `<p class="tell"><b class="${row.size > .1 ? 'off' : ''}">${signed(row.error)}</b> projected over measured tokens/s/GPU`
    + (row.low === null ? '' : `; 90 % interval ${number(row.low)} to ${number(row.high)}, the measurement is <b class="${outside ? 'off' : ''}">${outside ? 'outside' : 'inside'}</b>`) + '</p><div class="chart" id="drawer-strip"></div>';
  const memory = row.gib === null && row.measured_gib === null ? '' : '<h3>Memory</h3>' + list([['projected peak', row.gib === null ? '' : row.gib.toFixed(1) + ' GiB'],
    ['measured', row.measured_gib === null ? '' : `${row.measured_gib.toFixed(1)} GiB ${row.memory_kind}`], ['error', row.gibError === null ? '' : signed(row.gibError)]]);
  return (row.reason ? `<p class="why"><b>${escaped(row.status.replaceAll('-', ' '))}</b>: ${escaped(row.reason)}</p>` : '') + tell
    + (row.shares && row.step ? parts(row) : '') + '<h3>Recipe</h3>' + list(recipe.filter(([k]) => !NOT_RECIPE.has(k)), 'recipe')
    + (row.assumed ? `<p class="note">Assumed: ${escaped(row.assumed)}</p>` : '') + memory + near(row, rows)
    + `<h3>Project it again</h3><div class="again"><pre tabindex="0">${escaped(DATA.again)} ${escaped(shell(row.id))}</pre><button type="button" class="plain" id="copy">copy</button></div>`
    + '<p class="note">It gives the uncalibrated projection; calibrated and held-out ones need the other rows too.</p>'
    + list([['source', row.source], ['version', new Map(recipe).get('version') || ''], ['group', row.group], ['suite', row.suite]]);
}

const shell = text => /^[\w@%+=:,./-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\"'\"'") + "'";

// `rows`: those of the table, in its order; `every`: all of the predictor.
function drawer(lists, opened) {
  const box = document.getElementById('drawer'), body = document.getElementById('drawer-body');
  let row = null;
  const show = found => {
    row = found;
    document.getElementById('drawer-title').innerHTML = broken(row.id);
    document.getElementById('drawer-sub').textContent = [row.model, row.gpus + ' × ' + row.gpu, row.framework, row.precision, row.parallel].filter(Boolean).join(' · ');
    if (!box.open) box.showModal();
    body.innerHTML = content(row, lists().every);
    const host = document.getElementById('drawer-parts'), line = document.getElementById('drawer-strip');
    if (host) stacked(host, [{name: '', shares: row.shares.map(v => v / 1000), length: 1, row}], false);
    if (line) strip(line, row);
    box.scrollTop = 0;
    opened(row);
  };
  const beside = by => { const {rows} = lists(), next = rows[rows.findIndex(r => r.i === row.i) + by]; if (next) show(next); };
  box.addEventListener('close', () => opened(null));
  box.addEventListener('click', event => {
    const link = event.target.closest('[data-run]'), {every} = lists();
    if (event.target === box || event.target.closest('#drawer-close')) box.close();
    else if (link) show(every.find(r => r.i === Number(link.dataset.run)));
    else if (event.target.closest('#drawer-before')) beside(-1);
    else if (event.target.closest('#drawer-after')) beside(1);
    else if (event.target.closest('#copy')) copy(event.target);
  });
  box.addEventListener('keydown', event => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (by && !event.target.closest('pre')) { event.preventDefault(); beside(by); }
  });
  return {show, close: () => box.close(), again: () => { if (box.open && row) { const found = lists().every.find(r => r.i === row.i); if (found) show(found); } }};
}

function copy(button) {
  const text = button.previousElementSibling, range = document.createRange();
  range.selectNodeContents(text);
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  navigator.clipboard?.writeText(text.textContent).then(() => { button.textContent = 'copied'; }, () => { button.textContent = 'selected'; });
}
