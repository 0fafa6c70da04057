// Charts as SVG text. A series of marks is one path, so that a thousand rows cost one element; hover finds the nearest.
const svg = (w, h, label, body) => `<svg viewBox="0 0 ${w} ${h}" width="${w}" height="${h}" role="img" aria-label="${escaped(label)}">${body}</svg>`;
const at = v => v.toFixed(1);
const label = (x, y, text, extra = '') => `<text x="${at(x)}" y="${at(y)}" ${extra}>${escaped(text)}</text>`;
const line = (x1, y1, x2, y2, kind) => `<path class="${kind}" d="M${at(x1)} ${at(y1)}L${at(x2)} ${at(y2)}"/>`;
const empty = (host, text) => { host.innerHTML = `<p class="note">${escaped(text)}</p>`; host.marks = []; };
const circle = (x, y, r = 2.6) => `M${at(x - r)} ${at(y)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;

// One line a value of `key`: every row's projected / measured, the quartiles and median, the mean |error| and the number.
// `field`: the relative error drawn, `error` of throughput or `gibError` of memory. `first`: as the first chart of the page,
// with at most so many values, those of most rows, and where their 90 % intervals let the ratio be, on the median.
function byValue(host, rows, key, order, field = 'error', first = 0) {
  const drawn = rows.filter(r => r[field] !== null);
  if (!drawn.length) return empty(host, 'Nothing to compare in this selection.');
  const groups = [...grouped(drawn, key)].map(([value, members]) => ({value, members, mape: mean(members.map(r => Math.abs(r[field])))}));
  if (first) groups.sort((a, b) => b.members.length - a.members.length).splice(first);
  groups.sort(order === 'number' ? (a, b) => a.value - b.value : (a, b) => b.mape - a.mape);
  const w = host.clientWidth, step = first ? Math.max(19, Math.min(44, 420 / groups.length)) : 19, names = Math.min(.34 * w, 14 + 6.6 * Math.max(...groups.map(g => (g.value || none).length)));
  const left = names + 6, right = w - 108, top = 22, h = top + step * groups.length + 8, low = .5, high = 2;
  const x = v => left + (right - left) * Math.log(Math.min(high, Math.max(low, v)) / low) / Math.log(high / low);
  let body = `<path class="band" d="M${at(x(.9))} ${top - 4}H${at(x(1.1))}V${h - 6}H${at(x(.9))}z"/>`, dots = '';
  const room = right - left, ticks = room > 480 ? [.5, .7, .8, .9, 1, 1.1, 1.25, 1.5, 2] : room > 180 ? [.5, .7, 1, 1.4, 2] : [.5, 1, 2];
  for (const t of ticks) body += line(x(t), top - 4, x(t), h - 6, t === 1 ? 'exact' : 'axis') + label(x(t), top - 8, t + '×', 'text-anchor="middle" class="faint"');
  body += label(w - 52, top - 8, 'MAPE', 'text-anchor="end" class="faint"') + label(w - 4, top - 8, 'rows', 'text-anchor="end" class="faint"');
  host.marks = [];
  groups.forEach((g, i) => {
    const cy = top + step * (i + .5), ratios = g.members.map(r => 1 + r[field]).sort((a, b) => a - b);
    body += label(names, cy + 4, cut(g.value || none, Math.floor(names / 6.4)), `text-anchor="end" data-filter="${escaped(g.value)}"`)
      + label(w - 52, cy + 4, percent(g.mape), 'text-anchor="end"') + label(w - 4, cy + 4, g.members.length, 'text-anchor="end" class="faint"');
    if (ratios.length > 4) {
      const a = x(quantile(ratios, .25)), b = x(quantile(ratios, .75));
      body += `<rect class="box" x="${at(a)}" y="${at(cy - 6)}" width="${at(b - a)}" height="12"/>`;
    }
    g.members.forEach((row, n) => {
      const px = x(1 + row[field]), py = cy + (step / 2 - 5) * Math.sin(2.4 * n);
      dots += `M${at(px)} ${at(py)}h0`;
      host.marks.push({x: px, y: py, row});
    });
    const spans = first ? g.members.filter(r => r.low !== null) : [], end = edge => x(quantile(spans.map(r => r.tgs / r[edge]).sort((a, b) => a - b), .5));
    if (spans.length) body += line(end('high'), cy, end('low'), cy, 'whisker') + ['high', 'low'].map(e => line(end(e), cy - 4, end(e), cy + 4, 'whisker')).join('');
    const m = x(quantile(ratios, .5));
    body += line(m, cy - 7, m, cy + 7, 'median');
  });
  body += `<path class="dots" stroke-width="4" d="${dots}"/><path class="ring" d=""/>`;
  host.innerHTML = svg(w, h, 'projected / measured by ' + (FACETS[key] || key), body);
}

// A group's measured order on the left, its projected order on the right; equal projections share a place. A line is dashed
// where it crosses another and the measurement tells the two apart (more than 1 % or the stated spread).
function slope(host, rows, most = 24) {
  const drawn = rows.filter(r => r.error !== null).sort((a, b) => b.measured - a.measured).slice(0, most);
  const w = host.clientWidth, step = 18, top = 22, h = top + step * drawn.length + 4, words = w * .56, left = words + 8, right = w - 88;
  const y = i => top + step * (i + .5) - 2, apart = (a, b) => Math.abs(Math.log(a.measured / b.measured)) > Math.log1p(Math.max(.01, a.noise || 0, b.noise || 0));
  const order = [...drawn].sort((a, b) => b.tgs - a.tgs), ties = [...grouped(order, 'tgs').values()];
  const place = new Map(ties.flatMap(same => same.map(r => [r, mean(same.map(o => order.indexOf(o)))])));
  const names = drawn.map(r => r.label || r.id.slice(common(drawn.map(o => o.id))));
  let body = label(words, 13, 'measured', 'text-anchor="end" class="faint"') + label(right + 8, 13, 'projected', 'class="faint"');
  host.marks = [];
  drawn.forEach((row, i) => {
    const j = place.get(row), crossed = drawn.some(o => apart(row, o) && (row.measured - o.measured) * (row.tgs - o.tgs) < 0);
    const found = figure(row.measured), letters = Math.floor((words - 6.8 * (found.length + 2)) / 6.5);
    const kind = crossed ? 'cross' : ties.some(same => same.length > 1 && same.includes(row)) ? 'tied' : 'keep';
    body += `<text x="${at(words)}" y="${at(y(i) + 4)}" text-anchor="end"><title>${escaped(row.id + ': ' + row.label)}</title><tspan class="faint">${escaped(cut(names[i], letters))}</tspan> ${found}</text>`
      + `<path class="${kind}" d="M${at(left)} ${at(y(i))}L${at(right)} ${at(y(j))}"/>`
      + `<path class="${crossed ? 'out' : 'in'}" d="${circle(left, y(i))}${circle(right, y(j))}"/>`;
    host.marks.push({x: left, y: y(i), row}, {x: right, y: y(j), row});
  });
  for (const same of ties) body += label(right + 8, y(place.get(same[0])) + 4, figure(same[0].tgs) + (same.length > 1 ? ` (${same.length})` : ''));
  host.innerHTML = svg(w, h, 'measured and projected order', body);
}
const common = ids => {
  let n = 0;
  while (ids.every(id => id[n] !== undefined && id[n] === ids[0][n])) n++;
  return ids.length > 1 ? n : 0;
};

const PART_COLOURS = {compute: '#0072B2', host: '#999999', bubble: '#D0D0D0', tp: '#E69F00', ep: '#D55E00', cp: '#56B4E9', pp: '#009E73',
  dp: '#CC79A7', optimizer: '#F0E442', other: '#5B4636'};
const PART_NAMES = {compute: 'compute', host: 'host', bubble: 'pipeline bubble', tp: 'TP', ep: 'EP', cp: 'CP', pp: 'PP', dp: 'data parallel',
  optimizer: 'optimizer', other: 'other'};

// bars: [{name, shares (of 1), length, row}]; a length of 1 is drawn as the mark of the measured step.
function stacked(host, bars, marked) {
  if (!bars.length) return empty(host, 'No row of this selection has a step split into parts.');
  const w = host.clientWidth, step = 20, top = marked ? 20 : 6, names = Math.min(.36 * w, 14 + 6.4 * Math.max(...bars.map(b => b.name.length)));
  const left = names + 6, right = w - 8, longest = Math.min(2.5, Math.max(1, ...bars.map(b => b.length))), h = top + step * bars.length + 4;
  const x = v => left + (right - left) * Math.min(v, longest) / longest;
  let body = '';
  host.marks = [];
  bars.forEach((bar, i) => {
    const y = top + step * i;
    let from = 0;
    body += label(names, y + 13, cut(bar.name, Math.floor(names / 7)), 'text-anchor="end"');
    bar.shares.forEach((share, p) => {
      const part = DATA.parts[p], a = x(from), b = x(from + share * bar.length);
      from += share * bar.length;
      if (b - a < .4) return;
      body += `<rect x="${at(a)}" y="${y + 2}" width="${at(Math.max(.5, b - a - .6))}" height="15" fill="${PART_COLOURS[part]}"/>`;
      if (b - a > 34) body += `<text x="${at((a + b) / 2)}" y="${y + 13}" text-anchor="middle" style="fill:${['compute', 'ep', 'pp', 'other'].includes(part) ? '#fff' : '#111'}">${Math.round(100 * share)} %</text>`;
      host.marks.push({x: (a + b) / 2, y: y + 9, row: bar.row, note: `${bar.name}: ${PART_NAMES[part]} ${percent(share)}`});
    });
  });
  if (marked) body += line(x(1), top - 4, x(1), h, 'exact') + label(x(1), 12, 'measured step', 'text-anchor="middle" class="faint"');
  host.innerHTML = svg(w, h, 'parts of the projected step', body);
}
