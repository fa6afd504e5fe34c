/* One chart as SVG: where things are, and how they look. */

const SVG = "http://www.w3.org/2000/svg";
let TALL = 174; // px, less on a projector
const LEFT = 44, RIGHT = 10, TOP = 8, BOTTOM = 22; // px
const ALARM = "#D55E00";
const ROWS = 4, ROW = 13; // in which words of marks stand, above the curves, and their height in px
const MORE = 22; // px for how many have no room, after a word in the last row
const LETTER = 8.4; // px, of such a word, in wide type

const escaped = (text) => String(text).replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
const number = (value) => Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
const short = (value) => (Math.abs(value) >= 1000 ? `${Number((value / 1000).toPrecision(4))}k` : `${Number(value.toPrecision(4))}`);

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

/** From numbers to pixels and back, for the part of a panel that is shown. */
function shapeOf({ panel, zoom, logarithmic }, width) {
  const [x0, x1] = zoom?.x ?? [0, panel.wide];
  const [y0, y1] = zoom?.y ?? (logarithmic ? panel.log : panel.linear);
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
  const entrants = chart.model.get("entrants");
  const lines = entrants.map(({ color, dash }, i) => {
    const path = pathOf(panel.lines[i], shape, logarithmic);
    return path && `<path class="line" d="${path}" stroke="${color}"${dash ? ` stroke-dasharray="${dash}"` : ""}/>`;
  });
  const reached = panel.reached.map((place, i) => place ? `<g transform="translate(${px(place[0]).toFixed(1)} ${py(place[1]).toFixed(1)})">${entrants[i].mark}</g>` : "");
  // what lies outside of the inner picture is cut off
  const inner = `<svg x="${LEFT}" y="${TOP - 2}" width="${across}" height="${down + 4}" viewBox="${LEFT} ${TOP - 2} ${across} ${down + 4}">${target}${lines.join("")}${stems(shape)}</svg>`;
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
  const rows = TALL < 120 ? 1 : ROWS, taken = Array(rows).fill(0), last = {};
  let lowest = null;
  return marks.map(([x, word]) => {
    const at = px(x), size = word.length * LETTER + 8;
    const begin = (row) => Math.min(at, width - RIGHT - size - (row === rows - 1 ? MORE : 0)); // whole, at the edge too
    const again = at - last[word] < 8; // what was done in several runs at once
    const row = again ? -1 : taken.findIndex((end, row) => end <= begin(row));
    last[word] = at;
    const mark = { at, word, row, from: begin(row), size, more: 0 };
    if (row >= 0) taken[row] = mark.from + size;
    else if (!again) lowest.more++;
    if (row !== rows - 1) return mark;
    taken[row] += MORE;
    return (lowest = mark);
  });
}

/** A vertical line for each mark, and over all lines their words. */
function stems({ marks, down }) {
  const lines = marks.map(({ at }) => `<path class="stem" d="M${at.toFixed(1)} ${TOP}v${down}"/>`);
  const words = marks.filter(({ row }) => row >= 0).map(({ from, word, row, size, more }) => {
    const [x, y, wide] = [from + 2, TOP + ROW * row, size - 4 + (more ? MORE : 0)];
    return `<rect class="back" x="${x.toFixed(1)}" y="${y}" width="${wide.toFixed(1)}" height="${ROW}"/><text class="word" x="${(x + 2).toFixed(1)}" y="${y + 10}">${escaped(word)}${more ? ` +${more}` : ""}</text>`;
  });
  return [...lines, ...words].join("");
}

/** The cursor with a dot on each line, or the part that is being chosen. */
function pointed({ panel, cursor, band, shape, model }) {
  const { px, py, x0, x1, down } = shape;
  if (band) {
    const [[a, b], [c, d]] = band, level = Math.abs(b - d) < 14;
    return `<rect class="band" x="${Math.min(a, c)}" y="${level ? TOP : Math.min(b, d)}" width="${Math.abs(a - c)}" height="${level ? down : Math.abs(b - d)}"/>`;
  }
  if (cursor === null || cursor < x0 || cursor > x1) return "";
  const dots = model.get("entrants").map(({ color }, i) => {
    const [x, y] = valueAt(panel.lines[i], cursor) ?? [];
    const [across, height] = [px(x), py(y)];
    return x >= x0 && x <= x1 && height >= TOP && height <= TOP + down ? `<circle cx="${across}" cy="${height}" r="3.5" fill="${color}"/>` : "";
  });
  return `<path class="cursor" d="M${px(cursor).toFixed(1)} ${TOP}v${down}"/>${dots.join("")}`;
}

/** Save a chart as an SVG file that needs no style sheet: its title, who is who, and what is shown. */
function save({ picture, panel, model }) {
  const copy = picture.cloneNode(true), width = picture.clientWidth;
  const originals = picture.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((node, i) => {
    const style = getComputedStyle(originals[i]);
    for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "paint-order"]) node.setAttribute(name, style.getPropertyValue(name));
  });
  const { color, fontFamily } = getComputedStyle(picture.parentElement), paper = getComputedStyle(document.body).backgroundColor;
  const names = model.get("entrants").map(({ label, color: stroke, dash }, i) => {
    const y = TALL + 44 + 20 * i;
    return `<path d="M${LEFT} ${y - 4}h30" stroke="${stroke}" stroke-width="3"${dash ? ` stroke-dasharray="${dash}"` : ""}/><text x="${LEFT + 38}" y="${y}" font-size="13">${escaped(label)}</text>`;
  });
  const tall = TALL + 40 + 20 * names.length;
  const parts = `<rect width="100%" height="100%" fill="${paper}"/><text x="8" y="18" font-size="15" font-weight="600">${escaped(panel.title)}</text><g transform="translate(0 24)">${copy.innerHTML}</g>${names.join("")}`;
  const file = `<svg xmlns="${SVG}" width="${width}" height="${tall}" viewBox="0 0 ${width} ${tall}" fill="${color}" font-family='${escaped(fontFamily)}'>${parts}</svg>\n`;
  const address = URL.createObjectURL(new Blob([file], { type: "image/svg+xml" }));
  make("a", { href: address, download: `${panel.title}.svg` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
