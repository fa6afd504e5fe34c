// One algorithm on the stage: its transfers, and who has what at any moment of any clock. Nothing is drawn here.

const column = (view, Type) => new Type(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));

// Packed eight a byte, the first in its lowest bit.
const flags = (view, count) => {
  const bytes = column(view, Uint8Array);
  return Uint8Array.from({ length: count }, (_, i) => (bytes[i >> 3] >> (i & 7)) & 1);
};

const bits = (set) => {
  const found = [];
  for (let rank = 0; rank < 32; rank++) if ((set >>> rank) & 1) found.push(rank);
  return found;
};

class Algorithm {
  constructor(data) {
    Object.assign(this, data); // label, workers, ranks, chunks, hosts, sizes, offsets, clocks, stop, error
    if (this.error) return;
    this.src = column(data.src, Uint8Array);
    this.dst = column(data.dst, Uint8Array);
    this.chunk = column(data.chunk, this.chunks > 256 ? Uint16Array : Uint8Array);
    this.count = this.src.length;
    // Is it added, or does it replace?
    this.reduce = flags(data.reduce, this.count);
    const cells = this.ranks * this.chunks;
    this.whole = column(data.whole, Uint32Array);
    this.start = Uint32Array.from(flags(data.own, cells), (own, cell) => (own ? 1 << Math.floor(cell / this.chunks) : 0));
    this.goal = Uint32Array.from(flags(data.wants, cells), (wants, cell) => (wants ? this.whole[cell % this.chunks] : 0));
    this.rounds = this.offsets.length - 1;
    this.round = new Uint16Array(this.count);
    for (let k = 0; k < this.rounds; k++) this.round.fill(k, this.offsets[k], this.offsets[k + 1]);
    const hosts = [...new Set(this.hosts)].sort((a, b) => a - b);
    this.racks = hosts.map((host) => ({ host, ranks: this.hosts.flatMap((h, rank) => (h === host ? [rank] : [])) }));
    this.rack = this.hosts.map((host) => hosts.indexOf(host));
    this.#read();
    this.#links();
    // The chunk that is followed.
    this.followed = null;
    this.use("rounds");
  }

  follows(chunk) {
    return this.followed === null || this.followed === chunk;
  }

  // What each transfer carries: what its source had at the start of its round.
  #read() {
    this.carried = new Uint32Array(this.count);
    this.carriedTwice = new Uint32Array(this.count);
    this.reset();
    for (let k = 0; k < this.rounds; k++) {
      for (let i = this.offsets[k]; i < this.offsets[k + 1]; i++) {
        const cell = this.src[i] * this.chunks + this.chunk[i];
        this.carried[i] = this.once[cell];
        this.carriedTwice[i] = this.twice[cell];
      }
      for (let i = this.offsets[k]; i < this.offsets[k + 1]; i++) this.#land(i);
    }
  }

  // Bytes that each host's link carries in the end, and the most that one does.
  #links() {
    this.total = this.#carry(() => 1);
    this.most = Math.max(...this.total.up, ...this.total.down);
  }

  // Bytes on each host's link if of transfer i this part has gone over it.
  #carry(part) {
    const [up, down] = [0, 1].map(() => new Float64Array(this.racks.length));
    for (let i = 0; i < this.count; i++) {
      if (!this.crosses(i)) continue;
      const bytes = Math.round(part(i) * this.sizes[this.chunk[i]]);
      up[this.rack[this.src[i]]] += bytes;
      down[this.rack[this.dst[i]]] += bytes;
    }
    return { up, down };
  }

  // Bytes so far on the link that is the busiest in the end.
  get busiest() {
    const reached = (way) => this[way].map((bytes, rack) => (this.total[way][rack] === this.most ? bytes : 0));
    return Math.max(...reached("up"), ...reached("down"));
  }

  has(clock) {
    return clock === "rounds" || Boolean(this.clocks?.[clock]);
  }

  // The clock in seconds that says how long rounds took: the real one, if there is one.
  get real() {
    return this.clocks.measured ? "measured" : "simulated";
  }

  // Seconds on that clock when the rounds that are shown as done were over.
  get passed() {
    const { times, seconds } = this.clocks[this.real];
    const ends = column(times, Uint16Array).subarray(this.count, this.count + this.offsets[this.roundsDone]);
    return (seconds * ends.reduce((latest, end) => Math.max(latest, end), 0)) / 65535;
  }

  // When each transfer begins and ends. Transfers of a round that share a link between hosts follow each other on the clock of rounds too.
  use(clock) {
    if (clock === "rounds") {
      this.begin = new Float64Array(this.count);
      this.end = new Float64Array(this.count);
      for (let k = 0; k < this.rounds; k++) this.#share(k);
      this.finish = this.rounds;
    } else {
      const scale = this.clocks[clock].seconds / 65535;
      const times = Float64Array.from(column(this.clocks[clock].times, Uint16Array), (part) => part * scale);
      this.begin = times.subarray(0, this.count);
      this.end = times.subarray(this.count);
      this.finish = this.end.reduce((latest, moment) => Math.max(latest, moment), 0);
    }
    this.limit = this.stop?.at[clock] ?? Infinity;
    this.order = Uint32Array.from({ length: this.count }, (_, i) => i).sort((a, b) => this.end[a] - this.end[b] || a - b);
    // When each round has ended everywhere.
    this.over = [];
    let latest = 0;
    for (let k = 0; k < this.rounds; k++) {
      for (let i = this.offsets[k]; i < this.offsets[k + 1]; i++) latest = Math.max(latest, this.end[i]);
      this.over.push(clock === "rounds" ? k + 1 : latest);
    }
    this.reset();
  }

  #share(k) {
    // Link -> transfers before this one.
    const waiting = {};
    const turns = [];
    for (let i = this.offsets[k]; i < this.offsets[k + 1]; i++) {
      const link = `${this.rack[this.src[i]]} to ${this.rack[this.dst[i]]}`;
      turns.push(this.crosses(i) ? (waiting[link] = (waiting[link] ?? -1) + 1) : 0);
    }
    const last = Math.max(1, ...turns);
    turns.forEach((turn, j) => {
      const i = this.offsets[k] + j;
      this.begin[i] = k + 0.06 + (0.26 * turn) / last;
      this.end[i] = this.begin[i] + 0.58;
    });
  }

  crosses(i) {
    return this.rack[this.src[i]] !== this.rack[this.dst[i]];
  }

  reset() {
    this.once = this.start.slice();
    this.twice = new Uint32Array(this.once.length);
    // The transfer that came last into each cell.
    this.from = new Int32Array(this.once.length).fill(-1);
    Object.assign(this, this.#carry(() => 0));
    this.landed = 0;
    this.now = 0;
    // Every cell.
    this.changed = null;
  }

  #land(i) {
    const cell = this.dst[i] * this.chunks + this.chunk[i];
    if (this.reduce[i]) {
      this.twice[cell] |= this.carriedTwice[i] | (this.once[cell] & this.carried[i]);
      this.once[cell] |= this.carried[i];
    } else {
      this.once[cell] = this.carried[i];
      this.twice[cell] = this.carriedTwice[i];
    }
    this.from[cell] = i;
    return cell;
  }

  // Go to a moment. `changed` then holds the cells to be drawn anew, or null for all of them.
  seek(moment) {
    const to = Math.min(moment, this.limit);
    if (to < this.now) this.reset();
    while (this.landed < this.count && this.end[this.order[this.landed]] <= to) {
      const cell = this.#land(this.order[this.landed++]);
      this.changed?.add(cell);
    }
    this.now = to;
    // what is under way loads its links while it is
    Object.assign(this, this.#carry((i) => Math.min(1, Math.max(0, (to - this.begin[i]) / (this.end[i] - this.begin[i] || 1)))));
  }

  // Transfers that are on their way now, and those that have just come.
  under(glow) {
    const flying = [];
    const fresh = [];
    for (let i = 0; i < this.count; i++) {
      if (this.begin[i] <= this.now && this.now < this.end[i]) flying.push(i);
      else if (this.end[i] <= this.now && this.now < this.end[i] + glow) fresh.push(i);
    }
    return { flying, fresh };
  }

  // Those that come next, when nothing is under way.
  next() {
    return this.roundsDone < this.rounds ? this.sent(this.roundsDone) : [];
  }

  // The transfers of round k.
  sent(k) {
    return Array.from({ length: this.offsets[k + 1] - this.offsets[k] }, (_, j) => this.offsets[k] + j);
  }

  get stopped() {
    return Boolean(this.stop) && this.now >= this.last;
  }

  get roundsDone() {
    const k = this.over.findIndex((moment) => moment > this.now);
    return k < 0 ? this.rounds : k;
  }

  // Chunks that hold all they must, and how many must.
  get complete() {
    let full = 0;
    let wanted = 0;
    this.goal.forEach((goal, cell) => {
      if (!goal) return;
      wanted++;
      if (this.once[cell] === goal && !this.twice[cell]) full++;
    });
    return { full, wanted };
  }

  // Chunks that are not as they must be.
  get wrong() {
    const bad = Array.from(this.goal.keys()).filter((cell) => this.goal[cell] && (this.once[cell] !== this.goal[cell] || this.twice[cell]));
    return bad.map((cell) => [Math.floor(cell / this.chunks), cell % this.chunks]);
  }

  name(rank) {
    return this.names([rank]);
  }

  kind = (ranks) => (ranks[0] < this.workers ? "rank" : "server");

  names(ranks) {
    const first = this.kind(ranks) === "rank" ? 0 : this.workers;
    return numbered(this.kind(ranks), ranks.map((rank) => rank - first).sort((a, b) => a - b));
  }

  // When the picture of it stands still: at its end, or where it breaks.
  get last() {
    return Math.min(this.finish, this.limit);
  }

  state() {
    const rows = (flat) => Array.from({ length: this.ranks }, (_, r) => Array.from(flat.slice(r * this.chunks, (r + 1) * this.chunks)));
    return { once: rows(this.once), twice: rows(this.twice), rounds: this.roundsDone };
  }
}
