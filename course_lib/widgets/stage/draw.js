// One algorithm's picture, on two canvases: below what stays until a transfer lands, above it what moves.

const FONT = '14px system-ui, -apple-system, "Segoe UI", sans-serif';
// Arrows that can be told apart, and that cannot.
const FEW = 16, CROWD = 48;
// Where another chunk is followed.
const FAINT = 0.2;
const BOLD = FONT.replace("14px", "600 14px");

// Black or white, whichever is easier to read on a colour.
const on = (color) => {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111111" : "#ffffff";
};

class Picture extends Layout {
  constructor(box) {
    super();
    [this.below, this.above] = [0, 1].map(() => box.appendChild(document.createElement("canvas")));
    [this.base, this.top] = [this.below, this.above].map((canvas) => canvas.getContext("2d"));
  }

  // Size in CSS pixels, colours of the theme, and what the scene says to all pictures.
  arrange(algorithm, width, height, theme, scene) {
    Object.assign(this, { theme, scene });
    const density = Math.min(window.devicePixelRatio || 1, 2) * zoomOf(this.below);
    for (const canvas of [this.below, this.above]) {
      canvas.width = Math.round(width * density);
      canvas.height = Math.round(height * density);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      canvas.getContext("2d").setTransform(density, 0, 0, density, 0, 0);
    }
    this.colors = scene.palette.map((color) => (color === "ink" ? theme.rank : color));
    this.place(algorithm, width, height);
    algorithm.changed = null;
  }

  color(rank) {
    return this.colors[Math.floor((rank * 8) / Math.max(this.algorithm.workers, 1)) % 8];
  }

  // --- below ---

  drawBelow() {
    const a = this.algorithm;
    const carried = a.up.reduce((sum, bytes) => sum + bytes, 0);
    if (a.changed && !a.changed.size && carried === this.carried) return;
    this.carried = carried;
    const g = this.base;
    if (a.changed) {
      for (const cell of a.changed) this.#cell(g, Math.floor(cell / a.chunks), cell % a.chunks);
    } else {
      g.clearRect(0, 0, this.width, this.height);
      this.boxes.forEach((box) => this.#rack(g, box));
      for (let rank = 0; rank < a.ranks; rank++) for (let chunk = 0; chunk < a.chunks; chunk++) this.#cell(g, rank, chunk);
    }
    if (this.line) this.#network(g);
    a.changed = new Set();
  }

  #rack(g, box) {
    const { theme } = this;
    this.#round(g, box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1, 10);
    g.fillStyle = theme.rack;
    g.fill();
    g.strokeStyle = theme.line;
    g.lineWidth = 1;
    g.stroke();
    g.textBaseline = "middle";
    g.textAlign = "left";
    g.font = BOLD;
    g.fillStyle = theme.ink;
    g.fillText(`host ${box.host}`, box.x + 10, box.y + 16);
    const words = this.scene.words.inside;
    g.font = FONT;
    g.fillStyle = theme.soft;
    if (words && g.measureText(words).width < box.width - 90) {
      g.textAlign = "right";
      g.fillText(words, box.x + box.width - 12, box.y + 16);
    }
    if (this.cell.width >= 17 * this.unit) {
      const left = this.at(box.ranks[0], 0).x + this.cell.width / 2 - 11;
      g.textAlign = "right";
      if (left - g.measureText("chunk").width > box.x + 2) g.fillText("chunk", Math.min(left, box.x + 52), box.y + box.head - 9);
      g.textAlign = "center";
      const every = this.algorithm.chunks > 10 && this.cell.width < 26 ? 2 : 1;
      for (let chunk = 0; chunk < this.algorithm.chunks; chunk += every) {
        g.font = chunk === this.algorithm.followed ? BOLD : FONT;
        g.fillText(chunk, this.at(box.ranks[0], chunk).x + this.cell.width / 2, box.y + box.head - 9);
      }
    }
    box.ranks.forEach((rank, j) => this.#label(g, box, rank, j));
  }

  #label(g, box, rank, j) {
    const { height } = this.cell;
    const y = this.row[rank] + height / 2;
    const worker = rank < this.algorithm.workers;
    const text = worker ? `${rank}` : `s${rank - this.algorithm.workers}`;
    const left = this.at(rank, 0).x - this.label;
    g.textAlign = "center";
    g.font = BOLD;
    if (height >= 21) {
      const size = Math.min(24, height - 2);
      this.#round(g, left, y - size / 2, size, size, 5);
      g.fillStyle = worker ? this.color(rank) : this.theme.track;
      g.fill();
      g.fillStyle = worker ? on(this.color(rank)) : this.theme.ink;
      g.fillText(text, left + size / 2, y + 1);
      return;
    }
    g.fillStyle = worker ? this.color(rank) : this.theme.track;
    g.fillRect(left + 20, this.row[rank] + 0.5, 6, height - 1);
    if (j % Math.ceil(16 / height) === 0) {
      g.fillStyle = this.theme.soft;
      g.font = FONT;
      g.fillText(text, left + 8, y + 1);
    }
  }

  #cell(g, rank, chunk) {
    const { x, y } = this.at(rank, chunk);
    g.clearRect(x, y, this.cell.width, this.cell.height);
    g.fillStyle = this.theme.rack;
    g.fillRect(x, y, this.cell.width, this.cell.height);
    const cell = rank * this.algorithm.chunks + chunk;
    const { once, twice, goal } = this.algorithm;
    const inner = { x: x + this.pad, y: y + this.pad, width: this.cell.width - 2 * this.pad, height: this.cell.height - 2 * this.pad };
    g.globalAlpha = this.algorithm.follows(chunk) ? 1 : FAINT;
    this.#layers(g, inner, once[cell], twice[cell], this.theme.track);
    if (goal[cell] && once[cell] === goal[cell] && !twice[cell] && this.pad >= 1) {
      g.strokeStyle = this.theme.ink;
      g.lineWidth = this.pad > 1 ? 1.6 : 1;
      g.strokeRect(inner.x - 0.2, inner.y - 0.2, inner.width + 0.4, inner.height + 0.4);
    }
    g.globalAlpha = 1;
  }

  // A layer for each worker, from the top; in its colour if its gradient is there, hatched if it was added more than once.
  #layers(g, { x, y, width, height }, once, twice, track) {
    const count = this.algorithm.workers;
    const layer = height / count;
    const gap = layer >= 5 ? 1 : 0;
    g.fillStyle = track;
    g.fillRect(x, y, width, height);
    for (let rank = 0; rank < count; rank++) {
      if (!((once >>> rank) & 1)) continue;
      // Neighbours of one colour are one rectangle.
      let last = rank;
      while (!gap && last + 1 < count && (once >>> (last + 1)) & 1 && this.color(last + 1) === this.color(rank)) last++;
      g.fillStyle = this.color(rank);
      g.fillRect(x, y + rank * layer, width, (last - rank + 1) * layer - gap);
      rank = last;
    }
    if (!twice) return;
    g.strokeStyle = this.theme.paper;
    g.lineWidth = 1.5;
    for (const rank of bits(twice)) {
      g.save();
      g.beginPath();
      g.rect(x, y + rank * layer, width, layer - gap);
      g.clip();
      g.beginPath();
      for (let at = x - layer; at < x + width; at += 5) {
        g.moveTo(at, y + (rank + 1) * layer);
        g.lineTo(at + layer, y + rank * layer);
      }
      g.stroke();
      g.restore();
    }
  }

  // Links of the hosts and the switch between them, with the bytes that each link has carried.
  #network(g) {
    const { line, theme } = this;
    const [top, bottom] = [Math.min(...this.boxes.map((box) => box.port)), Math.max(line.y + line.height, ...this.boxes.map((box) => box.port))];
    g.clearRect(0, top, this.width, bottom - top);
    this.#round(g, line.x, line.y, line.width, line.height, 8);
    g.fillStyle = theme.track;
    g.fill();
    this.#between(g);
    this.boxes.forEach((box, rack) => this.#link(g, box, rack));
  }

  // What the network is; over what passes there, too.
  #between(g) {
    const { line, theme } = this;
    const at = [this.scene.words.between, line.x + 10, line.y + line.height / 2 + 1];
    Object.assign(g, { font: FONT, textBaseline: "middle", textAlign: "left", lineWidth: 5, lineJoin: "round", strokeStyle: theme.track, fillStyle: theme.soft });
    g.strokeText(...at);
    g.fillText(...at);
  }

  #link(g, box, rack) {
    const { theme, line, algorithm: a } = this;
    const [from, to] = box.under ? [line.y + line.height, box.port] : [box.port, line.y];
    const middle = (from + to) / 2;
    for (const way of ["up", "down"]) {
      const busiest = a.most > 0 && a.most === a.total[way][rack];
      const side = way === "up" ? -1 : 1;
      const x = this.pipe(box, way);
      // Filled from the switch on, in proportion to the busiest link of all algorithms on the stage.
      const filled = ((to - from) * a[way][rack]) / this.scene.most;
      g.fillStyle = theme.track;
      g.fillRect(x - 5, from, 10, to - from);
      g.fillStyle = busiest ? theme.ink : theme.pipe;
      g.fillRect(x - 5, box.under ? from : to - filled, 10, filled);
      const text = `${way === "up" ? "↑" : "↓"} ${amount(a[way][rack])}`;
      const fits = (font) => ((g.font = font), g.measureText(text).width <= box.width / 2 - 16);
      if (![14, 12].some((size) => fits((busiest ? BOLD : FONT).replace("14px", `${size}px`)))) continue;
      g.fillStyle = busiest ? theme.ink : theme.soft;
      g.textAlign = way === "up" ? "right" : "left";
      g.fillText(text, x + side * 9, middle);
    }
  }

  // --- above ---

  drawAbove(paused, glow, still) {
    const g = this.top;
    const a = this.algorithm;
    g.clearRect(0, 0, this.width, this.height);
    const { flying, fresh } = a.under(glow);
    const ours = (i) => a.follows(a.chunk[i]);
    for (const i of fresh.filter(ours)) this.#glow(g, i, 1 - (a.now - a.end[i]) / glow);
    if (a.stopped) this.#broken(g);
    // At the start nothing has left yet.
    const moving = a.now > 0 ? flying : [];
    if (still || paused) this.#arrows(g, (moving.length ? moving : a.next()).filter(ours));
    for (const i of still ? [] : moving.toSorted((i, j) => ours(i) - ours(j))) {
      g.globalAlpha = ours(i) ? 1 : FAINT;
      this.#token(g, i);
    }
    g.globalAlpha = 1;
    if (a.followed !== null) this.#column(g, a.followed);
    if (a.stop && flying.includes(a.stop.transfer)) this.#token(g, a.stop.transfer, true);
    if (moving.some((i) => a.crosses(i))) this.#between(g);
  }

  // Around a chunk that is followed.
  #column(g, chunk) {
    Object.assign(g, { strokeStyle: this.theme.ink, lineWidth: 2 });
    for (const { ranks } of this.boxes) {
      const { x, y } = this.at(ranks[0], chunk);
      g.strokeRect(x - 1, y - 1, this.cell.width + 2, ranks.length * this.cell.height + 2);
    }
  }

  #glow(g, i, strength) {
    const a = this.algorithm;
    const { x, y } = this.at(a.dst[i], a.chunk[i]);
    g.globalAlpha = Math.max(0, strength);
    g.strokeStyle = this.theme.ink;
    g.lineWidth = 2;
    g.strokeRect(x, y, this.cell.width, this.cell.height);
    g.globalAlpha = 1;
  }

  #token(g, i, blamed = false) {
    const a = this.algorithm;
    const part = (a.now - a.begin[i]) / (a.end[i] - a.begin[i]);
    const { x, y } = this.whereabouts(i);
    const shrink = a.crosses(i) ? 1 - 0.45 * Math.min(1, 6 * Math.min(part, 1 - part)) : 1;
    const width = Math.max(5, Math.min(this.cell.width - 2 * this.pad, 40) * shrink);
    const height = Math.max(8, Math.min(this.cell.height - 2 * this.pad, 40) * shrink);
    const box = { x: x - width / 2, y: y - height / 2, width, height };
    g.fillStyle = this.theme.paper;
    g.fillRect(box.x - 1.5, box.y - 1.5, width + 3, height + 3);
    this.#layers(g, box, a.carried[i], a.carriedTwice[i], this.theme.track);
    g.strokeStyle = blamed ? this.theme.alarm : this.theme.ink;
    g.lineWidth = blamed ? 3 : 1.2;
    g.strokeRect(box.x - 1, box.y - 1, width + 2, height + 2);
    if (width >= 13 * this.unit) this.#sign(g, a.reduce[i] ? "+" : "=", Math.min(box.x + width, this.width - 9), box.y);
  }

  // "+": added to what is there; "=": takes its place.
  #sign(g, text, x, y) {
    g.beginPath();
    g.arc(x, y, 8, 0, 7);
    g.fillStyle = this.theme.ink;
    g.fill();
    g.fillStyle = this.theme.paper;
    g.font = BOLD;
    g.textAlign = "center";
    g.textBaseline = "middle";
    g.fillText(text, x, y + 0.5);
  }

  // Many are thinner, and of a crowd only one is drawn from rank to rank, and one from host to host. All are one shape: where they cross they get no darker.
  #arrows(g, transfers) {
    const a = this.algorithm;
    const share = Math.min(1, FEW / transfers.length);
    const [lines, heads] = [new Path2D(), new Path2D()];
    const drawn = new Set();
    for (const i of transfers) {
      const ends = [a.src[i], a.dst[i]];
      const way = transfers.length <= CROWD ? i : `${a.crosses(i) ? `host ${ends.map((rank) => a.rack[rank])}` : ends}`;
      if (drawn.has(way)) continue;
      drawn.add(way);
      this.#arrow(lines, heads, this.path(i), 4 + 4 * share);
    }
    g.strokeStyle = g.fillStyle = this.theme.ink;
    g.globalAlpha = 0.5;
    g.lineWidth = 0.6 + 0.7 * share;
    g.stroke(lines);
    g.fill(heads);
    g.globalAlpha = 1;
  }

  #arrow(lines, heads, points, size) {
    points.forEach(({ x, y }, j) => (j ? lines.lineTo(x, y) : lines.moveTo(x, y)));
    const [before, tip] = [points.at(-2), points.at(-1)];
    const turn = Math.atan2(tip.y - before.y, tip.x - before.x);
    heads.moveTo(tip.x, tip.y);
    for (const side of [-0.45, 0.45]) heads.lineTo(tip.x - size * Math.cos(turn + side), tip.y - size * Math.sin(turn + side));
  }

  // Where it breaks: the chunk of the transfer to blame, or all that are wrong in the end.
  #broken(g) {
    const a = this.algorithm;
    const cells = a.stop.cell ? [a.stop.cell] : a.wrong;
    const { width, height } = this.cell;
    const reach = Math.min(width, height, 36) / 2 - 3;
    const line = this.pad > 1 ? 3 : 1.5;
    for (const [rank, chunk] of cells) {
      const { x, y } = this.at(rank, chunk);
      g.beginPath();
      g.rect(x, y, width, height);
      for (const side of [-1, 1]) {
        g.moveTo(x + width / 2 - reach, y + height / 2 - side * reach);
        g.lineTo(x + width / 2 + reach, y + height / 2 + side * reach);
      }
      for (const [color, wide] of [[this.theme.paper, 2 * line], [this.theme.alarm, line]]) {
        g.strokeStyle = color;
        g.lineWidth = wide;
        g.stroke();
      }
    }
  }

  #round(g, x, y, width, height, radius) {
    g.beginPath();
    g.roundRect(x, y, width, height, radius);
  }
}
