/* One chart as SVG: where things are, and how they look. */

const SVG = "http://www.w3.org/2000/svg";
let TALL = 174; // px, less on a projector
const LEFT = 44, RIGHT = 10, TOP = 8, BOTTOM = 22; // px
const ROW = 13; // px, of the rows in which words of marks stand, above the curves
const MORE = 30; // px for how many have no room, after a word in the last row
const LETTER = 8.4; // px, of any other, in wide type
const SAMPLE = 38; // px, of an entrant's line in a key
const PEN = document.createElement("canvas").getContext("2d"); // measures words of marks

const escaped = (text) => String(text).replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
const number = (value) => Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
const short = (value) => (Math.abs(value) >= 1000 ? `${Number((value / 1000).toPrecision(4))}k` : `${Number(value.toPrecision(4))}`);

/** A short piece of an entrant's line with its mark, as SVG around y = 0. */
const sample = ({ color, dash, mark }) => `<path class="line" d="M0 0h${SAMPLE}" stroke="${color}"${dash ? ` stroke-dasharray="${dash}"` : ""}/><g transform="translate(${SAMPLE / 2} 0) scale(0.75)">${mark}</g>`;
const sampled = (entrant) => `<svg class="sample" width="${SAMPLE}" height="12" viewBox="0 -6 ${SAMPLE} 12" aria-hidden="true">${sample(entrant)}</svg>`;

/** The point [x, y] of a line that is nearest to an x; undefined if it has none. */
function valueAt([xs, ys], x) {
  let from = 0, to = xs.length;
  while (from < to) {
    const middle = (from + to) >> 1;
    xs[middle] < x ? (from = middle + 1) : (to = middle);
  }
  const near = from > 0 && (from === xs.length || x - xs[from - 1] < xs[from] - x) ? from - 1 : from;
  return near < xs.length && Number.isFinite(ys[near]) ? [xs[near], ys[near]] : undefined;
}

/** The ends of the y axis: all lines that are shown fit, and zero, where that has a place. */
function endsOf({ panel, shown, logarithmic }) {
  const values = shown.flatMap(({ line }) => [...line[1]]).concat(panel.target ?? []);
  const known = values.filter((value) => Number.isFinite(value) && (value > 0 || !logarithmic));
  const low = Math.min(...known), high = Math.max(...known);
  if (!known.some(Boolean)) return logarithmic ? [0.1, 1] : [0, 1];
  return logarithmic ? [low / 1.15, high * 1.15] : [Math.min(0, low) * 1.06, Math.max(0, high) * 1.06];
}

/** From numbers to pixels and back, for the part of a panel that is shown. */
function shapeOf(chart, width) {
  const { panel, zoom, logarithmic } = chart;
  const [x0, x1] = zoom?.x ?? [0, panel.wide];
  const [y0, y1] = zoom?.y ?? endsOf(chart);
  const across = width - LEFT - RIGHT, down = TALL - TOP - BOTTOM;
  const up = logarithmic ? Math.log10 : Number, back = logarithmic ? (power) => 10 ** power : Number;
  const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * across;
  const marks = placed(panel.marks.filter(([x]) => x >= x0 && x <= x1), px, width);
  const head = TOP + ROW * Math.max(0, ...marks.map(({ row }) => row + 1)), tall = TOP + down - head;
  const py = (y) => head + (1 - (up(y) - up(y0)) / (up(y1) - up(y0))) * tall;
  const toX = (left) => x0 + (Math.min(Math.max(left - LEFT, 0), across) / across) * (x1 - x0);
  const toY = (top) => back(up(y0) + (1 - Math.min(Math.max(top - head, 0), tall) / tall) * (up(y1) - up(y0)));
  const within = (left) => (left < LEFT - 4 || left > width - RIGHT + 4 ? null : toX(left));
  /** The part between two corners: of the x axis only, if they are at about the same height. */
  const part = (one, other) => {
    const [from, to] = [toX(one[0]), toX(other[0])].sort((a, b) => a - b);
    const level = Math.abs(one[1] - other[1]) < 14;
    const y = level ? zoom?.y ?? null : [toY(Math.max(one[1], other[1])), toY(Math.min(one[1], other[1]))];
    return to > from ? { x: [from, to], y } : null;
  };
  return { x0, x1, y0, y1, px, py, marks, across, down, width, within, part };
}

/** Round numbers between two others, about `most` of them. */
function ticks(low, high, most) {
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= raw * (1 - 1e-9));
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, n) => (first + n) * step);
}

/** The same for a logarithmic axis: powers of ten if there are enough of them. */
function logTicks(low, high) {
  const found = (digits) => {
    const all = [];
    for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++)
      for (const digit of digits) all.push(digit * 10 ** k);
    return all.filter((value) => value >= low && value <= high);
  };
  const tens = found([1]), finer = found([1, 2, 5]);
  return tens.length > 2 ? tens : finer.length > 1 ? finer : ticks(low, high, 4);
}

/** A chart as SVG: axes, target, lines, marks, and the cursor or the part that is being chosen. */
function drawing(chart) {
  const { panel, shape, logarithmic } = chart;
  const { x0, x1, y0, y1, px, py, across, down } = shape;
  const bottom = TOP + down;
  const field = `<rect class="field" x="${LEFT}" y="${TOP}" width="${across}" height="${down}"/>`;
  const middle = `x="${LEFT + across / 2}" y="${TOP + down / 2 + 4}" text-anchor="middle"`;
  if (panel.lines.every(([, ys]) => !ys.some(Number.isFinite))) return `${field}<text class="soft" ${middle}>${panel.empty}</text>`;
  const levels = (logarithmic ? logTicks : ticks)(y0, y1, 4).map((y) => {
    const at = py(y).toFixed(1);
    return `<path class="grid" d="M${LEFT} ${at}h${across}"/><text class="soft" x="${LEFT - 6}" y="${+at + 4}" text-anchor="end">${short(y)}</text>`;
  });
  const places = ticks(x0, x1, Math.max(2, Math.min(6, across / 48))).map((x) => {
    const at = Math.min(px(x), shape.width - short(x).length * LETTER / 2); // whole, at the edge too
    return `<text class="soft" x="${at.toFixed(1)}" y="${bottom + 17}" text-anchor="middle">${short(x)}</text>`;
  });
  const target = panel.target === null ? "" : `<path class="target" d="M0 ${py(panel.target).toFixed(1)}h${shape.width}"/>`;
  const lines = chart.shown.map(({ color, dash, line }) => {
    const path = pathOf(line, shape, logarithmic);
    return path && `<path class="line" d="${path}" stroke="${color}"${dash ? ` stroke-dasharray="${dash}"` : ""}/>`;
  });
  const reached = chart.shown.map(({ reached: place, mark }) => place ? `<g transform="translate(${px(place[0]).toFixed(1)} ${py(place[1]).toFixed(1)})">${mark}</g>` : "");
  // what lies outside of the inner picture is cut off
  const inner = `<svg x="${LEFT}" y="${TOP - 2}" width="${across}" height="${down + 4}" viewBox="${LEFT} ${TOP - 2} ${across} ${down + 4}">${stems(shape)}${target}${lines.join("")}${words(shape)}</svg>`;
  return `${field}${levels.join("")}${places.join("")}${inner}${reached.join("")}${pointed(chart)}`;
}

/** A line as the path of its points; a hole where a value is not finite. */
function pathOf([xs, ys], { px, py }, logarithmic) {
  let path = "", pen = "M";
  for (let n = 0; n < xs.length; n++) {
    if (!Number.isFinite(ys[n]) || (logarithmic && ys[n] <= 0)) { pen = "M"; continue; }
    path += `${pen}${px(xs[n]).toFixed(1)} ${py(ys[n]).toFixed(1)}`;
    pen = "L";
  }
  return path;
}

/** Where marks stand, and their words: in which row, -1 where there is no room; then the one in the last row counts `more`. */
function placed(marks, px, width) {
  const rows = TALL < 120 ? 1 : TALL < 180 ? 2 : 4, taken = Array(rows).fill(LEFT), last = {};
  let lowest = null;
  return marks.map(([x, word]) => {
    const at = px(x), size = PEN.measureText(word).width + 8;
    const begin = (row) => Math.min(at, width - RIGHT - size - (row === rows - 1 ? MORE : 0)); // whole, at the edge too
    const again = at - last[word] < 8; // what was done in several runs at once
    const row = again ? -1 : taken.findIndex((end, row) => end <= begin(row));
    last[word] = at;
    const mark = { at, word, row, from: begin(row), size, more: 0 };
    if (row >= 0) taken[row] = mark.from + size;
    else if (!again && lowest) lowest.more++;
    if (row !== rows - 1) return mark;
    taken[row] += MORE;
    return (lowest = mark);
  });
}

/** The vertical lines of marks, below the curves: one where several marks are. */
const stems = ({ marks, down }) => marks.filter(({ at }, i) => !(at - marks[i - 1]?.at < 1)).map(({ at }) => `<path class="stem" d="M${at.toFixed(1)} ${TOP}v${down}"/>`).join("");

/** The words of marks, which hide the vertical lines below. */
function words({ marks }) {
  return marks.filter(({ row }) => row >= 0).map(({ from, word, row, size, more }) => {
    const [x, y, wide] = [from + 2, TOP + ROW * row, size - 4 + (more ? MORE : 0)];
    const place = `x="${x.toFixed(1)}" y="${y}" width="${wide.toFixed(1)}" height="${ROW}"`;
    return `<rect class="back" ${place}/><rect class="field" ${place}/><text class="word" x="${(x + 2).toFixed(1)}" y="${y + 10}">${escaped(word)}${more ? ` +${more}` : ""}</text>`;
  }).join("");
}

/** The cursor with a dot on each line, or the part that is being chosen. */
function pointed({ shown, cursor, band, shape }) {
  const { px, py, x0, x1, down } = shape;
  if (band) {
    const [[a, b], [c, d]] = band, level = Math.abs(b - d) < 14;
    return `<rect class="band" x="${Math.min(a, c)}" y="${level ? TOP : Math.min(b, d)}" width="${Math.abs(a - c)}" height="${level ? down : Math.abs(b - d)}"/>`;
  }
  if (cursor === null || cursor < x0 || cursor > x1) return "";
  const dots = shown.map(({ color, line }) => {
    const [x, y] = valueAt(line, cursor) ?? [];
    const [across, height] = [px(x), py(y)];
    return x >= x0 && x <= x1 && height >= TOP && height <= TOP + down ? `<circle cx="${across}" cy="${height}" r="3.5" fill="${color}"/>` : "";
  });
  return `<path class="cursor" d="M${px(cursor).toFixed(1)} ${TOP}v${down}"/>${dots.join("")}`;
}

/** A chart as a picture that needs no style sheet: its title, what is shown, and the key. */
function pictureOf({ picture, panel, box, shown }) {
  const longest = Math.max(0, ...shown.map(({ label }) => label.length));
  const width = Math.max(picture.clientWidth, LEFT + SAMPLE + 16 + longest * LETTER), tall = TALL + 40 + 20 * shown.length;
  const key = shown.map((entrant, i) => `<g transform="translate(${LEFT} ${TALL + 40 + 20 * i})">${sample(entrant)}<text x="${SAMPLE + 8}" y="4">${escaped(entrant.label)}</text></g>`);
  const { color, fontFamily } = getComputedStyle(box), copy = document.createElementNS(SVG, "svg");
  const look = { width, height: tall, viewBox: `0 0 ${width} ${tall}`, fill: color, "font-family": fontFamily };
  for (const [name, value] of Object.entries(look)) copy.setAttribute(name, value);
  copy.innerHTML = `<rect class="back" width="100%" height="100%"/><text x="8" y="18" style="font-size:15px;font-weight:600">${escaped(panel.title)}</text><g transform="translate(0 24)">${picture.innerHTML}</g>${key.join("")}`;
  box.append(copy); // where the style sheet reaches it
  for (const node of copy.querySelectorAll("*")) {
    const style = getComputedStyle(node);
    for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-weight"]) node.setAttribute(name, style.getPropertyValue(name));
  }
  copy.remove();
  return { text: new XMLSerializer().serializeToString(copy), width, tall };
}

/** A picture at twice its size. */
async function pixelsOf({ text, width, tall }) {
  const image = new Image(), canvas = make("canvas", { width: 2 * width, height: 2 * tall });
  await new Promise((resolve, reject) => Object.assign(image, { onload: resolve, onerror: reject, src: `data:image/svg+xml,${encodeURIComponent(text)}` }));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve));
}

/** The points of the lines that are shown, as a table. */
function tableOf({ panel, shown }) {
  const cell = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const rows = shown.flatMap(({ label, line: [xs, ys] }) => Array.from(xs, (x, n) => [cell(label), ...[x, ys[n]].map((value) => Number(value.toPrecision(7)))]));
  return [["entrant", panel.x, panel.y.split(",")[0]], ...rows].map((row) => `${row}\n`).join("");
}

const FORMS = {
  SVG: (chart) => new Blob([pictureOf(chart).text], { type: "image/svg+xml" }),
  PNG: (chart) => pixelsOf(pictureOf(chart)),
  CSV: (chart) => new Blob([tableOf(chart)], { type: "text/csv" }),
};

/** Save a chart as a file of one of the forms. */
async function save(chart, form) {
  const address = URL.createObjectURL(await FORMS[form](chart));
  make("a", { href: address, download: `${chart.panel.title}.${form.toLowerCase()}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
