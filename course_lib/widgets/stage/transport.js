// Time: buttons, the three clocks, speed, and a bar for each algorithm with one slider over all of them.

const CLOCKS = {
  rounds: ["rounds", "Every round takes equally long: it shows what happens, not when."],
  simulated: ["simulated", "Times from the model of the links below."],
  measured: ["measured", "Times from the real processes that carried it out, measured or emulated."],
};
const REAL_TIME = "Times are those of the quickest call; a call that was recorded shows how its transfers share them.";
const ICONS = {
  first: "M3 2v12M13 2 5 8l8 6z",
  back: "M11 2 3 8l8 6zM13 2v12",
  play: "M4 2l10 6-10 6z",
  pause: "M4 2h3v12H4zM9 2h3v12H9z",
  next: "M3 2v12M5 2l8 6-8 6z",
};

class Transport {
  // `act`: what to do on first, back, play, next, clock(name), speed(x), follow(chunk), scrub(part), scrubbed.
  constructor(parent, act) {
    this.act = act;
    this.tracks = make(parent, "div", { class: "stage-tracks" });
    const row = make(parent, "div", { class: "stage-row" });
    const buttons = make(row, "div", { class: "stage-buttons" });
    this.#button(buttons, "first", "To the start (Home)");
    this.#button(buttons, "back", "A round back (←)");
    this.player = this.#button(buttons, "play", "Play (space)");
    this.#button(buttons, "next", "A round on (→)");
    const clocks = make(row, "div", { class: "stage-clocks", role: "radiogroup", "aria-label": "clock" });
    this.clocks = Object.entries(CLOCKS).map(([name, [label]]) => {
      const choice = make(clocks, "button", { type: "button", role: "radio" }, label);
      if (name !== "rounds") make(choice, "span", { class: "stage-extra" }, " time");
      choice.addEventListener("click", () => act.clock(name));
      return { name, choice };
    });
    const rate = make(row, "label", { class: "stage-speed" });
    this.rate = make(rate, "select", { "aria-label": "speed" });
    for (const x of [0.25, 0.5, 1, 2, 4]) make(this.rate, "option", { value: x }, `${x}×`);
    this.rate.addEventListener("change", () => act.speed(Number(this.rate.value)));
    this.chunk = make(make(row, "label", { class: "stage-speed" }), "select", { "aria-label": "follow a chunk", title: "Follow a chunk through all rounds; so does a click on it (end: Escape)" });
    this.chunk.addEventListener("change", () => act.follow(this.chunk.value === "" ? null : Number(this.chunk.value)));
    // How much slower than in reality it is shown, in words.
    this.pace = "";
  }

  #button(parent, icon, label) {
    const made = make(parent, "button", { type: "button", "aria-label": label, title: label, class: `stage-${icon}` });
    made.innerHTML = `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${ICONS[icon]}"/></svg>`;
    made.addEventListener("click", () => this.act[icon]());
    return made;
  }

  // The clock that is shown, those that there are, and how long a showing of `total` lasts.
  arrange(algorithms, { clock, speed: rate, total, lasts, runnable }) {
    const missing = runnable ? "Not measured yet: run it for real first." : "Nothing has been measured for this picture.";
    for (const { name, choice } of this.clocks) {
      choice.disabled = !algorithms.every((a) => a.has(name));
      choice.setAttribute("aria-checked", String(clock === name));
      choice.title = choice.disabled ? missing : CLOCKS[name][1];
    }
    this.rate.value = rate;
    const chunks = Math.max(0, ...algorithms.map((a) => a.chunks));
    if (this.chunk.length !== chunks + 1) this.chunk.replaceChildren(new Option("follow", ""), ...Array.from({ length: chunks }, (_, i) => new Option(`chunk ${i}`, i)));
    const real = clock === "measured" ? ` ${REAL_TIME}` : "";
    this.pace = clock === "rounds" || !total ? "" : `${seconds(total)} are shown in ${lasts.toPrecision(2)} s.${real}`;
    Object.assign(this, { clock, total });
    this.#bars(algorithms);
  }

  #bars(algorithms) {
    this.tracks.replaceChildren();
    const field = make(this.tracks, "div", { class: "stage-field" });
    this.bars = algorithms.map((a) => {
      const row = make(field, "div", { class: "stage-track" });
      make(row, "span", { class: "stage-name", title: a.label }, a.label);
      const lane = make(row, "span", { class: "stage-lane" });
      const bar = make(lane, "span", { class: "stage-bar" });
      const fill = make(bar, "span", { class: "stage-fill" });
      const took = this.clock === "rounds" ? `${a.rounds} round${a.rounds === 1 ? "" : "s"}` : `${seconds(a.finish)} in all`;
      const end = make(lane, "span", { class: "stage-end" }, a.limit < Infinity ? "stops here" : took);
      bar.style.width = end.style.left = `${this.total ? (100 * a.last) / this.total : 0}%`;
      return { fill, a };
    });
    this.scrubber = make(field, "input", { type: "range", class: "stage-scrub", min: 0, max: 1000, step: "any", "aria-label": "moment" });
    this.scrubber.addEventListener("input", () => this.act.scrub(this.scrubber.value / 1000));
    this.scrubber.addEventListener("change", () => this.act.scrubbed());
    this.head = make(field, "span", { class: "stage-playhead" });
  }

  show(at, read) {
    const part = this.total ? at / this.total : 0;
    this.head.style.transform = `translateX(${100 * part}%)`;
    for (const { fill, a } of this.bars) fill.style.transform = `scaleX(${a.last ? Math.min(1, at / a.last) : 0})`;
    if (!read) return;
    this.scrubber.value = 1000 * part;
    this.scrubber.setAttribute("aria-valuetext", clockTime(this.clock, at));
  }

  playing(yes) {
    const label = yes ? "Pause (space)" : "Play (space)";
    this.player.querySelector("path").setAttribute("d", ICONS[yes ? "pause" : "play"]);
    this.player.setAttribute("aria-label", label);
    this.player.title = label;
  }
}
