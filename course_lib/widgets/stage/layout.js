// Where everything stands: hosts as racks, ranks as rows, chunks as columns, links, and the ways of transfers.

// In pixels of the screen: on a projector type is larger, and these are not.
// Width of the ranks' labels.
const LABEL = 34;
// Beside labels and chunks.
const SIDES = 16;
// Length of a link.
const WIRE = 50;
// Height of the switch between hosts.
const SWITCH = 26;
const ease = (x) => x * x * (3 - 2 * x);
const mix = (a, b, x) => a + (b - a) * x;

class Layout {
  // Racks in one row or two, whichever leaves more room for a chunk.
  place(algorithm, width, height) {
    Object.assign(this, { algorithm, width, height, unit: 1 / zoomOf(this.below) });
    [this.label, this.wire, this.switch] = [LABEL, WIRE, SWITCH].map((size) => size * this.unit);
    const racks = algorithm.racks.length;
    const [one, two] = [1, 2].map((lines) => this.#fit(lines));
    const fit = racks > 2 && two.room > 1.15 * one.room ? two : one;
    this.pad = fit.cellWidth > 12 ? 2 : fit.cellWidth > 5 ? 1 : 0.4;
    this.cell = { width: fit.cellWidth, height: fit.rowHeight };
    const rackWidth = Math.min(fit.rackWidth, Math.max(this.label + SIDES * this.unit + algorithm.chunks * fit.cellWidth, 190));
    const rackHeight = fit.head + fit.rows * fit.rowHeight + 10;
    const used = fit.across * rackWidth + (fit.across - 1) * fit.gap;
    const left = Math.floor((width - used) / 2);
    const top = Math.round(Math.max(0, (height - fit.lines * rackHeight - fit.wires) / 2));
    this.line = racks > 1 ? { x: left, y: top + rackHeight + this.wire, width: used, height: this.switch } : null;
    this.boxes = algorithm.racks.map((rack, i) => {
      const under = i >= fit.across;
      const x = Math.round(left + (i % fit.across) * (rackWidth + fit.gap));
      const y = under ? this.line.y + this.switch + this.wire : top;
      return { ...rack, x, y, width: rackWidth, height: rackHeight, head: fit.head, under, port: under ? y : y + rackHeight };
    });
    this.row = new Float32Array(algorithm.ranks);
    for (const box of this.boxes) box.ranks.forEach((rank, j) => (this.row[rank] = box.y + box.head + j * fit.rowHeight));
    this.paths = new Map();
  }

  #fit(lines) {
    const { racks, chunks } = this.algorithm;
    const { unit } = this;
    // Whole pixels, where there are enough of them: sharp edges.
    const whole = (x) => (x >= 4 ? Math.floor(x / unit + 1e-3) * unit : x);
    const rows = Math.max(...racks.map((rack) => rack.ranks.length));
    const across = Math.ceil(racks.length / lines);
    const gap = (across > 4 ? 10 : 18) * unit;
    const wires = racks.length > 1 ? lines * this.wire + this.switch + 2 : 0;
    // The last pixel may be half outside.
    const rackWidth = Math.floor((this.width - 1 - (across - 1) * gap) / across);
    const cellWidth = whole(Math.min((rackWidth - this.label - SIDES * unit) / chunks, 96));
    const head = (28 + (cellWidth >= 17 * unit ? 20 : 4)) * unit;
    const rowHeight = whole(Math.min(((this.height - wires) / lines - head - 10) / rows, 96));
    return { lines, rows, across, gap, wires, rackWidth, cellWidth, head, rowHeight, room: Math.min(cellWidth, 0.4 * rowHeight) };
  }

  // The corner of a chunk.
  at(rank, chunk) {
    const box = this.boxes[this.algorithm.rack[rank]];
    const [sides, left] = [SIDES * this.unit, box.x + this.label];
    const free = box.width - this.label - sides - this.algorithm.chunks * this.cell.width;
    return { x: left + sides / 2 + Math.round(free / 2) + chunk * this.cell.width, y: this.row[rank] };
  }

  center(rank, chunk) {
    const { x, y } = this.at(rank, chunk);
    return { x: x + this.cell.width / 2, y: y + this.cell.height / 2 };
  }

  // Where the link of a host is, one pipe each way.
  pipe(box, way) {
    return box.x + box.width / 2 + (way === "up" ? -9 : 9);
  }

  // The way of a transfer as points, with how far along each is: a bow inside a host, through links and switch between hosts.
  path(i) {
    const known = this.paths.get(i);
    if (known) return known;
    const a = this.algorithm;
    const [from, to] = [this.center(a.src[i], a.chunk[i]), this.center(a.dst[i], a.chunk[i])];
    const points = a.crosses(i) ? this.#through(this.boxes[a.rack[a.src[i]]], this.boxes[a.rack[a.dst[i]]], from, to) : this.#bow(from, to);
    let far = 0;
    points.forEach((point, j) => (point.far = far += j ? Math.hypot(point.x - points[j - 1].x, point.y - points[j - 1].y) : 0));
    this.paths.set(i, points);
    return points;
  }

  // There and back are on two sides.
  #bow(from, to) {
    const bow = Math.sign(to.y - from.y) * Math.min(Math.abs(to.y - from.y) * 0.16 + 4, 30);
    return this.#curve(from, { x: from.x + bow, y: mix(from.y, to.y, 0.2) }, { x: to.x + bow, y: mix(from.y, to.y, 0.8) }, to);
  }

  #through(out, into, from, to) {
    const center = this.line.y + this.line.height / 2;
    const left = { x: this.pipe(out, "up"), y: out.port };
    const came = { x: this.pipe(into, "down"), y: into.port };
    const [turn, back] = [{ x: left.x, y: center }, { x: came.x, y: center }];
    return [
      ...this.#curve(from, { x: from.x, y: mix(from.y, left.y, 0.6) }, { x: left.x, y: mix(from.y, left.y, 0.4) }, left),
      ...this.#curve({ x: left.x, y: mix(left.y, center, 0.7) }, turn, turn, { x: mix(left.x, came.x, 0.1), y: center }),
      ...this.#curve({ x: mix(left.x, came.x, 0.9), y: center }, back, back, { x: came.x, y: mix(came.y, center, 0.7) }),
      ...this.#curve(came, { x: came.x, y: mix(to.y, came.y, 0.4) }, { x: to.x, y: mix(to.y, came.y, 0.6) }, to),
    ];
  }

  #curve(a, b, c, d) {
    return Array.from({ length: 11 }, (_, j) => {
      const [t, s] = [j / 10, 1 - j / 10];
      const at = (axis) => s ** 3 * a[axis] + 3 * s * s * t * b[axis] + 3 * s * t * t * c[axis] + t ** 3 * d[axis];
      return { x: at("x"), y: at("y") };
    });
  }

  // Where a transfer is now.
  whereabouts(i) {
    const a = this.algorithm;
    const points = this.path(i);
    const far = ease((a.now - a.begin[i]) / (a.end[i] - a.begin[i])) * points.at(-1).far;
    const j = Math.max(1, points.findIndex((point) => point.far >= far));
    const [before, after] = [points[j - 1], points[j]];
    const part = after.far > before.far ? (far - before.far) / (after.far - before.far) : 1;
    return { x: mix(before.x, after.x, part), y: mix(before.y, after.y, part) };
  }

  // What is at a point: a transfer on its way, else a chunk of a rank, else the links of a host.
  hit(x, y) {
    const a = this.algorithm;
    const reach = (size) => Math.max(8, Math.min(size, 40) / 2);
    const transfer = a.under(0).flying.findLast((i) => {
      const at = this.whereabouts(i);
      return Math.abs(at.x - x) < reach(this.cell.width) && Math.abs(at.y - y) < reach(this.cell.height);
    });
    if (transfer !== undefined) return { transfer };
    for (let rank = 0; rank < a.ranks; rank++) {
      const first = this.at(rank, 0);
      const chunk = Math.floor((x - first.x) / this.cell.width);
      if (y >= first.y && y < first.y + this.cell.height && chunk >= 0 && chunk < a.chunks) return { rank, chunk };
    }
    if (!this.line) return null;
    const link = this.boxes.findIndex((box) => {
      const [top, bottom] = box.under ? [this.line.y + this.switch, box.port] : [box.port, this.line.y];
      return y > top && y < bottom && Math.abs(x - (box.x + box.width / 2)) < Math.min(90, box.width / 2);
    });
    return link < 0 ? null : { link };
  }
}
