/* The charts of a board, side by side: each with its buttons, and what is under the pointer or the cursor in words. */

const HINT = "Drag: zoom in on a part. Wheel, once clicked, or + and −: zoom. Arrow keys: values. 0: the whole chart.";

function render({ model, el }) {
  const root = make("div", { className: "ls lk-charts" });
  el.classList.add("lk-room");
  el.append(root);
  let asked = 0, charts = [];
  // however much comes, a page draws once in a frame, and not while nobody can see it
  const draw = () => { asked ||= requestAnimationFrame(() => { asked = 0; charts.forEach((chart) => chart.draw()); }); };
  const load = () => {
    const panels = model.get("panels").map(unpack);
    const titles = (those) => those.map(({ title }) => title).join("\n");
    if (titles(charts.map(({ panel }) => panel)) !== titles(panels)) {
      charts = panels.map((panel) => new Chart(model, panel, draw));
      root.replaceChildren(...charts.map((chart) => chart.box));
    }
    charts.forEach((chart, i) => (chart.panel = panels[i]));
    draw();
  };
  const resized = new ResizeObserver(draw);
  resized.observe(root);
  model.on("change:panels", load);
  model.on("change:logarithmic", draw);
  load();
  return () => {
    resized.disconnect();
    cancelAnimationFrame(asked);
    model.off("change:panels", load);
    model.off("change:logarithmic", draw);
  };
}

/** A panel with its lines as numbers: [x, y] of each. */
function unpack(panel) {
  const numbers = (bytes) => new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  return { ...panel, lines: panel.lines.map((line) => line.map(numbers)) };
}

/** One chart: `zoom` is the part that is shown, null for all of it; `cursor` the x whose values are told. */
class Chart {
  constructor(model, panel, changed) {
    Object.assign(this, { model, panel, changed, zoom: null, cursor: null, band: null });
    const button = (text, title, act) => make("button", { type: "button", textContent: text, title, "aria-label": title, onclick: act });
    this.log = button("log", "Loss on a logarithmic axis, or not (key l)", () => this.scale());
    this.whole = button("all", "The whole chart again (key 0, or a double click). Drag in the chart to zoom in on a part", () => this.reset());
    const buttons = [this.log, this.whole, button("save", "Save this chart as an SVG picture", () => save(this))];
    this.log.hidden = !panel.log;
    this.picture = document.createElementNS(SVG, "svg");
    const look = { tabindex: 0, role: "img", "data-lm-suppress-shortcuts": "true" };
    for (const [name, value] of Object.entries(look)) this.picture.setAttribute(name, value);
    this.tip = make("div", { className: "lk-tip", hidden: true });
    this.tip.setAttribute("aria-live", "polite");
    const head = make("div", { className: "lk-chart-head" }, make("b", { textContent: panel.title }), ...buttons);
    this.box = make("div", { className: "lk-chart" }, head, this.picture, this.tip);
    listen(this);
  }

  get logarithmic() { return Boolean(this.panel.log) && this.model.get("logarithmic"); }

  scale() {
    if (!this.panel.log) return;
    this.zoom = null;
    this.model.set("logarithmic", !this.model.get("logarithmic"));
    this.model.save_changes();
    this.changed();
  }

  reset() { this.zoom = null; this.changed(); }

  /** Show `times` as much of the x axis, around the cursor or a place. */
  closer(times, around = this.cursor) {
    const { x0, x1, y0, y1 } = this.shape;
    const middle = around ?? (x0 + x1) / 2, wide = this.panel.wide;
    const from = Math.max(0, middle - (middle - x0) * times), to = Math.min(wide, middle + (x1 - middle) * times);
    this.zoom = from <= 0 && to >= wide ? null : { x: [from, to], y: this.zoom?.y ?? null };
    if (to - from > wide / 1e5) this.changed();
  }

  /** Put the cursor at a place on the x axis, or take it away. */
  point(x) {
    this.cursor = x;
    this.changed();
  }

  draw() {
    const width = this.picture.clientWidth;
    if (!width) return;
    TALL = this.picture.clientHeight;
    this.shape = shapeOf(this, width);
    this.picture.innerHTML = drawing(this);
    this.log.setAttribute("aria-pressed", this.logarithmic);
    this.whole.disabled = !this.zoom;
    const said = this.model.get("entrants").map(({ label }, i) => {
      const [x, y] = valueAt(this.panel.lines[i], Infinity) ?? [];
      return x === undefined ? `${label}: nothing yet` : `${label}: ${number(y)} at ${number(x)} ${this.panel.x}`;
    }).join(", ");
    this.picture.setAttribute("aria-label", `${this.panel.title}: ${said}. ${HINT}`);
    tell(this, width);
  }
}

/** What is at the cursor, beside it. */
function tell(chart, width) {
  const { panel, cursor, shape, tip } = chart;
  tip.hidden = cursor === null;
  if (cursor === null) return;
  const rows = [make("div", { className: "lk-unit", textContent: `${panel.y}, at ${number(cursor)} ${panel.x}` })];
  chart.model.get("entrants").forEach(({ label, color }, i) => {
    const found = valueAt(panel.lines[i], cursor);
    if (!found) return;
    const sign = make("i");
    sign.style.background = color;
    rows.push(make("div", {}, sign, `${label}: `, make("b", { textContent: number(found[1]) })));
  });
  const near = panel.marks.filter(([x]) => Math.abs(shape.px(x) - shape.px(cursor)) < 7);
  for (const [, , said] of near) rows.push(make("div", { className: "lk-done", textContent: said }));
  panel.reached.forEach((place, i) => {
    if (place && Math.abs(shape.px(place[0]) - shape.px(cursor)) < 7)
      rows.push(make("div", { textContent: `${chart.model.get("entrants")[i].label} reached the target at ${number(place[0])} ${panel.x}` }));
  });
  tip.replaceChildren(...rows);
  const at = shape.px(cursor), wide = tip.offsetWidth;
  tip.style.left = `${Math.max(0, at + 12 + wide > width ? at - 12 - wide : at + 12)}px`;
}

/** Pointer, wheel and keys. */
function listen(chart) {
  const { picture } = chart;
  const place = (event) => {
    const { x, y } = pointIn(picture, event);
    return [x, y];
  };
  let begun = null, clicked = -Infinity;
  picture.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    begun = place(event);
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    const here = place(event);
    const moved = begun && Math.abs(here[0] - begun[0]) > 4;
    chart.band = moved ? [begun, here] : null;
    chart.point(moved ? null : chart.shape.within(here[0]));
  });
  picture.addEventListener("pointerup", (event) => {
    // Two clicks; the browser tells of none where what was pressed has been drawn anew meanwhile.
    if (begun && !chart.band && event.timeStamp - clicked < 500) chart.reset();
    clicked = begun && !chart.band ? event.timeStamp : -Infinity;
    if (chart.band) chart.zoom = chart.shape.part(...chart.band) ?? chart.zoom;
    begun = chart.band = null;
    chart.changed();
  });
  const left = () => { begun = chart.band = null; chart.point(null); };
  for (const name of ["pointercancel", "pointerleave", "blur"]) picture.addEventListener(name, left);
  picture.addEventListener("wheel", (event) => {
    if (document.activeElement !== picture) return;
    event.preventDefault();
    chart.closer(event.deltaY > 0 ? 1.2 : 1 / 1.2, chart.shape.within(place(event)[0]));
  }, { passive: false });
  picture.addEventListener("keydown", (event) => {
    const { x0, x1 } = chart.shape;
    const go = (step) => chart.point(Math.min(x1, Math.max(x0, (chart.cursor ?? (step > 0 ? x0 : x1)) + (step * (x1 - x0)) / 60)));
    const acts = {
      ArrowRight: () => go(1), ArrowLeft: () => go(-1), Home: () => chart.point(x0), End: () => chart.point(x1),
      "+": () => chart.closer(1 / 1.5), "=": () => chart.closer(1 / 1.5), "-": () => chart.closer(1.5),
      0: () => chart.reset(), l: () => chart.scale(), Escape: () => chart.point(null),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    acts[event.key]();
  });
}

export default { render };
