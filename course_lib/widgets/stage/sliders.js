// What the learner can change: workers, hosts, bytes and links, and the button that runs it for real.

// 1 KiB to 64 MiB.
const POWERS = Array.from({ length: 17 }, (_, i) => 1024 * 2 ** i);
// Bytes a second.
const RATES = [10, 25, 50, 100, 200, 500, 1e3, 2.5e3, 5e3, 1e4, 1.6e4, 2.5e4, 4e4, 1e5, 2e5, 4e5].map((mbit) => (mbit * 1e6) / 8);
const SLIDERS = {
  workers: { label: "workers", title: "Processes that train, one a rank.", unit: "worker", stops: Array.from({ length: 31 }, (_, i) => i + 2), show: String },
  hosts: { label: "hosts", title: "Machines that the workers are spread over.", unit: "host", stops: [1, 2, 3, 4, 5, 6, 7, 8], show: String },
  bytes: { label: "message", title: "Bytes of gradients that each worker brings.", stops: POWERS, show: amount },
  between: { label: "between hosts", title: "Speed of the link of each host, each way.", stops: RATES, show: speed },
  inside: { label: "inside a host", title: "Speed of a transfer that stays on its host.", stops: RATES, show: speed },
};
const LEGEND =
  "A row is a rank, a column a chunk of its buffer. A layer in a rank's colour: that rank's gradient is in. Outlined: complete. + is added, = replaces.";
const SHARED = " Neighbours share a colour.";
const REAL = "Start real processes on this machine and play their transfers.";

class Sliders {
  constructor(parent, model) {
    this.model = model;
    this.inputs = {};
    const form = make(parent, "div", { class: "stage-sliders" });
    if (!model.get("standalone") || model.get("most").workers) {
      for (const name of Object.keys(SLIDERS)) this.inputs[name] = this.#slider(form, name);
      this.runner = make(form, "button", { type: "button", class: "stage-run", title: REAL });
      this.runner.addEventListener("click", () => model.send(model.get("busy") ? { stop: true } : { run: true }));
    }
    const note = make(parent, "p", { class: "stage-note" });
    this.said = make(note, "span", { role: "status" });
    this.extra = make(note, "span", { class: "stage-extra" });
    this.passed = make(note, "span", { "aria-hidden": "true" });
    this.legend = make(parent, "p", { class: "stage-soft stage-legend" });
  }

  #slider(form, name) {
    const { label, stops } = SLIDERS[name];
    const box = make(form, "label");
    const head = make(box, "span", { class: "stage-head" });
    make(head, "span", {}, label);
    const value = make(head, "b");
    const input = make(box, "input", { type: "range", min: 0, max: stops.length - 1, step: 1, "aria-label": label });
    input.addEventListener("input", () => this.#set(name, stops[input.value]));
    return { box, value, input };
  }

  // Told to Python a moment later: a slider that is dragged says a lot.
  #set(name, value) {
    this.wanted = { ...(this.wanted ?? this.model.get("scene").settings), [name]: value };
    this.wanted.hosts = Math.min(this.wanted.hosts, this.wanted.workers);
    this.show();
    this.#forget();
    this.soon = setTimeout(() => {
      this.model.set("settings", this.wanted);
      this.model.save_changes();
    }, 40);
    this.late = setTimeout(() => this.#say("Waiting for the kernel: it is busy, or it has stopped."), 2000);
  }

  // While real processes are at work, the seconds go on.
  #count() {
    const busy = this.model.get("busy");
    if (busy === Boolean(this.counter)) return;
    clearInterval(this.counter);
    this.begun = performance.now();
    this.counter = busy ? setInterval(() => this.show(), 100) : 0;
  }

  #forget() {
    clearTimeout(this.soon);
    clearTimeout(this.late);
  }

  close() {
    clearInterval(this.counter);
    this.#forget();
  }

  // `about`: the settings in words; `pace`: how they are played. As before, where not given.
  show(about = this.about, pace = this.pace) {
    Object.assign(this, { about, pace });
    const { settings: shown, fixed } = this.model.get("scene");
    if (this.wanted && Object.entries(this.wanted).every(([name, value]) => shown[name] === value)) {
      this.wanted = null;
      clearTimeout(this.late);
    }
    const settings = this.wanted ?? shown;
    for (const [name, { box, value, input }] of Object.entries(this.inputs)) {
      const { stops, show, unit } = SLIDERS[name];
      const most = { ...this.model.get("most") };
      most.hosts = Math.min(most.hosts ?? Infinity, settings.workers);
      const off = (stop) => Math.abs(Math.log(stop / settings[name]));
      input.max = stops.findLastIndex((stop) => stop <= (most[name] ?? Infinity));
      input.value = stops.reduce((best, stop, i) => (off(stop) < off(stops[best]) ? i : best), 0);
      value.textContent = show(settings[name]);
      input.setAttribute("aria-valuetext", unit ? counted(settings[name], unit) : show(settings[name]));
      input.disabled = Boolean(fixed) || (name === "between" && settings.hosts === 1);
      box.title = fixed || (name === "between" && input.disabled ? "All workers are on one host." : SLIDERS[name].title);
    }
    this.legend.textContent = settings.workers > 8 ? LEGEND + SHARED : LEGEND;
    if (this.runner) {
      this.runner.hidden = !this.model.get("runnable");
      this.runner.disabled = Boolean(this.wanted) && !this.model.get("busy");
      this.runner.textContent = this.model.get("busy") ? "Stop" : "Run it for real";
      this.runner.title = this.model.get("busy") ? "End its processes." : REAL;
    }
    this.#count();
    const alone = this.model.get("standalone") && (this.runner ? about : `${about} This page stands alone: in a notebook, sliders change these settings and run it again.`);
    const status = this.model.get("status");
    this.#say(status);
    this.extra.textContent = status ? "" : [pace, alone || fixed].filter(Boolean).join(" ");
    this.passed.textContent = this.counter ? `: ${((performance.now() - this.begun) / 1000).toFixed(1)} s` : "";
  }

  #say(text) {
    if (this.said.textContent !== text) this.said.textContent = text;
  }
}
