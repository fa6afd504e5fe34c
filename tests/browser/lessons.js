// What the tests of lessons ask a page of JupyterLab: window.lesson.
(() => {
  const notebook = () => window.jupyterapp.shell.currentWidget.content;
  const cells = () => notebook().widgets.map((cell, number) => ({ cell, number, model: cell.model }));
  const code = () => cells().filter(({ model }) => model.type === "code");
  const ROOTS = ".lk-board, .ls-stage, .ls-timeline, .ls-predict, .ls-verdict";
  const CONTROLS = "button, select, input, .noUi-base";
  const frames = (n) => new Promise((done) => { const next = () => (n-- > 0 ? requestAnimationFrame(next) : done()); next(); });

  /** How many cells wait or run. */
  const busy = () => [...document.querySelectorAll(".jp-CodeCell .jp-InputPrompt")].filter((p) => p.textContent.includes("*")).length;

  /** What cells say that no lesson should: errors, and lines on stderr. */
  const wrong = () => code().flatMap(({ model, number }) => model.outputs.toJSON()
    .filter((o) => o.output_type === "error" || o.name === "stderr")
    .map((o) => `cell ${number}: ${o.ename ?? ""} ${o.evalue ?? [o.text].flat().join("")}`));

  const inked = (canvas) => {
    if (!canvas.width || !canvas.height) return false;
    const dots = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return new Set(dots).size > 2;
  };

  /** Each widget, by the number of its cell and its own in there: what is drawn in it, after it was brought on the screen. */
  async function pictures() {
    const found = {};
    for (const { cell, number } of code()) {
      const roots = [...cell.node.querySelectorAll(ROOTS)];
      for (const [which, root] of roots.entries()) {
        root.scrollIntoView({ block: "center" });
        await frames(3);
        const blank = [];
        for (const chart of root.querySelectorAll(".lk-chart")) if (![...chart.querySelectorAll("path.line")].some((line) => line.getTotalLength() > 5)) blank.push(chart.textContent.slice(0, 60));
        for (const lane of root.querySelectorAll(".lk-row")) if (!lane.querySelector("path")) blank.push(`lane ${lane.dataset.task}`);
        for (const canvas of root.querySelectorAll(".lanes canvas, .stage-canvas canvas")) if (!inked(canvas)) blank.push(`canvas in ${root.className}`);
        const kind = root.className.match(/lk-board|ls-stage|ls-timeline|ls-predict|ls-verdict/)[0];
        found[`${number}.${which} ${kind}`] = {
          blank,
          live: Boolean(root.querySelector("button[title^='End everything']:not(:disabled)")),
          text: root.textContent.replace(/\s+/g, " ").trim(),
          shapes: root.querySelectorAll("svg path[d]:not([d='']), svg rect, svg circle, svg text").length,
          high: root.offsetHeight,
        };
      }
    }
    return found;
  }

  // Watch where controls stand: each, within its widget and within its cell's output, has one place for good.
  // A widget may take half a second to stand: JupyterLab builds it in several turns.
  const moved = {}, watched = new WeakMap();
  let seen = 0;
  function look() {
    if (!window.jupyterapp?.shell?.currentWidget?.content?.widgets) return;
    for (const { cell, number } of code()) {
      const out = cell.node.querySelector(".jp-OutputArea");
      for (const [which, root] of [...cell.node.querySelectorAll(ROOTS)].entries()) {
        const { top, bottom, width } = root.getBoundingClientRect(), now = performance.now();
        if (!watched.has(root)) watched.set(root, { since: now, places: {} });
        const { since, places } = watched.get(root);
        if (now - since < 500) continue;
        if (!root.offsetHeight || bottom < 0 || top > innerHeight) continue; // what is not seen does not jump
        const of = [root, ...root.querySelectorAll(CONTROLS)];
        for (const [i, control] of of.entries()) {
          const box = control.getBoundingClientRect();
          if (!box.height) continue;
          const name = (control === root ? "whole" : control.title || control.getAttribute("aria-label") || control.closest(".widget-inline-hbox")?.textContent || control.className).slice(0, 40);
          const key = `cell ${number}, widget ${which}, ${i} ${name}, ${Math.round(width)} wide`;
          const from = (control === root ? out : root).getBoundingClientRect().top;
          const place = Math.round(box.top - from);
          if (!(key in places)) seen += 1;
          places[key] ??= place;
          if (places[key] !== place) (moved[key] ??= [places[key]]).at(-1) !== place && moved[key].push(place);
        }
      }
    }
  }
  setInterval(look, 50);
  window.lesson = { busy, wrong, pictures, frames, moved: () => moved, seen: () => seen, active: () => notebook().activeCellIndex };
})();
