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

const ranksText = (set) => {
  const ranks = bits(set);
  const runs = [];
  for (const rank of ranks) {
    if (runs.length && runs.at(-1)[1] === rank - 1) runs.at(-1)[1] = rank;
    else runs.push([rank, rank]);
  }
  return `${ranks.length === 1 ? "rank" : "ranks"} ${runs.map(([a, b]) => (a === b ? a : b === a + 1 ? `${a}, ${b}` : `${a}–${b}`)).join(", ")}`;
};

const clockTime = (clock, moment) => (clock === "rounds" ? `round ${moment.toFixed(1)}` : seconds(moment));

// An algorithm's state in a sentence, for who does not see the picture.
const summary = (a) => {
  if (a.error) return `${a.label}: ${a.error}`;
  const { full, wanted } = a.complete;
  const where = a.stopped ? `stopped: ${a.stop.text}` : `after ${a.roundsDone} of ${a.length} rounds`;
  return `${a.label}, ${where}: ${full} of ${wanted} chunks complete.`;
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
