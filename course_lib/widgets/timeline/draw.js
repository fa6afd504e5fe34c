/* Drawing: what is in view, and nothing else, so that a frame costs the same for a long trace as for a short one. */

const AXIS = 46; // px above the lanes: steps, then seconds
const THIN = 0.35; // of a lane's height: the bar of what is hidden
const MANY = 3000; // messages in view; of more only a part is drawn
const FAULT = "#D55E00"; // Okabe and Ito's vermilion, with a mark beside it
const MARKS = { slowed: "slowed", jittered: "jittered", paused: "paused", killed: "✕ killed", failed: "✕ failed", cut: "✕ cut off", linked: "link changed", raised: "✕ raised", left: "✕ left", exhausted: "✕ out of memory", restarting: "restarted" };

/** Colours and type as the page has them now. */
function lookOf(el) {
  const style = getComputedStyle(el);
  const color = (name) => style.getPropertyValue(name).trim();
  const names = ["ink", "soft", "line", "paper", "band", "accent"];
  return { ...Object.fromEntries(names.map((name) => [name, color(`--ls-${name}`)])), font: style.fontFamily };
}

/** A canvas of so many CSS pixels, sharp on any screen, cleared. */
function sheet(canvas, width, height) {
  const ratio = (window.devicePixelRatio || 1) * zoomOf(canvas);
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    canvas.style.height = `${height}px`;
  }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}

/** How each phase is filled: its colour, and the pattern of `palette.py` by which it can be told without colour. */
function fills(phases) {
  return phases.map(([, color, pattern]) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const t = tile.getContext("2d");
    t.fillStyle = color;
    t.fillRect(0, 0, 8, 8);
    t.strokeStyle = t.fillStyle = "#ffffff";
    t.lineWidth = 1.5;
    t.stroke(new Path2D({ "/": "M-2 2L2 -2M0 8L8 0M6 10L10 6", x: "M0 0L8 8M0 8L8 0", "|": "M4 0V8" }[pattern] ?? ""));
    if (pattern === ".") for (const at of [1, 5]) t.fillRect(at, at, 2, 2);
    return t.createPattern(tile, "repeat");
  });
}

/** From seconds to pixels and back. */
function scaleOf(view) {
  const perSecond = view.width / (view.to - view.from);
  return { x: (time) => view.left + (time - view.from) * perSecond, time: (x) => view.from + (x - view.left) / perSecond, perSecond };
}

/** Round times to write under the axis, with their text. */
function ticks(from, to, width) {
  const raw = ((to - from) * 110) / width;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const [factor, unit] = to >= 1 ? [1, "s"] : to >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step * factor) - 1e-9));
  const found = [];
  for (let n = Math.ceil(from / step); n * step <= to; n++) found.push([n * step, `${(n * step * factor).toFixed(digits)} ${unit}`]);
  return found;
}

/** The axis: seconds since the start of the run, and the ends of steps where steps are in line. */
function drawAxis(g, data, view, look) {
  const { x } = scaleOf(view);
  g.font = `14px ${look.font}`;
  g.textBaseline = "middle";
  g.textAlign = "center";
  g.fillStyle = look.soft;
  g.strokeStyle = look.line;
  for (const [time, text] of ticks(view.from, view.to, view.width)) {
    g.fillRect(x(time), AXIS - 6, 1, 6);
    const half = g.measureText(text).width / 2;
    if (x(time) - half >= view.left - 20 && x(time) + half <= view.left + view.width) g.fillText(text, x(time), AXIS - 17);
  }
  let free = view.left;
  stepsInView(data, view, ([began, ended, step]) => {
    const [a, b] = [Math.max(x(began), view.left), Math.min(x(ended), view.left + view.width)];
    const text = `step ${step}`;
    const wide = g.measureText(text).width;
    if (b - a < wide * 0.5 || (a + b) / 2 - wide / 2 < free) return;
    g.fillStyle = look.ink;
    g.fillText(text, (a + b) / 2, 10);
    free = (a + b) / 2 + wide / 2 + 12;
  });
}

function stepsInView(data, view, visit) {
  const low = Math.max(0, bisect(data.stepEnds, view.from, 0, data.stepEnds.length));
  for (let i = low; i < data.stepEnds.length && (i === 0 || data.stepEnds[i - 1] < view.to); i++)
    visit([i ? data.stepEnds[i - 1] : data.began, data.stepEnds[i], data.steps[i]]);
}

/** One lane: bars while they can be seen, else for each pixel the shares of the phases. True for shares. */
function drawLane(g, data, lane, y, height, view, look, faults) {
  const { x } = scaleOf(view);
  const [low, high] = inView(data, lane, view.from, view.to);
  const tight = high - low > view.width / 3;
  if (tight) drawShares(g, data, low, high, y, height, view, look);
  else
    for (let i = low; i < high; i++) {
      const [a, b] = [Math.max(x(data.start[i]), view.left - 1), Math.min(x(data.end[i]), view.left + view.width + 1)];
      const tall = height * (isHidden(data, i) ? THIN : 1);
      g.fillStyle = look.fills[data.what[i]];
      g.fillRect(a, y + height - tall, Math.max(b - a - (b - a > 3 ? 0.75 : 0), 0.8), tall);
      if (tall < height) continue;
      const tags = faults.filter((f) => f.lane === lane && f.text && f.left < b && f.left + f.wide > a);
      const free = Math.max(a, ...tags.map((tag) => tag.left + tag.wide));
      if (height >= 20) label(g, data, i, free, b, y, height);
    }
  return tight;
}

/** A bar says what it is where there is room. */
function label(g, data, i, a, b, y, height) {
  const what = whatOf(data, i);
  const step = data.step[i];
  const took = duration(data.end[i] - data.start[i]);
  const numbered = what === "compute" && !data.stepEnds.length; // no line between steps says which it is
  const words = numbered ? [`step ${step}: ${took}`, `step ${step}`, `${step}`] : [`${what} ${took}`, what];
  const text = words.find((choice) => g.measureText(choice).width + 14 < b - a);
  if (!text) return;
  const wide = g.measureText(text).width;
  const middle = (a + b) / 2;
  g.fillStyle = data.phases[data.what[i]][1];
  if (what !== "compute") g.fillRect(middle - wide / 2 - 4, y + height / 2 - 9, wide + 8, 18);
  g.fillStyle = ["compute", "apply"].includes(what) ? "#ffffff" : "#14171c";
  g.fillText(text, middle, y + height / 2 + 1);
}

/** For each pixel of a lane, or of all lanes together, a column of the shares of each phase. */
function drawShares(g, data, low, high, y, height, view, look, lanes = 1) {
  const { x, perSecond } = scaleOf(view);
  const kinds = data.phases.length;
  const spent = new Float32Array(Math.ceil(view.width) * kinds);
  for (let i = low; i < high; i++) {
    if (isHidden(data, i)) continue;
    const from = Math.max(0, x(data.start[i]) - view.left);
    const to = Math.min(view.width, x(data.end[i]) - view.left);
    for (let px = Math.floor(from); px < to; px++) spent[px * kinds + data.what[i]] += Math.min(to, px + 1) - Math.max(from, px);
  }
  const base = new Float32Array(Math.ceil(view.width)).fill(y + height);
  for (let kind = 0; kind < kinds; kind++) {
    g.beginPath();
    for (let px = 0; px < base.length; px++) {
      const tall = Math.min(1, spent[px * kinds + kind] / lanes) * height;
      if (tall < 0.05) continue;
      base[px] -= tall;
      g.rect(view.left + px, base[px], 1, tall);
    }
    g.fillStyle = look.fills[kind];
    g.fill();
  }
}

/** Messages as arrows from the lane of the sender to that of the receiver; how many are in view for each that is drawn. */
function drawMessages(g, data, view, laneY, look, chosen) {
  const { x } = scaleOf(view);
  const [low, high] = [bisect(data.mReach, view.from, 0, data.mEnd.length), bisect(data.mStart, view.to, 0, data.mEnd.length)];
  const each = Math.ceil((high - low) / MANY) || 1;
  const arrow = (i) => {
    const [x0, y0, x1, y1] = [x(data.mStart[i]), laneY(data.src[i]), x(data.mEnd[i]), laneY(data.dst[i])];
    g.moveTo(x0, y0);
    g.lineTo(x1, y1);
    if (high - low > 600) return;
    const angle = Math.atan2(y1 - y0, x1 - x0);
    for (const turn of [2.7, -2.7]) {
      g.moveTo(x1, y1);
      g.lineTo(x1 + 7 * Math.cos(angle + turn), y1 + 7 * Math.sin(angle + turn));
    }
  };
  const stroke = (color, width, keep) => {
    g.beginPath();
    for (let i = low; i < high; i++) if (keep(i)) arrow(i);
    g.strokeStyle = color;
    g.lineWidth = width;
    g.stroke();
  };
  g.globalAlpha = chosen === NONE ? Math.max(0.35, Math.min(0.9, 250 / (high - low))) : 0.25;
  stroke(look.ink, 1.1, (i) => (i - low) % each === 0);
  g.globalAlpha = 1;
  if (chosen !== NONE) {
    stroke(look.accent, 1.5, (i) => data.round[i] === data.round[chosen] && Math.abs(data.mStart[i] - data.mStart[chosen]) < view.to - view.from);
    stroke(look.accent, 3, (i) => i === chosen);
  }
  return each;
}

/** What befell tasks, as far as it is in view: from where to where, and a tag that says it. */
function faultsInView(g, data, view) {
  const { x } = scaleOf(view);
  const right = view.left + view.width;
  return data.faults.flatMap((fault) => {
    const [a, b] = [Math.max(x(fault.at), view.left), Math.min(x(fault.until), right)];
    if (!MARKS[fault.state] || b < view.left || a > right) return [];
    const text = fault.state === "jittered" ? fault.words : MARKS[fault.state] + (fault.state === "slowed" ? ` ×${fault.factor}` : "");
    const wide = g.measureText(text).width + 10;
    const away = x(fault.at) < view.left && b - a < wide; // its tag would stand on what came after
    return [{ ...fault, a, b, text: away ? "" : text, left: Math.min(a, right - wide), wide }];
  });
}

/** A mark in the lane where something befell a task, for as long as it lasted. */
function drawFaults(g, faults, laneTop, height) {
  g.textAlign = "left";
  for (const { lane, state, a, b, text, left, wide } of faults) {
    const y = laneTop(lane);
    const middle = y + height / 2;
    g.fillStyle = FAULT;
    if (["slowed", "jittered", "linked"].includes(state)) g.fillRect(a, y - 3, Math.max(b - a, 3), 3);
    else if (state === "paused" || state === "cut") g.fillRect(a, y, Math.max(b - a, 3), height);
    else g.fillRect(a - 1, y - 3, 3, height + 6);
    if (!text) continue;
    g.fillRect(left, middle - 10, wide, 20);
    g.fillStyle = "#ffffff";
    g.fillText(text, left + 5, middle + 1);
  }
}

/** At the end of each lane, how far its times may be off, as far as its node's clock is known; nothing below a pixel. */
function drawUnsure(g, data, view, laneTop, height) {
  const { perSecond } = scaleOf(view);
  const right = view.left + view.width - 2;
  g.beginPath();
  data.unsure.forEach((seconds, lane) => {
    const [top, wide] = [laneTop(lane), 2 * seconds * perSecond];
    if (wide <= 1) return;
    for (const x of [right - wide, right]) { g.moveTo(x, top + 4); g.lineTo(x, top + height - 4); }
    g.moveTo(right - wide, top + height / 2);
    g.lineTo(right, top + height / 2);
  });
  for (const [color, width] of [["#ffffff", 4], ["#14171c", 1.5]]) { // to be seen on every colour
    g.strokeStyle = color;
    g.lineWidth = width;
    g.stroke();
  }
}

/** Who let the chosen wait go on: that phase outlined, and a line from its end to the end of the wait. */
function drawReleased(g, data, phase, view, laneTop, height, look) {
  const { x } = scaleOf(view);
  const outline = (i, color) => {
    g.strokeStyle = color;
    g.lineWidth = 2.5;
    g.setLineDash([]);
    const [a, b] = [Math.max(x(data.start[i]), view.left - 4), Math.min(x(data.end[i]), view.left + view.width + 4)];
    g.strokeRect(a, laneTop(laneOf(data, i)) - 1, Math.max(b - a, 2), height + 2);
  };
  outline(phase, look.ink);
  const wait = data.waits.get(phase);
  if (!wait) return;
  outline(wait.released, FAULT);
  g.strokeStyle = FAULT;
  g.setLineDash([5, 3]);
  g.beginPath();
  g.moveTo(x(data.end[wait.released]), laneTop(laneOf(data, wait.released)) + height / 2);
  g.lineTo(x(data.end[phase]), laneTop(laneOf(data, phase)) + height / 2);
  g.stroke();
  g.setLineDash([]);
}
