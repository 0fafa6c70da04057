// The table of rows: drawn in portions, so that thousands cost no more than the first screen.
const COLUMNS = [
  {key: 'id', name: 'run', width: '17%'}, {key: 'model', name: 'model', width: '10.5%', wide: true}, {key: 'gpu', name: 'GPU', width: '8%', wide: true},
  {key: 'gpus', name: 'GPUs', n: true, width: '5%', wide: true}, {key: 'framework', name: 'framework', width: '8.5%', wide: true},
  {key: 'precision', name: 'precision', width: '7%', minor: true}, {key: 'parallel', name: 'parallel', width: '8%', minor: true},
  {key: 'measured', name: 'measured', n: true, width: '7.2%', help: 'tokens/s/GPU'},
  {key: 'tgs', name: 'projected', n: true, width: '7.3%', help: 'tokens/s/GPU'},
  {key: 'low', name: '90 % interval', n: true, width: '11%', minor: true, help: 'of tokens/s/GPU; held out only; orange: the measurement is outside'},
  {key: 'error', name: 'error, %', n: true, width: '6%', help: 'projected / measured − 1; sorted by its size'},
  {key: 'gib', name: 'GiB', n: true, width: '4.6%', minor: true, help: 'projected peak memory'},
  {key: 'gibError', name: 'GiB error, %', n: true, width: '5.5%', minor: true}, {key: 'status', name: 'status', width: '6.4%', wide: true},
];
const SORT_BY = {error: 'size'};
const FIRST = 25, PORTION = 200;
const kind = c => [c.n && 'n', c.minor && 'minor', c.wide && 'wider'].filter(Boolean).join(' ');

function cells(r) {
  const head = `<td class="name"><button type="button" class="link" tabindex="-1">${broken(r.id)}</button><span class="sub">${broken([r.model, r.gpus + ' × ' + r.gpu, r.framework].filter(Boolean).join(' · '))}</span></td>`
    + `<td class="wider">${broken(r.model)}</td><td class="wider">${broken(r.gpu)}</td><td class="n wider">${r.gpus || none}</td>`
    + `<td class="wider">${escaped(r.framework)}</td><td class="minor">${escaped(r.precision)}</td><td class="minor">${escaped(r.parallel)}</td><td class="n">${number(r.measured)}</td>`;
  const status = `<td class="wider">${escaped(r.status.replaceAll('-', ' '))}</td>`;
  // A reason stands where the figures would: as wide as those that are shown (the style sheet hides the others).
  if (REFUSED.has(r.status)) return head + `<td class="reason" colspan="${matchMedia('(max-width: 900px)').matches ? 2 : 5}">${escaped(cut(r.reason, 150))}</td>${status}`;
  const outside = r.low !== null && r.measured !== null && (r.measured < r.low || r.measured > r.high);
  const span = r.low === null ? none : `${figure(r.low)}–${figure(r.high)}`;
  return head + `<td class="n">${number(r.tgs)}</td><td class="n minor${outside ? ' off' : ''}">${span}</td>`
    + `<td class="n${r.size > .1 ? ' off' : ''}">${points(r.error)}</td><td class="n minor">${r.gib === null ? none : r.gib.toFixed(1)}</td>`
    + `<td class="n minor">${points(r.gibError)}</td>${status}`;
}

function rowTable(table, onSort, onOpen) {
  const body = table.tBodies[0], end = document.getElementById('end'), further = document.getElementById('further');
  let rows = [], drawn = 0;
  table.tHead.innerHTML = '<tr>' + COLUMNS.map(c => `<th data-key="${c.key}" class="${kind(c)}" style="width:${c.width}" title="${escaped(c.help || '')}"><button type="button">${c.name}</button></th>`).join('') + '</tr>';
  table.tHead.addEventListener('click', e => { const th = e.target.closest('th'); if (th) onSort(th.dataset.key); });
  const portion = size => {
    body.insertAdjacentHTML('beforeend', rows.slice(drawn, drawn + size).map((r, n) => `<tr class="row" data-at="${drawn + n}">${cells(r)}</tr>`).join(''));
    drawn = Math.min(rows.length, drawn + size);
    end.textContent = `${drawn} of ${rows.length} rows`;
    further.hidden = drawn === rows.length;
  };
  further.addEventListener('click', () => {
    const next = drawn;
    portion(PORTION);
    focusOn(body.rows[next]);
  });
  // One row is in the order of tabs; arrows go to the ones above and below.
  const focusOn = row => {
    if (!row) return;
    body.querySelectorAll('button[tabindex="0"]').forEach(b => { b.tabIndex = -1; });
    const button = row.querySelector('button');
    button.tabIndex = 0;
    button.focus();
  };
  body.addEventListener('keydown', e => {
    const row = e.target.closest('tr.row');
    if (!row || !['ArrowDown', 'ArrowUp'].includes(e.key)) return;
    e.preventDefault();
    if (e.key === 'ArrowDown' && !row.nextElementSibling && drawn < rows.length) portion(PORTION);
    focusOn(e.key === 'ArrowDown' ? row.nextElementSibling : row.previousElementSibling);
  });
  body.addEventListener('click', e => {
    const row = e.target.closest('tr.row');
    if (row && !String(getSelection())) { focusOn(row); onOpen(rows[row.dataset.at]); }
  });
  return (found, sort) => {
    const down = sort.startsWith('-'), key = sort.replace(/^-/, '');
    rows = sorted(found, SORT_BY[key] || key, down);
    body.textContent = '';
    drawn = 0;
    portion(FIRST);
    if (body.rows.length) body.rows[0].querySelector('button').tabIndex = 0;
    for (const th of table.tHead.rows[0].cells) {
      if (th.dataset.key === key) th.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      else th.removeAttribute('aria-sort');
    }
    table.dataset.shown = rows.length;
    return rows;
  };
}
