/* The widget: a head with buttons, the whole run in small, the lanes in view, and a key to their colours. */

const HINT = "Arrow keys: from phase to phase. + and −: zoom. Drag: move. Shift and drag: zoom in on a span. Wheel, once clicked: zoom.";
const OVERVIEW = 38; // px

function render({ model, el }) {
  const state = { data: null, view: { from: 0, to: 1, left: 0, width: 1 }, chosen: NONE, message: NONE, lane: 0, arrows: true, band: null };
  const ending = new AbortController();
  const parts = build(model, ending.signal);
  el.append(parts.root);
  const draw = drawer(parts, state);
  const load = async () => {
    const fresh = await unpack(model.get("scene"), model.get("data"));
    if (ending.signal.aborted) return;
    const first = !state.data;
    state.data = fresh;
    if (first) open(state);
    parts.messages.setAttribute("aria-pressed", state.arrows);
    describe(parts, model, state);
    draw();
  };
  listen(parts, state, draw, model, ending.signal);
  model.on("change:scene", load);
  model.on("change:notice", () => (parts.said.textContent = model.get("notice")));
  model.on("change:live", () => (parts.more.hidden = !model.get("live")));
  const resized = new ResizeObserver(draw);
  resized.observe(parts.root);
  const themed = new MutationObserver(draw);
  themed.observe(document.body, { attributes: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw, { signal: ending.signal });
  load().catch((error) => (parts.said.textContent = `The timeline cannot be drawn: ${error.message}`));
  return () => { ending.abort(); resized.disconnect(); themed.disconnect(); };
}

/** All elements, not yet filled. */
function build(model, signal) {
  const button = (text, title) => make("button", { type: "button", textContent: text, title });
  const parts = {
    title: make("span", { className: "ls-title" }),
    badge: make("span"),
    out: button("−", "Zoom out (key −)"),
    into: button("+", "Zoom in (key +)"),
    whole: button("whole run", "Show all of it (key w, or a double click)"),
    messages: button("messages", "Show or hide the messages between tasks (key m)"),
    more: button("read on", "Show what has happened since"),
    perfetto: button("save for Perfetto", "Write a file that you can open at ui.perfetto.dev yourself: nothing is sent anywhere"),
    larger: projector(signal),
    overview: make("canvas", { className: "overview", "aria-hidden": "true" }),
    axis: make("canvas", { "aria-hidden": "true" }),
    lanes: make("div", { className: "lanes", tabIndex: 0, role: "application", "aria-roledescription": "timeline" }, make("canvas")),
    tip: make("div", { className: "tip", hidden: true }),
    note: make("p", { className: "said" }),
    below: make("div", { className: "below" }),
    said: make("p", { className: "said", textContent: HINT }),
    spoken: make("div", { className: "ls-hidden", "aria-live": "polite" }),
  };
  parts.canvas = parts.lanes.firstChild;
  parts.more.hidden = !model.get("live");
  parts.perfetto.hidden = parts.title.hidden = model.get("standalone") === true;
  const p = parts;
  const buttons = [p.out, p.into, p.whole, p.messages, p.more, p.perfetto, p.larger];
  const head = make("div", { className: "ls-head" }, p.title, p.badge, make("span", { className: "ls-gap" }), ...buttons);
  parts.root = make("div", { className: "ls ls-timeline" });
  parts.root.append(head, p.overview, p.axis, p.lanes, p.tip, p.note, p.below, p.said, p.spoken);
  return parts;
}

/** Texts that depend on the trace: title, badge, legend. */
function describe(parts, model, state) {
  const { data } = state;
  parts.title.textContent = data.title;
  parts.badge.innerHTML = data.badge;
  const counts = `${data.lanes.length} tasks, ${data.start.length} phases, ${data.mStart.length} messages`;
  parts.lanes.setAttribute("aria-label", `Timeline of ${data.title || "a trace"}: ${counts}. ${HINT}`);
  parts.messages.hidden = !data.mStart.length;
  const present = new Set(data.what);
  const keys = data.phases.flatMap(([, , , words], kind) => (present.has(kind) ? [[kind, words]] : []));
  parts.below.replaceChildren(
    ...keys.map(([kind, words]) => {
      const swatch = make("canvas");
      const g = sheet(swatch, 16, 16);
      g.fillStyle = fills(data.phases)[kind];
      g.fillRect(0, 0, 16, 16);
      return make("span", { className: "key" }, swatch, words);
    }),
    ...(data.mStart.length ? [make("span", { className: "key" }, "↘ a message, from when it is sent to when it is there")] : []),
    ...(data.unsure.some(Boolean) ? [make("span", { className: "key" }, `├┤ between nodes: times may be wrong by as much, at most ±${(1000 * Math.max(...data.unsure)).toPrecision(2)} ms`)] : []),
    ...(data.leftOut ? [make("span", { className: "key" }, `${data.leftOut} earlier events are left out`)] : []),
  );
}

/** What is in view at first. */
function open(state) {
  const { data, view } = state;
  [view.from, view.to] = data.opening ?? edges(data);
  state.goal = { from: view.from, to: view.to };
  state.arrows = data.start.length === 0;
}

/** The whole of a trace, and a little room. */
function edges(data) {
  const from = Math.min(data.began, data.mStart[0] ?? Infinity);
  const room = (data.endAt - from) * 0.01 || 1e-6;
  return [Number.isFinite(from) ? from - room : -room, data.endAt + room];
}

/** A function that draws at the next frame, however often it is called before. */
function drawer(parts, state) {
  let asked = 0;
  return () => { asked ||= requestAnimationFrame(() => { asked = 0; if (state.data && parts.root.clientWidth) drawAll(parts, state); }); };
}

function drawAll(parts, state) {
  const { data, view } = state;
  const look = { ...lookOf(parts.root), fills: fills(data.phases) };
  const width = parts.lanes.clientWidth;
  const count = data.lanes.length;
  const pitch = Math.max(20, Math.min(data.start.length ? 38 : 52, Math.floor(440 / count)));
  const bar = pitch - (pitch > 26 ? 10 : 5);
  const g = sheet(parts.canvas, width, pitch * count + 6);
  g.font = `14px ${look.font}`;
  view.left = Math.ceil(Math.max(...data.lanes.map((name) => g.measureText(name).width))) + 16;
  view.width = width - view.left - 8;
  const laneTop = (lane) => 3 + lane * pitch + (pitch - bar) / 2;
  state.layout = { pitch, bar, laneTop };
  g.textBaseline = "middle";
  drawLines(g, state, look, pitch * count + 6);
  g.save();
  g.beginPath();
  g.rect(view.left, 0, view.width, pitch * count + 6);
  g.clip();
  g.textAlign = "center";
  let shares = false;
  const faults = faultsInView(g, data, view);
  data.lanes.forEach((_, lane) => { shares = drawLane(g, data, lane, laneTop(lane), bar, view, look, faults) || shares; });
  state.shares = shares;
  const middle = (lane) => laneTop(lane) + bar / 2;
  const each = state.arrows && data.mStart.length ? drawMessages(g, data, view, middle, look, state.message) : 1;
  if (state.chosen !== NONE) drawReleased(g, data, state.chosen, view, laneTop, bar, look);
  drawFaults(g, faults, laneTop, bar);
  drawUnsure(g, data, view, laneTop, bar);
  if (state.band) {
    g.fillStyle = look.accent;
    g.globalAlpha = 0.2;
    g.fillRect(state.band[0], 0, state.band[1] - state.band[0], pitch * count + 6);
    g.globalAlpha = 1;
  }
  g.restore();
  drawAxis(sheet(parts.axis, width, AXIS), data, view, look);
  drawOverview(parts, state, look, width);
  const notes = [shares && "Zoomed out: each column shows the shares of the phases at that time.", each > 1 && `One message in ${each} is drawn.`];
  parts.note.textContent = notes.filter(Boolean).join(" ");
  Object.assign(parts.root.dataset, { from: view.from, to: view.to, shares });
}

/** What lies behind the bars: names, bands, and the lines between steps. */
function drawLines(g, { data, view, lane: current, layout }, look, height) {
  const { x } = scaleOf(view);
  data.lanes.forEach((name, lane) => {
    const y = layout.laneTop(lane);
    g.fillStyle = look.band;
    g.fillRect(view.left, y, view.width, layout.bar);
    g.fillStyle = look.ink;
    g.textAlign = "right";
    g.fillText(name, view.left - 10, y + layout.bar / 2 + 1);
    if (!data.start.length) { g.fillStyle = look.line; g.fillRect(view.left, y + layout.bar / 2, view.width, 1); }
  });
  g.fillStyle = look.soft;
  const ends = [];
  stepsInView(data, view, ([, ended]) => ends.push(ended));
  if (ends.length < view.width / 5) for (const ended of ends) if (ended > view.from) g.fillRect(x(ended), 0, 1, height);
}

/** The whole run in small, and which part of it is in view. */
function drawOverview(parts, state, look, width) {
  const { data, view } = state;
  const g = sheet(parts.overview, width, OVERVIEW);
  const [from, to] = edges(data);
  const all = { from, to, left: view.left, width: view.width };
  state.all = all;
  g.fillStyle = look.band;
  g.fillRect(all.left, 4, all.width, OVERVIEW - 10);
  if (!state.small || state.small.width !== width || state.small.of !== data || state.small.ink !== look.ink) {
    const canvas = document.createElement("canvas");
    const s = sheet(canvas, width, OVERVIEW);
    const busy = data.lanes.filter((_, lane) => data.first[lane + 1] > data.first[lane]).length;
    drawShares(s, data, 0, data.start.length, 4, OVERVIEW - 10, all, look, busy || 1);
    if (!busy) drawTraffic(s, data, all, look);
    state.small = { canvas, width, of: data, ink: look.ink };
  }
  g.drawImage(state.small.canvas, 0, 0, width, OVERVIEW);
  const { x } = scaleOf(all);
  const [a, b] = [Math.max(all.left, x(view.from)), Math.min(all.left + all.width, x(view.to))];
  g.fillStyle = look.paper;
  g.globalAlpha = 0.62;
  g.fillRect(all.left, 0, a - all.left, OVERVIEW);
  g.fillRect(b, 0, all.left + all.width - b, OVERVIEW);
  g.globalAlpha = 1;
  g.strokeStyle = look.accent;
  g.lineWidth = 2;
  g.strokeRect(a, 2, Math.max(b - a, 3), OVERVIEW - 6);
}

/** How many messages are under way at each time, where there are no phases. */
function drawTraffic(g, data, all, look) {
  const { x } = scaleOf(all);
  const count = new Float32Array(Math.ceil(all.width));
  for (let i = 0; i < data.mStart.length; i++)
    for (let px = Math.floor(x(data.mStart[i]) - all.left); px <= x(data.mEnd[i]) - all.left; px++) count[px] += 1;
  const most = count.reduce((a, b) => Math.max(a, b), 1);
  g.fillStyle = look.soft;
  count.forEach((n, px) => g.fillRect(all.left + px, OVERVIEW - 6 - (n / most) * (OVERVIEW - 10), 1, (n / most) * (OVERVIEW - 10)));
}

export default { render };
