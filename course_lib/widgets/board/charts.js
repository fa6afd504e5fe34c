/* The charts of a board, side by side, below the key of their lines: each with its buttons, and what is under the pointer or the cursor in words. */

const HINT = "Drag: zoom in on a part. Wheel, once clicked, or + and −: zoom. Arrow keys: values. 0: the whole chart.";

const button = (text, title, act) => make("button", { type: "button", textContent: text, title, "aria-label": title, onclick: act });

function render({ model, el }) {
  const root = make("div", { className: "lk-charts" }), hidden = new Set();
  el.classList.add("lk-room", "ls");
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  let asked = 0, charts = [];
  // however much comes, a page draws once in a frame, and not while nobody can see it
  const draw = () => { asked ||= requestAnimationFrame(() => { asked = 0; charts.forEach((chart) => chart.draw()); }); };
  const load = () => {
    const panels = model.get("panels").map(unpack);
    const titles = (those) => those.map(({ title }) => title).join("\n");
    if (titles(charts.map(({ panel }) => panel)) !== titles(panels)) {
      charts = panels.map((panel) => new Chart(model, panel, hidden, draw));
      root.replaceChildren(...charts.map((chart) => chart.box));
    }
    charts.forEach((chart, i) => (chart.panel = panels[i]));
    draw();
  };
  if (model.get("entrants").length > 1) el.append(keyOf(model.get("entrants"), hidden, draw));
  el.append(root);
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

/** The key of all charts: a button an entrant, which puts it among the hidden ones or takes it from there. */
function keyOf(entrants, hidden, changed) {
  const buttons = entrants.map((entrant, i) => {
    const toggle = () => {
      hidden.delete(i) || hidden.add(i);
      name.setAttribute("aria-pressed", !hidden.has(i));
      changed();
    };
    const name = make("button", { type: "button", title: "Show its line in all charts, or not", "aria-pressed": true, onclick: toggle });
    name.innerHTML = `${sampled(entrant)}<span>${escaped(entrant.label)}</span>`;
    return name;
  });
  return make("div", { className: "lk-key", role: "group", "aria-label": "Lines of the charts" }, ...buttons);
}

/** A panel with its lines as numbers: [x, y] of each. */
function unpack(panel) {
  const numbers = (bytes) => new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  return { ...panel, lines: panel.lines.map((line) => line.map(numbers)) };
}

/** One chart: `zoom` is the part that is shown, null for all of it; `cursor` the x whose values are told; `hidden` the numbers of entrants. */
class Chart {
  constructor(model, panel, hidden, changed) {
    Object.assign(this, { model, panel, hidden, changed, zoom: null, cursor: null, band: null });
    this.log = button("log", "Loss on a logarithmic axis, or not (key l)", () => this.scale());
    this.whole = button("all", "Show all of the chart (key 0, or a double click)", () => { this.reset(); this.picture.focus(); });
    this.whole.className = "lk-whole";
    this.log.hidden = !panel.log;
    this.picture = document.createElementNS(SVG, "svg");
    const look = { tabindex: 0, role: "img" };
    for (const [name, value] of Object.entries(look)) this.picture.setAttribute(name, value);
    this.tip = make("div", { className: "lk-tip", hidden: true });
    this.tip.setAttribute("aria-live", "polite");
    const head = make("div", { className: "lk-chart-head" }, make("b", { textContent: panel.title }), this.log, saver(this));
    this.box = make("div", { className: "lk-chart" }, head, this.whole, this.picture, this.tip);
    listen(this);
  }

  get logarithmic() { return Boolean(this.panel.log) && this.model.get("logarithmic"); }

  /** The entrants that are not hidden, each with its line and the place where it reached the target. */
  get shown() {
    const { lines, reached } = this.panel;
    return this.model.get("entrants").map((entrant, i) => ({ ...entrant, line: lines[i], reached: reached[i] })).filter((_, i) => !this.hidden.has(i));
  }

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
    PEN.font = `12px ${getComputedStyle(this.box).fontFamily}`;
    this.shape = shapeOf(this, width);
    this.picture.innerHTML = drawing(this);
    this.log.setAttribute("aria-pressed", this.logarithmic);
    this.whole.hidden = !this.zoom;
    const values = this.shown.map(({ label, line }) => {
      const [x, y] = valueAt(line, Infinity) ?? [];
      return x === undefined ? `${label}: nothing yet` : `${label}: ${number(y)} at ${number(x)} ${this.panel.x}`;
    }).join(", ");
    this.picture.setAttribute("aria-label", `${this.panel.title}: ${values || "no line"}. ${HINT}`);
    tell(this);
  }
}

/** What is at the cursor, beside it. */
function tell(chart) {
  const { panel, cursor, shape, tip } = chart;
  tip.hidden = cursor === null;
  if (cursor === null) return;
  const rows = [make("div", { className: "lk-unit", textContent: `${panel.y}, at ${number(cursor)} ${panel.x}` })];
  for (const entrant of chart.shown) {
    const point = valueAt(entrant.line, cursor);
    if (point) rows.push(make("div", { innerHTML: `${sampled(entrant)}${escaped(entrant.label)}: <b>${number(point[1])}</b>` }));
  }
  const near = ([x]) => Math.abs(shape.px(x) - shape.px(cursor)) < 7;
  for (const [, , sentence] of panel.marks.filter(near)) rows.push(make("div", { className: "lk-done", textContent: sentence }));
  for (const { label, reached } of chart.shown)
    if (reached && near(reached)) rows.push(make("div", { textContent: `${label} reached the target at ${number(reached[0])} ${panel.x}` }));
  tip.replaceChildren(...rows);
  const at = shape.px(cursor), wide = tip.offsetWidth, { offsetLeft, parentElement } = chart.box;
  const right = at + 12 + wide <= parentElement.clientWidth - offsetLeft; // beside the cursor, though over another chart
  tip.style.left = `${right ? at + 12 : Math.max(-offsetLeft, at - 12 - wide)}px`;
}

/** The button that opens a menu of the forms in which a chart is saved. A choice closes it, as Escape does, and leaving it. */
function saver(chart) {
  const menu = make("div", { className: "lk-menu" });
  const open = (shown) => {
    menu.hidden = !shown;
    opener.setAttribute("aria-expanded", shown);
  };
  const close = () => { open(false); opener.focus(); };
  const opener = button("", "Save this chart as a picture or a table", () => open(menu.hidden));
  opener.innerHTML = `<svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true"><path d="M7 1v8M3.5 6L7 9.5 10.5 6M1.5 12.5h11" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>`;
  menu.append(...Object.keys(FORMS).map((form) => make("button", { type: "button", textContent: form, onclick: () => { close(); save(chart, form); } })));
  open(false);
  const place = make("div", { className: "lk-saver" }, opener, menu);
  place.addEventListener("focusout", ({ relatedTarget }) => place.contains(relatedTarget) || open(false));
  place.addEventListener("keydown", ({ key }) => key === "Escape" && !menu.hidden && close());
  return place;
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
