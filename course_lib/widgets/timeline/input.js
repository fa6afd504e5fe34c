/* Pointer, wheel and keys: they change what is in view and what is chosen. */

const STEP = 1.6; // a key press or a button zooms so much

function listen(parts, state, draw, model, signal) {
  const on = (node, event, call, options = {}) => node.addEventListener(event, call, { signal, ...options });
  const go = (from, to) => fly(state, from, to, draw);
  const zoom = (factor, time = (state.goal.from + state.goal.to) / 2) => {
    const { from, to } = state.goal;
    go(time - (time - from) / factor, time + (to - time) / factor);
  };
  const whole = () => go(state.all.from, state.all.to);
  const arrows = () => {
    state.arrows = !state.arrows;
    parts.messages.setAttribute("aria-pressed", state.arrows);
    draw();
  };
  on(parts.into, "click", () => zoom(STEP));
  on(parts.out, "click", () => zoom(1 / STEP));
  on(parts.whole, "click", whole);
  on(parts.messages, "click", arrows);
  on(parts.more, "click", () => model.send({ do: "refresh" }));
  on(parts.perfetto, "click", () => model.send({ do: "export" }));
  keys(parts, state, draw, on, { zoom, whole, arrows, go });
  pointer(parts, state, draw, on, { go, zoom, whole });
  overview(parts, state, on, draw);
}

/** Move to a span of time, within the trace and no closer than can be told apart; at once for those who want little motion. */
function fly(state, from, to, draw, seconds = 0.16) {
  const { view, all, data } = state;
  const wide = Math.min(Math.max(to - from, 50 * data.unit), all.to - all.from);
  const start = Math.min(Math.max((from + to - wide) / 2, all.from), all.to - wide);
  const [was, began] = [{ ...view }, performance.now()];
  const still = seconds === 0 || matchMedia("(prefers-reduced-motion: reduce)").matches;
  const goal = (state.goal = { from: start, to: start + wide });
  const frame = () => {
    const share = still ? 1 : Math.min(1, (performance.now() - began) / (1000 * seconds));
    const eased = share * share * (3 - 2 * share);
    view.from = was.from + (goal.from - was.from) * eased;
    view.to = was.to + (goal.to - was.to) * eased;
    draw();
    if (share < 1 && state.goal === goal) requestAnimationFrame(frame);
  };
  frame();
}

function keys(parts, state, draw, on, { zoom, whole, arrows, go }) {
  const pan = (share) => {
    const { from, to } = state.goal;
    go(from + share * (to - from), to + share * (to - from));
  };
  const calls = {
    ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowUp: () => turn(-1), ArrowDown: () => turn(1),
    "+": () => zoom(STEP), "=": () => zoom(STEP), "-": () => zoom(1 / STEP),
    PageDown: () => pan(0.8), PageUp: () => pan(-0.8), Home: () => first(0), End: () => first(-1),
    w: whole, m: arrows, Escape: () => choose(NONE),
  };
  const choose = (phase) => {
    state.chosen = phase;
    if (phase !== NONE) {
      show(state, state.data.start[phase], state.data.end[phase], go);
      parts.spoken.textContent = tellPhase(state.data, phase).join(". ");
      tip(parts, tellPhase(state.data, phase), scaleOf({ ...state.view, ...state.goal }).x((state.data.start[phase] + state.data.end[phase]) / 2));
    } else {
      parts.tip.hidden = true;
      state.message = NONE;
    }
    draw();
  };
  const lane = () => [state.data.first[state.lane], state.data.first[state.lane + 1]];
  const nearest = () => {
    const [low, high] = lane();
    const { data, goal, chosen } = state;
    const centre = chosen === NONE ? (goal.from + goal.to) / 2 : (data.start[chosen] + data.end[chosen]) / 2;
    return low === high ? NONE : Math.min(Math.max(bisect(state.data.start, centre, low, high) - 1, low), high - 1);
  };
  const toMessage = (message) => {
    const { data } = state;
    state.message = Math.min(Math.max(message, 0), data.mStart.length - 1);
    show(state, data.mStart[state.message], data.mEnd[state.message], go);
    const lines = tellMessage(data, state.message);
    parts.spoken.textContent = lines.join(". ");
    tip(parts, lines, scaleOf({ ...state.view, ...state.goal }).x(data.mStart[state.message]));
    draw();
  };
  const step = (by) => {
    if (!state.data.start.length) return toMessage(state.message + by);
    const [low, high] = lane();
    choose(state.chosen >= low && state.chosen < high ? Math.min(Math.max(state.chosen + by, low), high - 1) : nearest());
  };
  const turn = (by) => {
    state.lane = Math.min(Math.max(state.lane + by, 0), state.data.lanes.length - 1);
    choose(nearest());
  };
  const first = (end) => {
    if (!state.data.start.length) return toMessage(end ? state.data.mStart.length : 0);
    const [low, high] = lane();
    if (low < high) choose(end ? high - 1 : low);
  };
  on(parts.root, "keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const call = event.target === parts.lanes && state.data && calls[event.key];
    if (call || event.key.length === 1) event.stopPropagation(); // the notebook has keys of its own, such as b for a new cell
    if (!call) return;
    event.preventDefault();
    call();
  });
}

/** Bring a phase into view, if it is not, with its neighbours. */
function show({ goal }, start, end, go) {
  const wide = Math.max(goal.to - goal.from, 1.5 * (end - start));
  if (start >= goal.from && end <= goal.to) return;
  go((start + end - wide) / 2, (start + end + wide) / 2);
}

function pointer(parts, state, draw, on, { go, zoom, whole }) {
  let grip = null;
  const at = (event) => {
    const { x, y } = pointIn(parts.canvas, event);
    return { px: x, y, time: scaleOf(state.view).time(x) };
  };
  on(parts.canvas, "pointerdown", (event) => {
    if (!state.data || event.button) return;
    parts.lanes.focus({ preventScroll: true });
    grip = { ...at(event), from: state.view.from, to: state.view.to, band: event.shiftKey, moved: false };
    parts.canvas.setPointerCapture(event.pointerId);
  });
  on(parts.canvas, "pointermove", (event) => {
    if (!state.data) return;
    if (!grip) return hover(parts, state, draw, at(event));
    const { px } = at(event);
    grip.moved ||= Math.abs(px - grip.px) > 3;
    if (!grip.moved) return;
    parts.tip.hidden = true;
    const away = ((grip.px - px) * (grip.to - grip.from)) / state.view.width;
    if (grip.band) state.band = [Math.min(px, grip.px), Math.max(px, grip.px)];
    else fly(state, grip.from + away, grip.to + away, draw, 0);
    draw();
  });
  const released = () => {
    const { time } = scaleOf(state.view);
    if (grip?.band && state.band && grip.moved) go(time(state.band[0]), time(state.band[1]));
    grip = state.band = null;
    draw();
  };
  on(parts.canvas, "pointerup", released);
  on(parts.canvas, "pointercancel", released);
  on(parts.canvas, "dblclick", whole);
  on(parts.canvas, "pointerleave", () => {
    parts.tip.hidden = true;
    state.chosen = state.message = NONE;
    draw();
  });
  const wheel = (event) => {
    const across = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!state.data || !(event.ctrlKey || across || parts.lanes.contains(document.activeElement) || document.activeElement === parts.lanes)) return;
    event.preventDefault();
    const { from, to } = state.view;
    const turned = (across ? event.deltaX || event.deltaY : event.deltaY) / 500;
    if (across) fly(state, from + turned * (to - from), to + turned * (to - from), draw, 0);
    else zoom(2 ** (-3 * turned), at(event).time);
  };
  on(parts.canvas, "wheel", wheel, { passive: false });
}

/** Say what the pointer is on: a message, a phase, or the shares of a column. */
function hover(parts, state, draw, { px, y, time }) {
  const { data, view, layout } = state;
  const slack = 4 / scaleOf(view).perSecond;
  const lane = Math.min(Math.max(Math.floor((y - 3) / layout.pitch), 0), data.lanes.length - 1);
  const inLane = Math.abs(y - layout.laneTop(lane) - layout.bar / 2) <= layout.bar / 2;
  state.message = state.arrows ? messageAt(data, time, y, slack, view, layout) : NONE;
  state.chosen = state.message === NONE && inLane && !state.shares && px >= view.left ? phaseAt(data, lane, time, slack) : NONE;
  state.lane = lane;
  let lines = [];
  if (state.message !== NONE) lines = tellMessage(data, state.message);
  else if (state.chosen !== NONE) lines = tellPhase(data, state.chosen);
  else if (inLane && state.shares && px >= view.left) lines = tellShares(data, lane, time - slack, time + slack);
  const fault = data.faults.find((f) => f.lane === lane && inLane && time >= f.at - slack && time <= f.until && MARKS[f.state]);
  if (fault && px >= view.left) lines = [...(lines.length ? lines : [data.lanes[lane]]), fault.words];
  tip(parts, lines, px);
  draw();
}

/** The message whose arrow passes within a few pixels of a place. */
function messageAt(data, time, y, slack, view, layout) {
  const { perSecond } = scaleOf(view);
  const low = bisect(data.mReach, time - slack, 0, data.mEnd.length);
  let [best, nearest] = [NONE, 6];
  for (let i = low; i < data.mStart.length && data.mStart[i] <= time + slack; i++) {
    const [y0, y1] = [data.src[i], data.dst[i]].map((lane) => layout.laneTop(lane) + layout.bar / 2);
    const [dx, dy] = [(data.mEnd[i] - data.mStart[i]) * perSecond, y1 - y0];
    const [ax, ay] = [(time - data.mStart[i]) * perSecond, y - y0];
    const along = Math.min(1, Math.max(0, (ax * dx + ay * dy) / (dx * dx + dy * dy || 1)));
    const away = Math.hypot(ax - along * dx, ay - along * dy);
    if (away < nearest) [best, nearest] = [i, away];
  }
  return best;
}

/** Lines in a box just below the lanes; higher where the picture ends below them, or a notebook would cut it off. */
function tip(parts, lines, x) {
  parts.tip.hidden = !lines.length;
  parts.tip.replaceChildren(...lines.map((line, i) => make("div", {}, i ? line : make("b", { textContent: line }))));
  if (!lines.length) return;
  const room = parts.root.clientWidth - parts.tip.offsetWidth - 8;
  parts.tip.style.left = `${Math.max(4, Math.min(x - 20, room))}px`;
  const below = parts.lanes.offsetTop + parts.lanes.offsetHeight + 4;
  parts.tip.style.top = `${Math.max(0, Math.min(below, parts.root.clientHeight - parts.tip.offsetHeight - 8))}px`;
}

/** Drag in the small picture: what is in view goes there. */
function overview(parts, state, on, draw) {
  const move = (event) => {
    if (!state.data || !event.buttons) return;
    const time = scaleOf(state.all).time(pointIn(parts.overview, event).x);
    const half = (state.view.to - state.view.from) / 2;
    fly(state, time - half, time + half, draw, 0);
  };
  on(parts.overview, "pointerdown", (event) => {
    parts.overview.setPointerCapture(event.pointerId);
    move(event);
  });
  on(parts.overview, "pointermove", move);
}
