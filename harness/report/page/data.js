// The rows of the page: columns back into objects, filters, sorting, and the figures of a selection.
const DATA = JSON.parse(document.getElementById('data').textContent);
const REFUSED = new Set(['unsupported', 'invalid', 'no-measurement']);
const FACETS = {gpu: 'GPU', framework: 'framework', family: 'family', model: 'model', status: 'status', precision: 'precision',
  suite: 'suite', tp: 'TP', pp: 'PP', ep: 'EP', cp: 'CP', sharding: 'data-parallel sharding', memory_kind: 'memory measured as'};

const words = column => column.at.map(i => column.words[i]);
const RUNS = (() => {
  const columns = Object.fromEntries(Object.entries(DATA.runs).map(([k, c]) => [k, c.words ? words(c) : c]));
  return columns.id.map((_, i) => Object.fromEntries(Object.entries(columns).map(([k, c]) => [k, c[i]])));
})();

const parallel = r => [['TP', r.tp], ['PP', r.pp], ['EP', r.ep], ['CP', r.cp]].filter(([, v]) => v && v !== '1')
  .map(([k, v]) => k + v).join(' ');

const made = new Map();
function rowsOf(predictor, fit) {
  const key = predictor + ' ' + fit;
  if (made.has(key)) return made.get(key);
  const p = DATA.predictors[predictor], status = words(p.status), reason = words(p.reason), assumed = words(p.assumed);
  const rows = RUNS.map((run, i) => {
    const tgs = p[fit][i], held = fit === 'heldout';
    const error = tgs !== null && run.measured !== null ? tgs / run.measured - 1 : null;
    const gibError = p.gib[i] !== null && run.measured_gib !== null ? p.gib[i] / run.measured_gib - 1 : null;
    const row = {...run, i, tgs, error, size: error === null ? null : Math.abs(error), step: p['step ' + fit][i],
      low: held ? p.low[i] : null, high: held ? p.high[i] : null, gib: p.gib[i], gibError, status: status[i],
      reason: reason[i], assumed: assumed[i], shares: p.shares[i], parallel: parallel(run)};
    row.text = [run.id, run.model, run.gpu, run.framework, run.precision, run.group, run.source, run.label, row.parallel,
      row.status, row.reason].join(' ').toLowerCase();
    return row;
  }).filter(row => row.status);
  made.set(key, rows);
  return rows;
}

function passes(row, filters, needles) {
  for (const [key, wanted] of Object.entries(filters)) {
    if (!wanted.has(row[key]) && !(key === 'status' && wanted.has('refused') && REFUSED.has(row.status))) return false;
  }
  return needles.every(needle => row.text.includes(needle));
}

function select(rows, filters, text) {
  const needles = text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter(row => passes(row, filters, needles));
}

// Missing figures come last in either direction; equal ones keep the order of the run's name.
function sorted(rows, key, down) {
  const number = (a, b) => a - b, text = (a, b) => a < b ? -1 : a > b ? 1 : 0, none = v => v === null || v === undefined || v === '';
  return [...rows].sort((x, y) => {
    const a = x[key], b = y[key];
    if (none(a) || none(b)) return none(a) - none(b) || text(x.id, y.id);
    return (typeof a === 'number' ? number(a, b) : text(a, b)) * (down ? -1 : 1) || text(x.id, y.id);
  });
}

function grouped(rows, key) {
  const found = new Map();
  for (const row of rows) {
    const value = typeof key === 'function' ? key(row) : row[key];
    if (!found.has(value)) found.set(value, []);
    found.get(value).push(row);
  }
  return found;
}

const mean = values => values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
function quantile(ordered, q) {
  const at = (ordered.length - 1) * q, low = Math.floor(at), high = Math.ceil(at);
  return ordered[low] + (ordered[high] - ordered[low]) * (at - low);
}

// The same figures as the tables: harness/accuracy.py (macro: every family × GPU × framework weighs the same).
function summary(rows) {
  const compared = rows.filter(r => r.error !== null), spans = compared.filter(r => r.low !== null);
  const cells = [...grouped(compared, r => [r.family, r.gpu, r.framework].join('|')).values()];
  return {rows: rows.length, compared: compared.length, mape: mean(compared.map(r => r.size)), bias: mean(compared.map(r => r.error)),
    macro: mean(cells.map(c => mean(c.map(r => r.size)))), within: compared.filter(r => r.size <= 0.1).length,
    spans: spans.length, inside: spans.filter(r => r.low <= r.measured && r.measured <= r.high).length,
    refused: rows.filter(r => REFUSED.has(r.status)).length};
}

// Formats
const escaped = text => String(text).replace(/[&<>"']/g, c => ({'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;'})[c]);
const none = '–';
const percent = (v, digits = 1) => v === null ? none : (100 * v).toFixed(digits) + ' %';
const signed = (v, digits = 1) => v === null ? none : (v < 0 ? '−' : '+') + (100 * Math.abs(v)).toFixed(digits) + ' %';
const number = v => v === null ? none : v >= 100 ? Math.round(v).toLocaleString('en').replaceAll(',', '\u2009') : v.toPrecision(3);
const figure = v => v >= 1000 ? (v / 1000).toPrecision(v >= 99950 ? 4 : 3) + 'k' : v.toPrecision(3);
const broken = text => escaped(text).replace(/([_./])/g, '$1<wbr>');
const points = v => v === null ? none : (v < 0 ? '−' : '+') + (100 * Math.abs(v)).toFixed(1);
const cut = (text, letters) => text.length <= letters ? text : text.slice(0, letters - 1) + '…';
