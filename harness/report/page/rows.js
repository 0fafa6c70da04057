// The table of rows: drawn in portions as the reader scrolls, so that thousands cost no more than the first screen.
const COLUMNS = [
  {key: 'id', name: 'run', width: '17.5%'}, {key: 'model', name: 'model', width: '10%'}, {key: 'gpu', name: 'GPU', width: '7.5%'},
  {key: 'gpus', name: 'GPUs', n: true, width: '4.5%'}, {key: 'framework', name: 'framework', width: '8%'},
  {key: 'precision', name: 'precision', width: '6.6%', minor: true}, {key: 'parallel', name: 'parallel', width: '8%', minor: true},
  {key: 'measured', name: 'measured', n: true, width: '7.2%', help: 'tokens/s/GPU'},
  {key: 'tgs', name: 'projected', n: true, width: '7.3%', help: 'tokens/s/GPU'},
  {key: 'low', name: '90 % interval', n: true, width: '9%', minor: true, help: 'of tokens/s/GPU; held out only; orange: the measurement is outside'},
  {key: 'error', name: 'error, %', n: true, width: '5.5%', help: 'projected / measured − 1; sorted by its size'},
  {key: 'gib', name: 'GiB', n: true, width: '4.6%', minor: true, help: 'projected peak memory'},
  {key: 'gibError', name: 'GiB error, %', n: true, width: '5.5%', minor: true}, {key: 'status', name: 'status', width: '7%'},
];
const SORT_BY = {error: 'size'};
const PORTION = 120;

// Where the style sheet hides the minor columns.
const narrow = () => matchMedia('(max-width: 900px)').matches;

function cells(r) {
  const head = `<td>${broken(r.id)}</td><td>${broken(r.model)}</td><td>${broken(r.gpu)}</td><td class="n">${r.gpus || none}</td>`
    + `<td>${escaped(r.framework)}</td><td class="minor">${escaped(r.precision)}</td><td class="minor">${escaped(r.parallel)}</td><td class="n">${number(r.measured)}</td>`;
  if (REFUSED.has(r.status)) return head + `<td class="reason" colspan="${narrow() ? 2 : 5}">${escaped(cut(r.reason, 150))}</td><td>${escaped(r.status.replaceAll('-', ' '))}</td>`;
  const outside = r.low !== null && r.measured !== null && (r.measured < r.low || r.measured > r.high);
  const span = r.low === null ? none : `${figure(r.low)}–${figure(r.high)}`;
  return head + `<td class="n">${number(r.tgs)}</td><td class="n minor${outside ? ' off' : ''}">${span}</td>`
    + `<td class="n${r.size > .1 ? ' off' : ''}">${points(r.error)}</td><td class="n minor">${r.gib === null ? none : r.gib.toFixed(1)}</td>`
    + `<td class="n minor">${points(r.gibError)}</td><td>${escaped(r.status.replaceAll('-', ' '))}</td>`;
}

function more(r) {
  const said = [['why', r.reason], ['assumed', r.assumed], ['group', r.group], ['in its group', r.label], ['family', r.family], ['sharding', r.sharding],
    ['memory measured', r.measured_gib === null ? '' : `${r.measured_gib.toFixed(1)} GiB ${r.memory_kind}`],
    ['projected step', r.step === null ? '' : r.step.toPrecision(4) + ' s'], ['source', r.source]];
  const list = said.filter(([, v]) => v).map(([k, v]) => `<dt>${k}</dt><dd>${escaped(v)}</dd>`).join('');
  return `<tr class="more"><td colspan="${COLUMNS.length}"><dl>${list}</dl><div class="chart"></div></td></tr>`;
}

function rowTable(table, onSort) {
  const body = table.tBodies[0], end = document.getElementById('end');
  let rows = [], drawn = 0;
  table.tHead.innerHTML = '<tr>' + COLUMNS.map(c => `<th data-key="${c.key}" class="${c.n ? 'n' : ''}${c.minor ? ' minor' : ''}" style="width:${c.width}" title="${escaped(c.help || '')}"><button type="button">${c.name}</button></th>`).join('') + '</tr>';
  table.tHead.addEventListener('click', e => { const th = e.target.closest('th'); if (th) onSort(th.dataset.key); });
  const portion = () => {
    body.insertAdjacentHTML('beforeend', rows.slice(drawn, drawn + PORTION).map((r, n) => `<tr class="row" data-at="${drawn + n}">${cells(r)}</tr>`).join(''));
    drawn = Math.min(rows.length, drawn + PORTION);
    end.textContent = drawn < rows.length ? `${drawn} of ${rows.length} rows drawn; the others follow as you scroll.` : '';
  };
  body.addEventListener('click', e => {
    const row = e.target.closest('tr.row');
    if (!row || String(getSelection())) return;
    if (row.nextElementSibling?.classList.contains('more')) return row.nextElementSibling.remove();
    const r = rows[row.dataset.at];
    row.insertAdjacentHTML('afterend', more(r));
    const chart = row.nextElementSibling.querySelector('.chart');
    if (r.shares) stacked(chart, [{name: 'step', shares: r.shares.map(v => v / 1000), length: 1, row: r}], false);
  });
  new IntersectionObserver(seen => { if (seen[0].isIntersecting && drawn < rows.length) portion(); }, {rootMargin: '600px'}).observe(end);
  return (found, sort) => {
    const down = sort.startsWith('-'), key = sort.replace(/^-/, '');
    rows = sorted(found, SORT_BY[key] || key, down);
    body.textContent = '';
    drawn = 0;
    portion();
    for (const th of table.tHead.rows[0].cells) {
      if (th.dataset.key === key) th.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      else th.removeAttribute('aria-sort');
    }
    table.dataset.shown = rows.length;
    return rows;
  };
}
