// The first screen's heat map: the mean error by GPU and family.
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
