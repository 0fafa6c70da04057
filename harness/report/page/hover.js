// Marks of a chart under the pointer and under the keyboard: the nearest within reach tells its row, arrows go from one to the
// next, Enter and a click open the row, Escape lets go.
function hover(host, chosen) {
  const tip = document.getElementById('tip');
  let current = null;
  const show = (mark, left, top) => {
    current = mark;
    tip.hidden = !mark;
    const ring = host.querySelector('.ring');
    if (ring) ring.setAttribute('d', mark ? mark.ring || circle(mark.x, mark.y, 6.5) : '');
    if (!mark) return;
    tip.innerHTML = (mark.note ? escaped(mark.note) + '<br>' : '') + (mark.row ? told(mark.row) : '');
    tip.style.left = Math.max(4, Math.min(left + 14, innerWidth - tip.offsetWidth - 8)) + 'px';
    tip.style.top = Math.max(4, Math.min(top + 14, innerHeight - tip.offsetHeight - 8)) + 'px';
  };
  const nearest = event => {
    const box = host.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = null, reach = 14 * 14;
    for (const m of host.marks || []) {
      const d = (m.x - x) ** 2 + (m.y - y) ** 2;
      if (d < reach) [best, reach] = [m, d];
    }
    return best;
  };
  host.tabIndex = 0;
  host.setAttribute('role', 'group');
  host.setAttribute('aria-label', (host.dataset.label || 'chart') + ': arrow keys go from run to run, Enter opens one');
  host.addEventListener('mousemove', event => show(nearest(event), event.clientX, event.clientY));
  host.addEventListener('mouseleave', () => show(null));
  host.addEventListener('blur', () => show(null));
  host.addEventListener('click', event => {
    const mark = event.target.closest('[data-filter]') ? null : nearest(event);
    if (mark && mark.row) chosen(mark.row);
  });
  host.addEventListener('keydown', event => {
    const marks = host.marks || [], move = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 25, PageUp: -25}[event.key];
    if (event.key === 'Escape') return show(null);
    if (event.key === 'Enter' && current && current.row) {
      event.preventDefault();
      return chosen(current.row);
    }
    if (!(move || event.key === 'Home' || event.key === 'End') || !marks.length || event.target !== host) return;
    event.preventDefault();
    const ordered = [...marks].sort((a, b) => a.x - b.x || a.y - b.y), last = ordered.length - 1;
    const to = event.key === 'Home' ? 0 : event.key === 'End' ? last : current ? ordered.indexOf(current) + move : move > 0 ? 0 : last;
    const mark = ordered[Math.min(last, Math.max(0, to))];
    let box = host.getBoundingClientRect();
    if (box.top + mark.y < 0 || box.top + mark.y > innerHeight) { host.scrollIntoView({block: 'center'}); box = host.getBoundingClientRect(); }
    show(mark, box.left + mark.x, box.top + mark.y);
  });
}

const told = r => `<b>${escaped(r.id)}</b><br>${escaped([r.model, r.gpus + ' × ' + r.gpu, r.framework, r.precision, r.parallel].filter(Boolean).join(', '))}`
  + (r.error === null ? '' : `<br>measured ${number(r.measured)}, projected ${number(r.tgs)} tokens/s/GPU: ${signed(r.error)}`)
  + (r.low === null ? '' : `<br>90 % interval ${number(r.low)} to ${number(r.high)}`)
  + (r.gibError === null ? '' : `<br>memory measured ${r.measured_gib.toFixed(1)}, projected ${r.gib.toFixed(1)} GiB: ${signed(r.gibError)}`);
