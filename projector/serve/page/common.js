// Tables that the page was written with sort too.
document.querySelectorAll('table.written th button').forEach(b => b.addEventListener('click', () => {
  const th = b.closest('th'), table = th.closest('table'), body = table.tBodies[0];
  const i = [...th.parentNode.children].indexOf(th), up = th.getAttribute('aria-sort') !== 'ascending';
  const key = r => {
    const t = r.cells[i].textContent.trim(), v = parseFloat(t.replace('−', '-').replace(/[\s\u2009](?=\d{3})/g, ''));
    return th.classList.contains('n') ? (isNaN(v) ? -Infinity : v) : t.toLowerCase();
  };
  [...body.rows].map(r => [key(r), r]).sort((a, c) => (a[0] > c[0] ? 1 : a[0] < c[0] ? -1 : 0) * (up ? 1 : -1)).forEach(p => body.append(p[1]));
  table.querySelectorAll('th').forEach(h => h.removeAttribute('aria-sort'));
  th.setAttribute('aria-sort', up ? 'ascending' : 'descending');
}));

document.getElementById('theme').addEventListener('click', () => {
  const root = document.documentElement, dark = root.dataset.theme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  root.dataset.theme = dark === 'dark' ? 'light' : 'dark';
});

// On paper everything that is folded is open.
addEventListener('beforeprint', () => document.querySelectorAll('details:not(.facet):not([open])').forEach(d => { d.open = true; d.dataset.folded = ''; }));
addEventListener('afterprint', () => document.querySelectorAll('details[data-folded]').forEach(d => { d.open = false; delete d.dataset.folded; }));

// Places of the page are scrolled to without the address, which holds the filters.
document.querySelectorAll('[data-to]').forEach(a => a.addEventListener('click', e => {
  e.preventDefault();
  document.getElementById(a.dataset.to).scrollIntoView({behavior: 'smooth'});
}));
