// The stage: algorithms side by side on one clock. Python says what happens (the scene); this plays it, steps and scrubs.

const FIGURES = {
  rounds: ["rounds", "A rank goes on to its next round when its own sends have left and its own receives have come."],
  time: ["time", ""],
  link: ["busiest link", "Bytes so far on the link between hosts that carries the most in the end."],
  bus: ["bus bandwidth", "2(P−1)/P · bytes / time with P workers, as nccl-tests define it, to compare algorithms. It takes all workers as joined alike: with slow links between hosts it can be more than these carry."],
};
const THEME = ["ls-ink", "ls-soft", "ls-paper", "ls-line", ...["rack", "track", "pipe", "rank", "alarm"].map((name) => `stage-${name}`)];
// Pixels of one of three panels.
const NARROWEST = 260;
// Pixels of a picture's height: below that, labels of ranks have no room.
const LOWEST = 250;
// Seconds for which a chunk that has just changed is marked.
const GLOW = 0.35;

class Stage {
  constructor(model, el) {
    this.model = model;
    this.root = make(el, "div", { class: "ls ls-stage", tabindex: "0", role: "group", "data-lm-suppress-shortcuts": "true" });
    this.root.stage = this;
    this.panels = make(this.root, "div", { class: "stage-panels" });
    this.transport = new Transport(this.root, {
      first: () => this.seek(0, true),
      back: () => this.step(-1),
      play: () => this.toggle(),
      next: () => this.step(1),
      clock: (name) => this.clock !== name && this.#tell("clock", name),
      speed: (x) => this.#tell("speed", x),
      follow: (chunk) => this.follow(chunk),
      scrub: (part) => this.pause() || this.seek(part * this.total),
      scrubbed: () => this.#tell("at", this.at),
    });
    this.ending = new AbortController();
    this.root.querySelector(".stage-row").append(projector(this.ending.signal));
    this.sliders = new Sliders(this.root, model);
    this.tip = make(this.root, "div", { class: "stage-tip", role: "tooltip", hidden: "" });
    this.live = make(this.root, "div", { class: "stage-live", "aria-live": "polite" });
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.playing = false;
    this.followed = null;
    this.at = this.total = this.frames = 0;
    this.#listen();
    this.setScene();
    this.seek(model.get("at"));
  }

  #listen() {
    const { model } = this;
    const settings = () => this.sliders.show();
    this.calls = {
      "change:scene": () => this.setScene(),
      "change:clock": () => this.setClock(),
      "change:speed": () => this.setClock(),
      "change:status": settings,
      "change:busy": settings,
      "change:at": () => this.seek(model.get("at")),
      "change:playing": () => (model.get("playing") ? this.play() : this.pause()),
    };
    for (const [event, call] of Object.entries(this.calls)) model.on(event, call);
    this.root.addEventListener("keydown", (event) => this.#key(event));
    this.panels.addEventListener("pointermove", (event) => this.#point(event));
    this.panels.addEventListener("click", (event) => this.#pick(event));
    this.panels.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.watch = new ResizeObserver(() => this.arrange());
    this.watch.observe(this.root);
    // JupyterLab hides all while it changes its theme.
    this.turned = () => requestAnimationFrame(() => this.arrange(true));
    this.theme = new MutationObserver(this.turned);
    this.theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "data-jp-theme-light", "class"] });
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", this.turned);
  }

  close() {
    cancelAnimationFrame(this.frame);
    this.sliders.close();
    this.ending.abort();
    this.watch.disconnect();
    this.theme.disconnect();
    this.dark.removeEventListener("change", this.turned);
    for (const [event, call] of Object.entries(this.calls)) this.model.off(event, call);
  }

  #tell(name, value) {
    this.model.set(name, value);
    this.model.save_changes();
  }

  // --- a new scene, a new clock ---

  setScene() {
    this.scene = this.model.get("scene");
    this.algorithms = this.scene.panels.map((data) => new Algorithm(data));
    this.right = this.algorithms.filter((a) => !a.error);
    this.root.setAttribute("aria-label", `All-reduce: ${this.algorithms.map((a) => a.label).join(" beside ")}`);
    this.panels.replaceChildren();
    this.views = this.algorithms.map((algorithm) => this.#panel(algorithm));
    this.setClock();
  }

  get clock() {
    const wanted = this.model.get("clock");
    return this.right.every((a) => a.has(wanted)) ? wanted : "rounds";
  }

  get words() {
    return this.scene.words[this.clock === "rounds" ? "simulated" : this.clock];
  }

  // Stay as far on as before.
  setClock() {
    const { clock, right } = this;
    const part = this.total ? this.at / this.total : 0;
    right.forEach((a) => a.use(clock));
    this.total = Math.max(0, ...right.map((a) => a.last));
    // Seconds of a showing.
    this.lasts = (clock === "rounds" ? Math.min(Math.max(1.1 * this.total, 4), 26) : 14) / this.model.get("speed");
    const ends = right.flatMap((a) => [...a.over.filter((moment) => moment < a.last), a.last]);
    this.moments = [...new Set([0, ...ends])].sort((a, b) => a - b);
    this.transport.arrange(right, { clock, speed: this.model.get("speed"), total: this.total, lasts: this.lasts, runnable: this.model.get("runnable") });
    this.sliders.show(this.words.about, this.transport.pace);
    this.at = part * this.total;
    this.follow(this.followed);
  }

  // Follow a chunk, or none (null), in all algorithms that have it.
  follow(chunk) {
    const known = (a) => chunk !== null && chunk < a.chunks;
    this.followed = this.right.some(known) ? chunk : null;
    for (const a of this.right) a.followed = known(a) ? chunk : null;
    this.transport.chunk.value = this.followed ?? "";
    this.arrange(true);
  }

  #panel(algorithm) {
    const box = make(this.panels, "section", { class: "stage-panel", "aria-label": algorithm.label });
    const head = make(box, "header");
    // Long names break after a _.
    const parts = algorithm.label.split(/(?<=_)/).flatMap((part) => [part, document.createElement("wbr")]);
    make(head, "h3").append(...parts);
    if (algorithm.error) {
      make(box, "p", { class: "stage-stop", role: "alert" }, algorithm.error);
      return { algorithm };
    }
    const list = make(head, "dl");
    const shown = {};
    for (const [name, [label, title]] of Object.entries(FIGURES)) {
      const pair = make(list, "div", { title });
      shown[name] = { value: make(pair, "dd"), label: make(pair, "dt", {}, label), pair };
    }
    const { hidden } = this.scene;
    shown.link.pair.hidden = !algorithm.most || hidden.includes("busiest link");
    shown.bus.pair.hidden = Boolean(algorithm.stop) || hidden.includes("bus bandwidth");
    const canvas = make(box, "div", { class: "stage-canvas", role: "img" });
    const round = make(box, "p", { class: "stage-round" });
    const stop = make(box, "p", { class: "stage-stop", role: "alert", hidden: "" });
    return { algorithm, shown, canvas, round, stop, picture: new Picture(canvas) };
  }

  // Sizes and colours; `anew` where the width is as it was.
  arrange(anew = false) {
    const width = this.root.clientWidth;
    // Pixels of the screen.
    const seen = width * zoomOf(this.root);
    if (anew) this.size = 0;
    if (!width || width === this.size) return;
    this.size = width;
    const { length } = this.views;
    // No place is empty.
    const across = length === 3 ? (seen < 3 * NARROWEST ? 1 : 3) : Math.max(1, Math.min(length, Math.floor(seen / 400), length === 4 ? 2 : 3));
    this.panels.style.gridTemplateColumns = `repeat(${across}, minmax(0, 1fr))`;
    const look = getComputedStyle(this.root);
    const theme = Object.fromEntries(THEME.map((name) => [name.split("-")[1], look.getPropertyValue(`--${name}`).trim()]));
    // Bytes on the busiest link of all.
    const most = Math.max(1, ...this.right.map((a) => a.most));
    const told = { palette: this.scene.palette, words: this.words, most };
    this.views.forEach((view) => this.#reserve(view, width));
    // So that all of it is on one screen.
    const room = this.#room(Math.ceil(length / across));
    // Place for the words.
    const problem = this.algorithms.some((a) => a.stop || a.error) ? 88 : 0;
    for (const { algorithm, canvas, picture } of this.views) {
      const high = canvas && Math.min(Math.max((projecting() ? 0.8 : 0.62) * canvas.clientWidth, 300), across > 1 ? 390 : 430, room) - problem;
      picture?.arrange(algorithm, canvas.clientWidth, Math.max(Math.floor(high), projecting() ? 190 : LOWEST), theme, told);
    }
    this.draw();
  }

  // The height of the longest sentence: nothing jumps while it plays.
  #reserve({ algorithm: a, round }, width) {
    if (!round) return;
    if (round.width !== width) round.style.minHeight = "";
    round.width = width;
    const all = Array.from({ length: a.rounds + 1 }, (_, k) => sentence(a, k));
    round.textContent = all.reduce((longest, one) => (one.length > longest.length ? one : longest), "");
    round.style.minHeight = `${round.offsetHeight}px`;
  }

  // The height that there is for a picture.
  #room(rows) {
    // A frame is as high as its page.
    if ("framed" in document.documentElement.dataset) return Infinity;
    if (!projecting()) return Math.max(300, innerHeight - (this.model.get("standalone") ? 340 : 420)) / rows;
    const screen = this.root.closest(".jp-WindowedPanel-outer")?.clientHeight ?? innerHeight;
    const pictures = Math.max(0, ...this.views.map(({ canvas }) => canvas?.offsetHeight ?? 0));
    const others = this.root.offsetHeight - rows * pictures;
    return ((screen - 12) / zoomOf(this.root) - others) / rows;
  }

  // --- the moment ---

  seek(moment, tell = false) {
    this.at = Math.min(Math.max(moment, 0), this.total);
    this.draw();
    if (tell) this.#tell("at", this.at);
  }

  step(way) {
    this.pause();
    const near = 1e-6 * this.total;
    const next = way > 0 ? this.moments.find((t) => t > this.at + near) : this.moments.findLast((t) => t < this.at - near);
    this.seek(next ?? (way > 0 ? this.total : 0), true);
    this.live.textContent = this.algorithms.map((a) => (a.error || a.stopped ? summary(a) : `${a.label}: ${sentence(a, a.roundsDone)}`)).join(" ");
  }

  toggle() {
    this.playing ? this.pause() : this.play();
  }

  play() {
    if (this.playing || !this.total) return;
    if (this.at >= this.total) this.at = 0;
    this.#setPlaying(true);
    let before = null;
    const frame = (now) => {
      const passed = before === null ? 0 : Math.min((now - before) / 1000, 0.25);
      before = now;
      this.#advance(passed);
      this.draw();
      this.frames++;
      if (this.at >= this.total) this.pause();
      else this.frame = requestAnimationFrame(frame);
    };
    this.frame = requestAnimationFrame(frame);
  }

  // On by so many seconds; for who wants less motion, a step when it is time for one.
  #advance(passed) {
    if (!this.still.matches) {
      this.at = Math.min(this.at + (passed * this.total) / this.lasts, this.total);
      return;
    }
    this.held = (this.held ?? 0) + passed;
    if (this.held < this.lasts / Math.max(1, this.moments.length - 1)) return;
    this.held = 0;
    this.at = this.moments.find((moment) => moment > this.at) ?? this.total;
  }

  pause() {
    if (!this.playing) return;
    cancelAnimationFrame(this.frame);
    this.#setPlaying(false);
    this.draw();
    this.#tell("at", this.at);
  }

  #setPlaying(yes) {
    this.playing = yes;
    this.transport.playing(yes);
    this.#tell("playing", yes);
  }

  // Figures change ten times a second while it plays: nobody reads faster, and text costs the page more than the picture does.
  draw() {
    const now = performance.now();
    const read = !this.playing || now - (this.read ?? 0) > 100;
    if (read) this.read = now;
    const glow = this.playing ? (GLOW * this.total) / this.lasts : 0;
    for (const view of this.views) {
      if (!view.picture?.theme) continue;
      view.algorithm.seek(this.at);
      view.picture.drawBelow();
      view.picture.drawAbove(!this.playing, glow, this.still.matches);
      if (read) this.#figures(view);
    }
    this.transport.show(this.at, read);
  }

  #figures({ algorithm: a, shown, round, stop, canvas }) {
    const rounds = this.clock === "rounds";
    const times = a.clocks[this.clock] ?? a.clocks[a.real];
    const put = (node, text) => node.textContent !== text && (node.textContent = text);
    put(shown.rounds.value, `${a.roundsDone} of ${a.length}`);
    put(shown.time.value, seconds(rounds ? a.passed : Math.min(a.now, a.finish)));
    put(shown.time.label, times.reality);
    put(shown.link.value, amount(a.busiest));
    put(shown.bus.value, `${(times.bus / 1e9).toPrecision(2)} GB/s`);
    const source = times.reality === "simulated" ? "Computed by the model of links; no process ran." : "The quickest call of real processes.";
    shown.time.pair.title = `${rounds ? "When the last rank is done with the rounds shown" : "The time so far"}. ${source}`;
    put(round, sentence(a, a.roundsDone));
    round.hidden = a.stopped;
    stop.hidden = !a.stopped;
    put(stop, a.stopped ? a.stop.text : "");
    if (!this.playing) canvas.setAttribute("aria-label", summary(a));
  }

  // --- keyboard and pointer ---

  #key(event) {
    event.stopPropagation();
    if (event.key === "Escape") return this.follow(null);
    const acts = { ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1), " ": () => this.toggle() };
    const act = { ...acts, Home: () => this.seek(0, true), End: () => this.seek(this.total, true) }[event.key];
    const theirs = event.target.closest(`.stage-sliders, select${event.key === " " ? ", button" : ""}`);
    if (!act || theirs || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  // What is under the pointer, and in which view.
  #under(event) {
    const view = this.views.find((one) => one.canvas?.contains(event.target));
    const at = view && pointIn(view.canvas, event);
    return { view, found: view && view.picture.hit(at.x, at.y) };
  }

  #pick(event) {
    const { view, found } = this.#under(event);
    const chunk = found?.chunk ?? view?.algorithm.chunk[found?.transfer];
    if (chunk !== undefined) this.follow(chunk === this.followed ? null : chunk);
  }

  #point(event) {
    const { view, found } = this.#under(event);
    this.tip.hidden = !found;
    this.panels.style.cursor = found && found.link === undefined ? "pointer" : "";
    if (!found) return;
    this.tip.replaceChildren();
    about(view.algorithm, this.clock, found).forEach((line, i) => make(this.tip, i ? "div" : "b", {}, line));
    const { x, y } = pointIn(this.root, event);
    const left = Math.max(0, Math.min(x + 14, this.root.clientWidth - this.tip.offsetWidth - 4));
    this.tip.style.transform = `translate(${left}px, ${y + 16}px)`;
  }

  // For tests: who has what on stage now, by algorithm.
  state() {
    return this.algorithms.map((a) => a.state());
  }
}

export default {
  render({ model, el }) {
    const stage = new Stage(model, el);
    return () => stage.close();
  },
};
