// Words and numbers as the stage writes them.

const make = (parent, tag, attributes = {}, text = "") => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  parent.append(made);
  return made;
};

const amount = (bytes) => {
  const power = bytes < 1024 ? 0 : bytes < 1024 ** 2 ? 1 : bytes < 1024 ** 3 ? 2 : 3;
  const value = bytes / 1024 ** power;
  return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toPrecision(2)} ${["B", "KiB", "MiB", "GiB"][power]}`;
};

const speed = (bytes) => {
  const mbit = Math.round(8 * bytes) / 1e6;
  return mbit >= 1000 ? `${+(mbit / 1000).toPrecision(3)} Gbit/s` : `${+mbit.toPrecision(3)} Mbit/s`;
};

const seconds = (s) => {
  const [value, unit] = s >= 1 ? [s, "s"] : s >= 1e-3 ? [s * 1e3, "ms"] : [s * 1e6, "µs"];
  return `${value >= 100 ? value.toFixed(0) : value.toPrecision(3)} ${unit}`;
};

// Numbers in order, after what they number: "chunk 3", "ranks 0–3, 6".
const numbered = (word, numbers) => {
  const runs = [];
  for (const number of numbers) {
    if (runs.length && runs.at(-1)[1] === number - 1) runs.at(-1)[1] = number;
    else runs.push([number, number]);
  }
  return `${word}${numbers.length === 1 ? "" : "s"} ${runs.map(([a, b]) => (a === b ? a : b === a + 1 ? `${a}, ${b}` : `${a}–${b}`)).join(", ")}`;
};

const ranksText = (set) => numbered("rank", bits(set));
const counted = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

const clockTime = (clock, moment) => (clock === "rounds" ? `round ${moment.toFixed(1)}` : seconds(moment));

// An algorithm's state in a sentence, for who does not see the picture.
const summary = (a) => {
  if (a.error) return `${a.label}: ${a.error}`;
  const { full, wanted } = a.complete;
  const where = a.stopped ? `stopped: ${a.stop.text}` : `after ${a.roundsDone} of ${a.length} rounds`;
  return `${a.label}, ${where}: ${full} of ${wanted} chunks complete.`;
};

// Round k in a sentence; if a chunk is followed, where that goes.
const sentence = (a, k) => {
  if (k >= a.rounds) return `After all ${counted(a.length, "round")}: ${a.complete.full} of ${a.complete.wanted} chunks complete.`;
  const pairs = {};
  for (const i of a.sent(k)) {
    if (!a.follows(a.chunk[i])) continue;
    const pair = (pairs[[a.src[i], a.dst[i]]] ??= { src: a.src[i], dst: a.dst[i], chunks: [], adds: [], away: a.crosses(i) });
    pair.chunks.push(a.chunk[i]);
    pair.adds.push(a.reduce[i]);
  }
  const list = Object.values(pairs);
  return `Round ${k}: ${!list.length ? `chunk ${a.followed} is not sent` : a.followed === null ? roundText(a, list) : wayText(a, list)}.`;
};

// What becomes of what is sent: "which adds it", "which keep them".
const fate = (list, singular, many) => {
  const adds = list.flatMap((pair) => pair.adds);
  const verbs = ["keep", "add"].filter((_, add) => adds.includes(add));
  return `which ${verbs.map((verb) => verb + (singular ? "s" : "")).join(" or ")} ${many ? "them" : "it"}`;
};

const ends = (list) => ["src", "dst"].map((end) => [...new Set(list.map((pair) => pair[end]))]);

const wayText = (a, list) => {
  const [from, to] = ends(list);
  const groups = Object.values(Object.groupBy(list, (pair) => (from.length <= to.length ? pair.src : pair.dst)));
  const ways = groups.slice(0, 3).map((group) => `from ${ends(group).map((ranks) => a.names(ranks)).join(" to ")}`);
  const more = groups.length > 3 ? `, and ${groups.length - 3} more` : "";
  return `chunk ${a.followed} goes ${ways.join(", ")}${more}, ${fate(list, to.length === 1, false)}`;
};

// Who sends what to whom, and one transfer as an example, for which a projector has no room.
const roundText = (a, list) => {
  const [from, to] = ends(list);
  const chunks = [...new Set(list.flatMap((pair) => pair.chunks))];
  const sizes = new Set(list.map((pair) => pair.chunks.length));
  const most = Math.max(...sizes);
  const alike = chunks.length === 1 || list.length === 1;
  const what = alike ? numbered("chunk", chunks) : sizes.size > 1 ? `up to ${most} chunks` : most > 1 ? `${most} chunks` : "one chunk";
  const whom = to.length === 1 ? a.name(to[0]) : receivers(a, list, to, list.length / from.length);
  const main = `${senders(a, from, to)} ${what} to ${whom}, ${fate(list, !/^\d|s$/.test(whom), most > 1)}`;
  if (projecting() || list.length === 1 || (alike && Math.min(from.length, to.length) === 1)) return main;
  const { src, dst, chunks: some } = list.find((pair) => pair.away) ?? list[0];
  return `${main}; ${a.name(src)} sends ${numbered("chunk", some)} to ${a.name(dst)}`;
};

const senders = (a, from, to) => {
  const every = from.length === a.workers ? "every" : from.length === a.workers - 1 && to.length === 1 ? "every other" : "";
  return from.length === 1 ? `${a.name(from[0])} sends` : every ? `${every} rank sends` : `${counted(from.length, a.kind(from))} each send`;
};

// `each`: receivers of a sender.
const receivers = (a, list, to, each) => {
  const kind = a.kind(to);
  if (each > 1) return each === a.workers - 1 ? `every other ${kind}` : Number.isInteger(each) ? counted(each, kind) : `other ${kind}s`;
  if (list.length > 2 && list.every(({ src, dst }) => (src + 1) % a.workers === dst)) return "the next rank";
  const away = a.racks.length > 1 ? list.filter((pair) => pair.away).length : NaN;
  return away === list.length ? `a ${kind} of another host` : away === 0 ? `a ${kind} of the same host` : `another ${kind}`;
};

// What is under the pointer: a transfer on its way, a host's links, or a chunk. The first line is the heading.
const about = (a, clock, { transfer, rank, chunk, link }) => {
  if (transfer !== undefined) return aboutTransfer(a, clock, transfer);
  if (link === undefined) return aboutChunk(a, rank, chunk);
  const line = (way, word) => `${word} so far: ${amount(a[way][link])} of ${amount(a.total[way][link])}`;
  return [`host ${a.racks[link].host}`, line("up", "out"), line("down", "in"), "both ways at once, each at the link's full speed"];
};

const aboutTransfer = (a, clock, i) => [
  `${a.name(a.src[i])} → ${a.name(a.dst[i])}: chunk ${a.chunk[i]}, ${amount(a.sizes[a.chunk[i]])}`,
  `brings the gradients of ${ranksText(a.carried[i])}`,
  a.reduce[i] ? "added to what is there" : "takes the place of what is there",
  `round ${a.round[i]}${clock === "rounds" ? "" : `, from ${seconds(a.begin[i])} to ${seconds(a.end[i])}`}`,
];

const aboutChunk = (a, rank, chunk) => {
  const cell = rank * a.chunks + chunk;
  const [from, twice] = [a.from[cell], a.twice[cell]];
  const complete = a.once[cell] === a.goal[cell] && !twice ? ": complete" : "";
  const last = from < 0 ? "" : `last from ${a.name(a.src[from])} in round ${a.round[from]}, ${a.reduce[from] ? "added" : "replaced"}`;
  return [
    `${a.name(rank)}, chunk ${chunk}: ${amount(a.sizes[chunk])}`,
    a.once[cell] ? `holds the gradients of ${ranksText(a.once[cell])}${complete}` : "holds nothing yet",
    ...(twice ? [`counted more than once: ${ranksText(twice)}`] : []),
    last || "nothing has come from others yet",
  ];
};
