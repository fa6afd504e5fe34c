/* The data of a timeline: columns of numbers, and what they say at a place. `draw.js` and `timeline.js` follow in the same module. */

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };
const NONE = -1;

/** The scene with its columns unpacked; times in seconds. */
async function unpack(scene, bytes) {
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(inflated).arrayBuffer();
  const data = { ...scene };
  let at = 0;
  for (const [name, type, length] of scene.layout) {
    const size = length * ARRAYS[type].BYTES_PER_ELEMENT;
    data[name] = new ARRAYS[type](buffer.slice(at, at + size));
    at += size;
  }
  const seconds = (ticks) => Float64Array.from(ticks, (tick) => scene.origin + tick * scene.unit);
  data.start = seconds(summed(data.start));
  data.end = data.start.map((start, i) => start + data.length[i] * scene.unit);
  data.mStart = seconds(summed(data.mStart));
  data.mEnd = data.mStart.map((start, i) => start + data.mLength[i] * scene.unit);
  data.stepEnds = seconds(data.stepEnds);
  data.began = data.start.reduce((earliest, start) => Math.min(earliest, start), Infinity);
  data.reach = reach(data.end, data.first);
  data.mReach = reach(data.mEnd, [0, data.mEnd.length]);
  data.waits = new Map(Array.from(data.wait, (phase, i) => [phase, { released: data.released[i], last: data.last[i] === 1 }]));
  return data;
}

/** Differences back to numbers; 32-bit arithmetic wraps round, as it did when they were made. */
function summed(differences) {
  const numbers = new Uint32Array(differences);
  for (let i = 1; i < numbers.length; i++) numbers[i] += numbers[i - 1];
  return numbers;
}

/** For each event the latest end up to it in its lane: with it, those in view are found by bisection even where events overlap. */
function reach(ends, first) {
  const latest = new Float64Array(ends);
  for (let lane = 0; lane + 1 < first.length; lane++)
    for (let i = first[lane] + 1; i < first[lane + 1]; i++) latest[i] = Math.max(latest[i], latest[i - 1]);
  return latest;
}

/** The first index from `low` to `high` whose value is above `limit`. */
function bisect(values, limit, low, high) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Phases of a lane that touch a span of time: from the first index up to, not including, the second. */
function inView(data, lane, from, to) {
  const [low, high] = [data.first[lane], data.first[lane + 1]];
  return [bisect(data.reach, from, low, high), bisect(data.start, to, low, high)];
}

/** The phase at a time in a lane, or the nearest one within `slack` seconds; NONE if there is none. */
function phaseAt(data, lane, time, slack) {
  const [from, to] = inView(data, lane, time - slack, time + slack);
  let [best, distance] = [NONE, Infinity];
  for (let i = from; i < to; i++) {
    const away = Math.max(data.start[i] - time, time - data.end[i], 0);
    if (away <= distance && data.end[i] >= time - slack) [best, distance] = [i, away];
  }
  return best;
}

function laneOf(data, phase) {
  return bisect(data.first, phase, 0, data.first.length) - 1;
}

function whatOf(data, phase) {
  return data.phases[data.what[phase]][0];
}

/** Whether a phase is an exchange beside computing, drawn as a thin bar at the bottom of the lane. */
function isHidden(data, phase) {
  return whatOf(data, phase) === "hidden";
}

/** Seconds in a unit that suits them. */
function duration(seconds) {
  const [factor, unit] = seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  return `${Number((seconds * factor).toPrecision(3))} ${unit}`;
}

function size(bytes) {
  const [factor, unit] = bytes >= 2 ** 20 ? [2 ** 20, "MiB"] : bytes >= 1024 ? [1024, "KiB"] : [1, "bytes"];
  return `${Number((bytes / factor).toPrecision(3))} ${unit}`;
}

/** What a phase was, in lines. */
function tellPhase(data, i) {
  const what = whatOf(data, i);
  const lines = [`${data.lanes[laneOf(data, i)]} · step ${data.step[i]}`, `${what}: ${duration(data.end[i] - data.start[i])}`];
  if (isHidden(data, i)) lines.push("Beside computing: it made the step no longer.");
  const wait = data.waits.get(i);
  if (what === "wait" && !wait) lines.push("No other task finished anything meanwhile: it waited for the network or a core.");
  if (wait) {
    const who = data.lanes[laneOf(data, wait.released)];
    const did = `${whatOf(data, wait.released)} of step ${data.step[wait.released]}`;
    lines.push(wait.last ? `It waited for ${who}, the last to come, which was still in ${did}.` : `It went on when ${who} had finished its ${did}.`);
  }
  return lines;
}

/** What a message was, in lines. */
function tellMessage(data, i) {
  const took = data.mEnd[i] - data.mStart[i];
  return [
    `${data.lanes[data.src[i]]} to ${data.lanes[data.dst[i]]}`,
    `${size(data.bytes[i])} in ${duration(took)}`,
    `round ${data.round[i]}, chunk ${data.chunk[i]}`,
  ];
}

/** Shares of each phase in a span of a lane, in one line. */
function tellShares(data, lane, from, to) {
  const spent = new Float64Array(data.phases.length);
  const [low, high] = inView(data, lane, from, to);
  for (let i = low; i < high; i++) spent[data.what[i]] += Math.max(0, Math.min(to, data.end[i]) - Math.max(from, data.start[i]));
  const shares = Array.from(spent, (s, k) => [data.phases[k][0], s / (to - from)]).filter(([, share]) => share >= 0.005);
  const said = shares.map(([what, share]) => `${what} ${Math.round(100 * share)} %`).join(", ");
  return [data.lanes[lane], `${duration(to - from)} here: ${said || "nothing recorded"}`, "Zoom in to see each phase."];
}
