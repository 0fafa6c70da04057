// What a reader would see of the page, for its tests.
window.probe = {
  // Pairs of texts that stand on each other by more than a pixel: every line of every text node, layer by layer.
  overlaps() {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), boxes = [];
    const unseen = 'script, style, noscript, dialog:not([open]), [hidden], option, #tip';
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
      const parent = node.parentElement, text = node.textContent.trim();
      if (!text || parent.closest(unseen) || !parent.checkVisibility({visibilityProperty: true})) continue;
      const layer = parent.closest('#bar') ? 'bar' : parent.closest('dialog') ? 'dialog' : 'page';
      const range = document.createRange();
      range.selectNodeContents(node);
      for (const box of range.getClientRects()) if (box.width > 1 && box.height > 1) boxes.push([box, text, layer]);
    }
    boxes.sort((a, b) => a[0].top - b[0].top);
    const found = [];
    boxes.forEach(([a, text, layer], i) => {
      for (let j = i + 1; j < boxes.length && boxes[j][0].top < a.bottom - 1.5; j++) {
        const [b, other, above] = boxes[j];
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left), down = Math.min(a.bottom, b.bottom) - b.top;
        if (above === layer && across > 1.5 && down > 3) found.push(`${text} | ${other}`);
      }
    });
    return found;
  },
  // Texts wider than the cell, tile or button that holds them.
  cut: () => [...document.querySelectorAll('#heat td, #rows td, #rows th, .tiles li, .near td, .near th, .shares td')]
    .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1).map(e => e.textContent),
  tooWide: () => document.documentElement.scrollWidth - innerWidth,
  focus() {
    const on = document.activeElement, style = getComputedStyle(on);
    return [on.textContent, style.outlineStyle, parseFloat(style.outlineWidth)];
  },
  // Relative luminance of the steps of the heat map's scale.
  steps: () => [...document.querySelectorAll('.steps span')].map(s => getComputedStyle(s).backgroundColor.match(/[\d.]+/g)
    .slice(0, 3).reduce((sum, v, i) => sum + [.2126, .7152, .0722][i] * (v / 255) ** 2.2, 0)),
  heat: () => [...document.querySelectorAll('#heat button[data-gpu][data-family]')].map(b => [b.dataset.gpu, b.dataset.family,
    b.querySelector('b').textContent, b.querySelector('small').textContent]),
  // Where the first mark of a chart is on the screen.
  mark(id) {
    const host = document.getElementById(id), box = host.getBoundingClientRect();
    return [box.left + host.marks[0].x, box.top + host.marks[0].y];
  },
  box: selector => document.querySelector(selector).getBoundingClientRect().toJSON(),
  count: selector => document.querySelectorAll(selector).length,
  time(act) {
    const began = performance.now();
    act();
    return performance.now() - began;
  },
  shown: () => document.getElementById('rows').dataset.shown,
  reasons: () => [...document.querySelectorAll('#refusals tbody tr')].map(r => [r.cells[2].textContent, Number(r.cells[0].textContent)]),
};
