// The first screen: every row measured × projected, coloured by GPU, and the mean error by GPU and family as a heat map.
// What the filters leave out stays in sight, pale: a selection is seen inside the whole.
const HUES = 7, MARKS = [circle, triangle, square];
const LOOKS = new Map([...grouped(RUNS.filter(r => r.measured !== null), 'gpu')].sort((a, b) => b[1].length - a[1].length)
  .map(([gpu], i) => [gpu, {kind: 'g' + i % HUES, mark: MARKS[Math.floor(i / HUES) % MARKS.length]}]));
const swatch = gpu => { const look = LOOKS.get(gpu); return `<svg width="13" height="11" aria-hidden="true"><path class="${look.kind}" d="${look.mark(6, 6, 4)}"/></svg>`; };

// Rows as marks between two scales; `ratio` sets projected / measured on a fixed axis, where the band is easier to read.
function hero(host, all, chosen, ratio) {
  const drawn = all.filter(r => r.error !== null);
  if (!drawn.length) return empty(host, 'No row has both a measured and a projected throughput.');
  const w = host.clientWidth, h = Math.min(450, Math.max(340, w * .8)), left = 52, right = w - 10, top = 8, bottom = h - 40;
  const values = drawn.flatMap(r => ratio ? [r.measured] : [r.measured, r.tgs]);
  const low = Math.min(...values) / 1.25, high = Math.max(...values) * 1.25, [down, up] = ratio ? [.4, 2.5] : [low, high];
  const clipped = v => Math.min(up, Math.max(down, v));
  const x = v => left + (right - left) * Math.log(v / low) / Math.log(high / low);
  const y = v => bottom - (bottom - top) * Math.log(clipped(v) / down) / Math.log(up / down);
  let body = ratio ? `<path class="band" d="M${left} ${at(y(1.1))}H${right}V${at(y(.9))}H${left}z"/>`
    : `<path class="band" d="M${at(x(low))} ${at(y(low * 1.1))}L${at(x(high / 1.1))} ${top}H${right}V${at(y(high * .9))}L${at(x(low / .9))} ${bottom}H${left}z"/>`;
  for (const t of logTicks(low, high)) body += line(x(t), top, x(t), bottom, 'axis') + label(x(t), bottom + 15, short(t), 'text-anchor="middle" class="faint"');
  for (const t of ratio ? [.5, .7, .8, .9, 1, 1.1, 1.25, 1.5, 2] : logTicks(low, high)) body += line(left, y(t), right, y(t), 'axis')
    + label(left - 6, y(t) + 4, ratio ? t + '×' : short(t), 'text-anchor="end" class="faint"');
  body += ratio ? line(left, y(1), right, y(1), 'exact') : line(left, bottom, right, top, 'exact');
  const place = r => ratio ? r.tgs / r.measured : r.tgs, unit = r => ratio ? r.measured : 1, series = new Map();
  let pale = '', whisker = '';
  const marks = drawn.map(row => {
    const px = x(row.measured), py = y(place(row)), look = LOOKS.get(row.gpu), inside = chosen.has(row.i);
    const bar = row.low === null ? '' : `M${at(px)} ${at(y(row.low / unit(row)))}V${at(y(row.high / unit(row)))}`;
    if (!inside) pale += look.mark(px, py, 2.4);
    else {
      whisker += bar;
      series.set(look, (series.get(look) || '') + look.mark(px, py, 3.1));
    }
    return {x: px, y: py, row, ring: circle(px, py, 6.5) + bar, pale: !inside};
  });
  host.marks = marks.filter(m => !m.pale);
  body += `<path class="pale" d="${pale}"/><path class="whisker" d="${whisker}"/>`;
  for (const [look, d] of series) body += `<path class="mark ${look.kind}" d="${d}"/>`;
  body += '<path class="ring" d=""/>' + label((left + right) / 2, h - 6, 'measured tokens/s/GPU', 'text-anchor="middle"');
  body += `<text transform="translate(12 ${at((top + bottom) / 2)}) rotate(-90)" text-anchor="middle">${ratio ? 'projected / measured' : 'projected tokens/s/GPU'}</text>`;
  host.innerHTML = svg(w, h, `projected against measured throughput of ${host.marks.length} rows`, body);
}

function heroLegend(host, all, filters) {
  const counts = [...grouped(all.filter(r => r.error !== null), 'gpu')].sort((a, b) => b[1].length - a[1].length), on = filters.gpu;
  host.innerHTML = counts.map(([gpu, m]) => `<button type="button" data-gpu="${escaped(gpu)}" aria-pressed="${Boolean(on && on.has(gpu))}" title="only ${escaped(gpu)}">${swatch(gpu)}${escaped(gpu || none)} <span>${m.length}</span></button>`).join('');
}

// Steps of the mean error: their colours differ in lightness, so that they are told apart in print and by everybody.
const STEPS = [.05, .1, .15, .25, .5];
const step = v => STEPS.filter(s => v > s).length;

function heat(table, all, filters) {
  const drawn = all.filter(r => r.error !== null), by = key => [...grouped(drawn, key)];
  const families = by('family').sort((a, b) => b[1].length - a[1].length).map(([f]) => f);
  const gpus = by('gpu').map(([g]) => g).sort((a, b) => a.localeCompare(b, 'en', {numeric: true}));
  const cells = grouped(drawn, r => r.gpu + '|' + r.family), rows = grouped(drawn, 'gpu'), columns = grouped(drawn, 'family');
  const is = (key, v) => Boolean(filters[key] && filters[key].size === 1 && filters[key].has(v));
  const cell = (members, gpu, family, kind) => {
    if (!members) return '<td></td>';
    const mape = mean(members.map(r => r.size)), n = members.length, where = [gpu ?? 'all GPUs', family ?? 'all families'].join(', ');
    const on = (gpu === null || is('gpu', gpu)) && (family === null || is('family', family)) && !(gpu === null && family === null);
    return `<td class="${kind}"><button type="button" tabindex="-1" class="h${step(mape)}" aria-pressed="${on}"${gpu === null ? '' : ` data-gpu="${escaped(gpu)}"`}${family === null ? '' : ` data-family="${escaped(family)}"`}`
      + ` title="${escaped(where)}: mean error ${percent(mape)}, ${n} ${n === 1 ? 'row' : 'rows'}" aria-label="${escaped(where)}: mean error ${percent(mape)}, ${n} ${n === 1 ? 'row' : 'rows'}"><b>${(100 * mape).toFixed(0)}</b><small>${n}</small></button></td>`;
  };
  const name = v => broken(v || 'not stated');
  const line = (gpu, members, of) => `<tr><th scope="row">${gpu === null ? 'all' : name(gpu)}</th>${cell(members, gpu, null, 'sum')}${families.map(f => cell(of(f), gpu, f, gpu === null ? 'sum' : '')).join('')}</tr>`;
  table.style.setProperty('--families', families.length);
  table.tHead.innerHTML = `<tr><th></th><th scope="col"><span>all</span></th>${families.map(f => `<th scope="col"><span>${escaped(f || 'not stated')}</span></th>`).join('')}</tr>`;
  table.tBodies[0].innerHTML = drawn.length ? line(null, drawn, f => columns.get(f)) + gpus.map(g => line(g, rows.get(g), f => cells.get(g + '|' + f))).join('') : '';
  const first = table.querySelector('tbody button[aria-pressed=true]') || table.querySelector('tbody button');
  if (first) first.tabIndex = 0;
}

// One cell is in the order of tabs; arrows go to the next filled cell of a row or column.
function walkHeat(table, chosen) {
  const button = td => td && td.querySelector('button');
  table.addEventListener('keydown', event => {
    const move = {ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0]}[event.key], here = event.target.closest('td');
    if (!move || !here) return;
    event.preventDefault();
    const rows = [...table.tBodies[0].rows];
    let [y, x] = [rows.indexOf(here.parentNode), here.cellIndex];
    do { y += move[0]; x += move[1]; } while (rows[y] && rows[y].cells[x] && !button(rows[y].cells[x]));
    const next = rows[y] && x > 0 && button(rows[y].cells[x]);
    if (!next) return;
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  table.addEventListener('click', event => { const b = event.target.closest('tbody button'); if (b) chosen(b.dataset.gpu, b.dataset.family, b.getAttribute('aria-pressed') === 'true'); });
}
