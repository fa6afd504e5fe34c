// Makes the scene of the stage whenever a setting or the choice of algorithms changes, from schedules that
// Python has written into the page. The model is that of course_lib/collectives/simulate.py.

const MOST_SHOWN = 3;
const FINEST = 65535; // times are parts of the whole time

const unpacked = async (id) => {
  const packed = JSON.parse(document.getElementById(id).textContent, revive);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text(), revive);
};
const { every, inside, gamma, itemsize } = await unpacked("schedules");

// --- the model ---

// Servers take messages one at a time, in the order in which they arrive. `free`: when each server is free; changed.
// A message is over no earlier than it arrives: it comes in while its sender is still sending it. Sums are formed as
// in Python: where two arrive at once, a last digit says which is first.
const serve = (messages, free, { server, arrive, work, over }) => {
  const arrivals = messages.map((m) => ({ m, at: arrive(m) })).sort((a, b) => a.at - b.at);
  const queues = Object.entries(Object.groupBy(arrivals, ({ m }) => server(m)));
  const unrolled = queues.length <= Math.max(...queues.map(([, queue]) => queue.length));
  for (const [one, queue] of queues) {
    let [done, begun] = [0, free[one]];
    for (const { m, at } of queue) {
      done += m[work];
      begun = Math.max(begun, at - done);
      m[over] = unrolled ? done + begun : Math.max(at, free[one] + m[work]);
      free[one] = m[over];
    }
  }
};

// The messages of a round, one for each pair of ranks, and that of each transfer.
const grouped = (schedule, k, sizes, paths) => {
  const { src, dst, chunk, reduce, hosts, offsets } = schedule;
  const pairs = new Map();
  const transfers = [];
  for (let i = offsets[k]; i < offsets[k + 1]; i++) {
    const key = `${src[i]} ${dst[i]}`;
    const m = pairs.get(key) ?? { src: src[i], dst: dst[i], from: hosts[src[i]], to: hosts[dst[i]], bytes: 0, reduced: 0 };
    pairs.set(key, m);
    m.bytes += sizes[chunk[i]];
    m.reduced += reduce(i) * sizes[chunk[i]];
    transfers.push(m);
  }
  for (const m of pairs.values()) {
    m.across = m.from !== m.to;
    m.path = m.across ? paths.between : paths.inside;
    m.onLink = m.path.beta * m.bytes;
    m.taking = m.path.alpha + m.onLink; // as long to send as to receive
  }
  return { messages: [...pairs.values()], transfers };
};

// When each transfer begins to leave and has been received, in seconds: all beginnings, then all ends.
const simulate = (schedule, sizes, paths) => {
  const { ranks, hosts, offsets } = schedule;
  const [up, down] = [0, 1].map(() => new Float64Array(Math.max(...hosts) + 1));
  const [begins, ends] = [[], []];
  let at = new Float64Array(ranks); // when each rank has done all rounds so far
  for (let k = 0; k + 1 < offsets.length; k++) {
    const { messages, transfers } = grouped(schedule, k, sizes, paths);
    const across = messages.filter((m) => m.across);
    serve(messages, at.slice(), { server: (m) => m.src, arrive: () => -1, work: "taking", over: "sent" });
    for (const m of messages) m.over = m.sent;
    serve(across, up, { server: (m) => m.from, arrive: (m) => m.sent, work: "onLink", over: "over" });
    serve(across, down, { server: (m) => m.to, arrive: (m) => m.over, work: "onLink", over: "over" });
    serve(messages, at.slice(), { server: (m) => m.dst, arrive: (m) => m.over + m.path.delay, work: "taking", over: "came" });
    at = at.slice();
    for (const m of messages) {
      at[m.src] = Math.max(at[m.src], m.over);
      at[m.dst] = Math.max(at[m.dst], m.came);
    }
    const added = new Float64Array(ranks);
    for (const m of messages) added[m.dst] += m.reduced;
    at = at.map((time, rank) => time + gamma * added[rank]);
    begins.push(...transfers.map((m) => m.sent - m.taking));
    ends.push(...transfers.map((m) => m.came));
  }
  return { times: [...begins, ...ends], finish: at };
};

// --- the scene ---

const bytesOf = ({ buffer }, chunks = 1) => (chunks > 256 ? new Uint16Array(buffer) : new Uint8Array(buffer));

// What the stage shows of an algorithm: its schedule with the times of the model.
const panel = (name, s) => {
  const { hosts, schedules } = every[name][s.workers - 2];
  const data = { ...(schedules[s.hosts - 1] ?? schedules[0]), hosts: hosts[s.hosts - 1] };
  const [elements, flags] = [s.bytes / itemsize, bytesOf(data.reduce)];
  const sizes = Array.from({ length: data.chunks }, (_, c) => itemsize * (Math.floor(elements / data.chunks) + (c < elements % data.chunks)));
  const columns = { src: bytesOf(data.src), dst: bytesOf(data.dst), chunk: bytesOf(data.chunk, data.chunks), reduce: (i) => (flags[i >> 3] >> (i & 7)) & 1 };
  const paths = { inside: { ...inside, beta: 1 / s.inside }, between: { alpha: s.alpha, delay: s.delay, beta: 1 / s.between } };
  const { times, finish } = simulate({ ...data, ...columns }, sizes, paths);
  const first = times.reduce((least, time) => Math.min(least, time), Infinity);
  const took = times.reduce((most, time) => Math.max(most, time - first), 0);
  const parts = Uint16Array.from(times, (time) => Math.round(((time - first) / (took || 1)) * FINEST));
  const bus = took ? ((2 * (s.workers - 1)) / s.workers) * (s.bytes / took) : 0;
  const simulated = { times: new DataView(parts.buffer), seconds: took, bus, reality: "simulated", stop: took };
  return { ...data, sizes, clocks: { simulated }, finish };
};

const wordsOf = (s) => {
  const links = `${speed(s.inside)} inside a host${s.hosts > 1 ? `, ${speed(s.between)} between hosts` : ""}`;
  const about = `${counted(s.workers, "worker")} on ${counted(s.hosts, "host")}, ${amount(s.bytes)} each; ${links}.`;
  return { inside: `${speed(s.inside)} inside`, between: speed(s.between), about };
};

let chosen = model.get("scene").panels.map(({ label }) => label);
const show = () => {
  const [settings, words] = [model.get("settings"), wordsOf(model.get("settings"))];
  const panels = chosen.map((name) => panel(name, settings));
  model.set("scene", { ...model.get("scene"), panels, settings, words: { simulated: words } });
};
model.on("change:settings", show);

// --- the choice of algorithms ---

const form = document.createElement("fieldset");
form.className = "algorithms";
make(form, "legend", {}, "Algorithms");
const boxes = Object.keys(every).map((name) => {
  const label = make(form, "label");
  const box = make(label, "input", { type: "checkbox", value: name });
  label.append(` ${name}`);
  return box;
});
const limit = () => {
  for (const box of boxes) {
    box.disabled = box.checked ? chosen.length === 1 : chosen.length === MOST_SHOWN;
    box.parentElement.title = box.disabled ? `One to ${MOST_SHOWN} are shown.` : "";
  }
};
for (const box of boxes) box.checked = chosen.includes(box.value);
form.addEventListener("change", () => {
  chosen = boxes.filter((box) => box.checked).map((box) => box.value);
  limit();
  show();
});
limit();
document.getElementById("widget").before(form);
window.panel = panel; // for tests
