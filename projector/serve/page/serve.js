'use strict';
// The page holds its question in its address; every control changes that, and the answer follows.
const $ = id => document.getElementById(id), form = $('ask');
addEventListener('error', e => { document.documentElement.dataset.error = e.message; });
const LAYOUT = ['tp', 'pp', 'vpp', 'cp', 'ep', 'micro_batch_size', 'recompute_granularity', 'data_parallel_sharding'];
const FIELDS = ['model', 'gpu', 'framework', 'gpus', 'seq_length', 'global_batch_size', 'precision', ...LAYOUT];
const FIRST = {model: 'llama3.1_8b', gpu: 'h100_sxm', gpus: '64', seq_length: '8192'};
const PARTS = {compute_s: 'compute', host_s: 'host', tp_s: 'tensor exchange', ep_s: 'expert exchange', cp_s: 'context exchange', pp_s: 'pipeline messages',
  dp_s: 'gradient exchange', bubble_s: 'bubble', optimizer_s: 'optimizer', other_s: 'other'};
const COLOUR = {compute_s: 0, host_s: 6, tp_s: 5, ep_s: 3, cp_s: 4, pp_s: 2, dp_s: 1, bubble_s: 7, optimizer_s: 2, other_s: 6};
const KEPT = {weights: 0, gradients: 4, master_weights: 2, moments: 3, activations: 5, transient: 1};
const BOUND = {compute: 0, memory: 1, link: 5, fabric: 3, links: 3, host: 6, latency: 6, nothing: 6};

const made = (ns, tag, attributes, ...children) => {
  const e = ns ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) k === 'style' ? e.style.cssText = v : e.setAttribute(k, v);
  e.append(...children.flat().filter(c => c !== null));
  return e;
};
const h = (tag, attributes, ...children) => made(false, tag, attributes, ...children);
const s = (tag, attributes, ...children) => made(true, tag, attributes, ...children);
const put = (id, ...children) => $(id).replaceChildren(...children.flat().filter(c => c !== null));
const figure = (id, title, ...children) => put(id, h('h2', {}, title), ...children);
const number = (v, digits = 3) => v === null || v === undefined ? '–' : Math.abs(v) >= 10 ** digits ? Math.round(v).toLocaleString('en') : (+v.toPrecision(digits)).toLocaleString('en', {maximumSignificantDigits: digits});
const percent = (v, digits = 1) => (100 * v).toFixed(digits) + ' %';
const gib = v => (v / 2 ** 30).toFixed(1);
const legend = items => h('div', {class: 'legend'}, items.map(([words, colour]) => h('span', {}, h('i', {class: 'c' + colour}), words)));

// -- the question ----------------------------------------------------------------------------------------------------
const asked = () => new URLSearchParams(location.search);
const read = () => {
  const query = new URLSearchParams();
  for (const name of FIELDS) {
    const e = form.elements[name], v = e.type === 'range' ? (+e.value < 0 ? '' : String(2 ** +e.value)) : e.value.trim();
    if (e.dataset.own && e.value === e.dataset.at) query.set(name, e.dataset.own); else if (v) query.set(name, v);
  }
  for (const word of form.elements.more.value.split(/\s+/)) { const [k, ...v] = word.split('='); if (k && v.length) query.set(k, v.join('=')); }
  return query;
};
const show = (query, told = {}) => {
  const more = [...query].filter(([k]) => !FIELDS.includes(k)).map(([k, v]) => `${k}=${v}`);
  if (document.activeElement !== form.elements.more) form.elements.more.value = more.join(' ');
  for (const name of FIELDS) {
    const e = form.elements[name], v = query.get(name);
    if (e.type !== 'range') { if (e !== document.activeElement) e.value = v || ''; continue; }
    e.value = v ? Math.round(Math.log2(+v)) : -1; delete e.dataset.own;
    if (v && 2 ** +e.value !== +v) { e.dataset.own = v; e.dataset.at = e.value; }  // no power of two
    const out = e.nextElementSibling, own = told[name];
    out.textContent = v || (own && LAYOUT.some(n => query.has(n)) ? own : own ? `auto: ${own}` : 'auto'); out.className = v ? '' : 'auto';
  }
  $('link').href = '?' + query;
};
let timer = 0, turn = 0;
const go = (query, wait = 0) => {
  history.replaceState(null, '', '?' + query); show(query);
  clearTimeout(timer); timer = setTimeout(() => answer(query), wait);
};
const ask = async (command, query) => {
  const reply = await fetch(`v1/${command}?${query}`), told = await reply.json();
  if (!reply.ok) throw told.errors.map(e => `${e.key ? e.key + ': ' : ''}found ${e.found}, expected ${e.expected}`).join('\n');
  return told;
};

async function answer(query) {
  const mine = ++turn, late = () => mine !== turn;
  $('answer').dataset.busy = ''; $('busy').hidden = false;
  try {
    const view = await ask('view', query);
    if (late()) return;
    delete $('answer').dataset.busy; delete $('answer').dataset.wrong; drawn(view, query);
    const whole = new URLSearchParams(query);
    for (const [k, v] of Object.entries({...view.recipe, gpus: view.cluster.gpus})) if (v !== null && typeof v !== 'object') whole.set(k, v);
    const layers = await ask('layers', whole); if (late()) return; roofline(layers, view);
    const free = new URLSearchParams([...query].filter(([k]) => !LAYOUT.includes(k)));
    free.set('gpus', view.cluster.gpus);  free.set('global_batch_size', view.recipe.global_batch_size); free.set('seq_length', view.recipe.seq_length);
    const found = await ask('search', free).catch(why => { if (typeof why !== 'string') throw why; return why; }); if (late()) return;
    typeof found === 'string' ? figure('layouts', 'Best layouts', h('p', {class: 'note'}, `None on ${view.cluster.gpus} GPUs: ${found}`)) : layouts(found, view, free);
    document.documentElement.dataset.ready = mine;
  } catch (error) {
    if (late()) return;
    delete $('answer').dataset.busy;
    if (typeof error !== 'string') { document.documentElement.dataset.error = error; error = 'The server does not answer: ' + error; }
    wrong(error);
  } finally { if (!late()) $('busy').hidden = true; }
}
function wrong(text) {
  $('answer').dataset.wrong = ''; $('verdict').className = 'verdict wrong'; put('verdict', 'No answer', h('small', {}, text));
  document.documentElement.dataset.ready = turn;
}

// -- the answer ------------------------------------------------------------------------------------------------------
function drawn(view, query) {
  const made = view.projections.simulate, e = made.expected, rate = made.tgs * made.step_seconds;
  show(query, {...view.parallelism, micro_batch_size: view.recipe.micro_batch_size, gpus: view.cluster.gpus});
  for (const name of ['model', 'gpu']) form.elements[name].value ||= name === 'gpu' ? view.cluster.gpu : view.model.name;  // asked by an alias
  form.elements.seq_length.placeholder = view.recipe.seq_length; form.elements.global_batch_size.placeholder = view.recipe.global_batch_size;
  document.title = `${view.model.name} on ${view.cluster.gpus} ${view.cluster.gpu}`;
  $('verdict').className = 'verdict o' + view.order; $('verdict').textContent = view.verdict; $('title').textContent = view.title;
  const tile = (value, meaning, more) => h('li', {}, h('b', {}, value), h('span', {}, meaning), h('small', {}, more));
  const impossible = view.order === 2;
  const room = tile(gib(Math.abs(view.memory.margin)) + ' GiB', view.memory.margin < 0 ? 'too much' : 'to spare', `of ${gib(view.memory.usable)} usable on the fullest GPU`);
  const step = tile(number(e.middle, 4) + ' s', impossible ? 'a step, if it fitted' : 'a step, expected', `90 %: ${number(e.low)} to ${number(e.high)} s`);
  put('tiles', ...(impossible ? [room, step] : [step,
    tile(number(rate / e.middle, 3), 'tokens/s/GPU', `${number(rate / e.high)} to ${number(rate / e.low)}`),
    tile(percent(made.mfu * made.step_seconds / e.middle), 'MFU', `bubble ${percent(made.bubble)}`), room]));
  $('uncertain').textContent = `${view.uncertain}. It rests on ${e.rests_on}.${e.unusual ? ' Unusual: ' + e.unusual : ''}`;
  breakdown(made); memory(view.memory); modules(view.activations_by_module); sensitivities(view.sensitivities); timeline(view.timeline);
  $('shell').textContent = view.shell; $('python').textContent = view.python;
  $('assumed').textContent = view.assumed.length ? 'Assumed: ' + view.assumed.join('; ') : '';
  put('roofline'); put('layouts', h('h2', {}, 'Best layouts'), h('p', {class: 'note'}, 'searching …'));
}
function breakdown(made) {
  const parts = Object.entries(made.breakdown).filter(([, v]) => v > .002 * made.step_seconds);
  const words = ([k, v]) => `${PARTS[k] || k} ${percent(v / made.step_seconds)}`;
  figure('breakdown', 'Where the step goes',
    h('div', {class: 'bar'}, parts.map(p => h('i', {class: 'c' + COLOUR[p[0]], style: `width:${100 * p[1] / made.step_seconds}%`, 'data-tip': `${words(p)}: ${number(p[1])} s`}))),
    legend(parts.map(p => [words(p), COLOUR[p[0]]])));
}
const ends = rows => rows.length > 16 ? rows.filter((_, i) => i < 8 || i >= rows.length - 8) : rows;
function modules(ranks) {
  const names = [...new Set(ranks.flatMap(r => Object.keys(r)))], sum = r => Object.values(r).reduce((a, b) => a + b, 0), most = Math.max(...ranks.map(sum));
  figure('modules', 'Activations that one micro-batch keeps, by module',
    h('div', {class: 'ranks'}, ends(ranks.map((r, i) => [r, i])).flatMap(([r, i]) => [h('span', {}, String(i)),
      h('div', {class: 'bar'}, names.map((n, c) => h('i', {class: 'c' + c % 8, style: `width:${100 * (r[n] || 0) / most}%`, 'data-tip': `${n}: ${gib(r[n] || 0)} GiB`}))), h('span', {}, gib(sum(r)))])),
    legend(names.map((n, c) => [n, c % 8])), h('p', {class: 'note'}, 'GiB a rank, in all of its chunks; the peak holds as many micro-batches as are alive on it.'));
}
function memory(plan) {
  const names = Object.keys(plan.ranks[0].components).filter(n => plan.ranks.some(r => r.components[n] > .002 * plan.usable));
  const most = 1.02 * Math.max(plan.usable, ...plan.ranks.map(r => r.device));
  const rows = ends(plan.ranks);
  const piece = (size, colour, words) => h('i', {class: 'c' + colour, style: `width:${100 * size / most}%`, 'data-tip': `${words}: ${gib(size)} GiB`});
  figure('memory', 'Peak memory of each pipeline rank',
    h('div', {class: 'ranks'}, rows.flatMap(r => [h('span', {}, String(r.rank)),
      h('div', {class: 'bar'}, names.map(n => piece(r.components[n], KEPT[n] ?? 6, n.replaceAll('_', ' '))), piece(Math.max(r.device - r.allocated, 0), 7, 'cache, context, buffers'),
        h('b', {style: `left:${100 * plan.usable / most}%`})), h('span', {}, `${gib(r.device)}`)])),
    legend([...names.map(n => [n.replaceAll('_', ' '), KEPT[n] ?? 6]), ['cache, context, buffers', 7]]),
    h('p', {class: 'note'}, `GiB on the device; the line is what is usable, ${gib(plan.usable)}.`));
}
function sensitivities(found) {
  const most = Math.max(.01, ...found.map(f => f.gain));
  figure('sensitivities', '10 % more of … gains',
    h('div', {class: 'ranks'}, found.flatMap(f => [h('span', {}, f.resource), h('div', {class: 'bar'}, h('i', {class: 'c0', style: `width:${100 * Math.max(f.gain, 0) / most}%`})), h('span', {}, percent(f.gain, 2))])),
    h('p', {class: 'note'}, 'In tokens/s/GPU of this layout.'));
}
function timeline(found) {
  const lane = 16, width = 1000, height = found.ranks.length * (lane + 3), x = t => width * t / found.seconds;
  const rows = found.ranks.flatMap((r, i) => {
    const y = i * (lane + 3), rect = (a, b, colour, words, pale) => s('rect', {x: x(a).toFixed(2), y, width: Math.max(x(b - a) - .3, .3).toFixed(2), height: lane, class: 'c' + colour, 'data-tip': words, ...(pale ? {opacity: .7} : {})});
    return [s('rect', {x: 0, y, width, height: lane, class: 'c7', opacity: .35}),
      ...r.actions.map(([k, m, a, b]) => rect(a, b, [0, 5, 2][k], `rank ${r.rank}, ${['forward', 'backward', 'weight gradients'][k]} of micro-batch ${m}: ${number(b - a)} s`, m % 2)),
      ...r.spans.map(([n, a, b]) => rect(a, b, 3, `rank ${r.rank}, ${n}: ${number(b - a)} s`))];
  });
  figure('timeline', `Timeline of a step: ${found.schedule}`, s('svg', {viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', style: `height:${Math.min(height, 340)}px`, class: 'lanes', role: 'img', 'aria-label': 'timeline'}, rows),
    legend([['forward', 0], ['backward', 5], ['weight gradients', 2], ['optimizer and exchanges of a step', 3], ['waiting', 7]]),
    h('p', {class: 'note'}, `${number(found.seconds)} s from left to right; a line is a pipeline rank${found.ranks.length < found.of ? `, ${found.ranks.length} of ${found.of}` : ''}.`));
}
function roofline(layers, view) {
  const all = layers.blocks.flatMap(b => b.operators.map(o => ({...o, block: b.name, number: b.number}))).filter(o => o.seconds > 0 && !o.collective);
  const works = all.filter(o => o.intensity), time = those => those.reduce((sum, o) => sum + o.seconds * o.number, 0);
  const ridge = layers.blocks[0].ridge, peak = view.peak_flops, W = 520, H = 280, left = 46, foot = 34;
  const X = [Math.min(ridge / 20, ...works.map(o => o.intensity / 2)), Math.max(ridge * 20, ...works.map(o => 2 * o.intensity))];
  const Y = [Math.min(peak / 50, ...works.map(o => o.flops / o.seconds / 2)), peak * 2];
  const at = (v, [a, b], size) => size * Math.log(Math.min(Math.max(v, a), b) / a) / Math.log(b / a);
  const x = v => left + at(v, X, W - left - 8), y = v => H - foot - at(v, Y, H - foot - 8);
  const line = s('path', {class: 'roof', d: `M${x(X[0])},${y(peak / ridge * X[0])} L${x(ridge)},${y(peak)} L${x(X[1])},${y(peak)}`});
  const powers = ([a, b]) => [...Array(25).keys()].map(i => 10 ** (i - 4)).filter(v => v >= a && v <= b);
  const short = v => v >= 1e15 ? v / 1e15 + ' P' : v >= 1e12 ? v / 1e12 + ' T' : v >= 1e9 ? v / 1e9 + ' G' : String(v);
  const ticks = powers(X).map(v => s('text', {x: x(v), y: H - foot + 14, 'text-anchor': x(v) > W - 30 ? 'end' : 'middle'}, String(v)));
  const sides = powers(Y).flatMap(v => [s('text', {x: left - 5, y: y(v) + 4, 'text-anchor': 'end'}, short(v)), s('path', {class: 'axis', d: `M${left},${y(v)} H${W - 8}`})]);
  const longest = Math.max(...works.map(o => o.seconds * o.number));
  const dots = works.map(o => s('circle', {class: `dot c${BOUND[o.bound]}`, cx: x(o.intensity), cy: y(o.flops / o.seconds), r: (2 + 7 * Math.sqrt(o.seconds * o.number / longest)).toFixed(1),
    'data-tip': `${o.block}: ${o.operator} (${o.phase}), ${number(o.intensity)} FLOP/B, ${number(o.flops / o.seconds / 1e12)} TFLOP/s, ${number(1e6 * o.seconds)} µs, bound by ${o.bound}`}));
  figure('roofline', 'Roofline of the operators', s('svg', {viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': 'roofline'}, sides, ticks, line, dots, s('text', {x: (W + left) / 2, y: H - 4, 'text-anchor': 'middle'}, 'FLOP for a byte of device memory'), s('text', {x: left, y: 10}, 'FLOP/s')),
    legend([...new Set(works.map(o => o.bound))].map(b => ['bound by ' + b, BOUND[b]])), h('p', {class: 'note'}, 'The line: peak in bf16, bandwidth of device memory. A dot is as large as its time in a micro-batch. Kernels that only move bytes take ' + percent(1 - time(works) / time(all), 0) + ' of the time.'));
}
function layouts(found, view, free) {
  const row = each => {
    const query = new URLSearchParams(free);
    for (const [k, v] of Object.entries(each.fields)) query.set(k, Array.isArray(v) ? v.join(',') : v);
    const now = Object.entries(each.fields).every(([k, v]) => String(view.recipe[k] ?? '') === String(v));
    return h('tr', now ? {class: 'now'} : {}, h('td', {}, h('a', {href: '?' + query, 'data-go': String(query)}, each.words)),
      h('td', {class: 'n'}, each.expected.middle < 1000 ? each.expected.middle.toPrecision(3) : number(each.expected.middle), h('small', {}, `${number(each.expected.low)}–${number(each.expected.high)}`)),
      h('td', {class: 'n'}, number(each.tgs * each.step_seconds / each.expected.middle)), h('td', {class: 'n'}, gib(each.memory.margin), h('small', {}, each.memory.status.replace('-', ' '))));
  };
  figure('layouts', 'Best layouts', h('div', {class: 'wide'}, h('table', {}, h('thead', {}, h('tr', {}, ['layout', 'step s, 90 %', 'tokens/s/GPU', 'GiB to spare'].map((t, i) => h('th', {class: i ? 'n' : ''}, t)))), h('tbody', {}, [...found.best].sort((a, b) => a.expected.middle - b.expected.middle).slice(0, 8).map(row)))),
    h('p', {class: 'note'}, `${found.counts.combinations.toLocaleString('en')} combinations, ${found.gap === 0 ? 'exact' : `the best of ${number(found.seconds, 2)} s${found.gap ?? found.gap_to_peak ? `, none more than ${number(1 / (1 - (found.gap ?? found.gap_to_peak)))} times as fast` : ''}`}; steps as measured runs let expect them.`));
}

// -- controls --------------------------------------------------------------------------------------------------------
form.addEventListener('input', () => go(read(), 250));
form.addEventListener('submit', e => { e.preventDefault(); go(read()); });
$('auto').addEventListener('click', () => go(new URLSearchParams([...read()].filter(([k]) => FIELDS.includes(k) && !LAYOUT.includes(k)))));
addEventListener('click', e => { const a = e.target.closest('[data-go]'); if (a && !e.metaKey && !e.ctrlKey) { e.preventDefault(); history.pushState(null, '', location.href); go(new URLSearchParams(a.dataset.go)); } });
addEventListener('popstate', () => go(asked()));
addEventListener('pointermove', e => {
  const over = e.target.closest?.('[data-tip]'), tip = $('tip');
  tip.hidden = !over; if (!over) return;
  tip.textContent = over.dataset.tip;
  tip.style.left = Math.min(e.clientX + 12, innerWidth - tip.offsetWidth - 8) + 'px'; tip.style.top = Math.min(e.clientY + 14, innerHeight - tip.offsetHeight - 8) + 'px';
});
(async () => {
  const known = await ask('catalogue', '');
  const options = (name, values, first) => form.elements[name].append(...(first === undefined ? [] : [h('option', {value: ''}, first)]), ...values.map(v => h('option', {}, v)));
  options('model', known.models); options('gpu', known.gpus); options('framework', known.frameworks.filter(f => f !== 'megatron-lm'));
  for (const name of ['precision', 'recompute_granularity', 'data_parallel_sharding']) options(name, known.fields.find(f => f.name === name).choices, name === 'precision' ? 'bf16' : 'auto');
  go(location.search.length > 1 ? asked() : new URLSearchParams(FIRST));
})();
