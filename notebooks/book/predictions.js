// A prediction: inputs, a button that locks the guess, then guess and result side by side.
const card = JSON.parse(document.getElementById("card").textContent);
const form = document.querySelector("form");

const make = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};
const number = (value, unit) =>
  `${Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : +value.toPrecision(3)} ${unit}`.trim();

const lock = make("button", { type: "submit", textContent: "Lock my guess" });
const hint = make("span", { className: "hint" });
const row = make("p", {}, lock, " ", hint);
const verdict = make("div", { className: "verdict" });
verdict.setAttribute("role", "status");

const moved = new Set();
const sliders = Object.entries(card.numbers).map(([name, { low, high, step, unit }]) => {
  const input = make("input", { type: "range", min: low, max: high, step, value: low });
  const output = make("output", { textContent: number(low, unit) });
  input.oninput = () => (moved.add(name), (output.textContent = number(+input.value, unit)));
  form.append(make("label", { className: "slider" }, make("span", { textContent: name || unit }), input, output));
  return { name, input, unit, low, high };
});
const radios = card.choices.map((choice) => {
  const input = make("input", { type: "radio", name: "choice", value: choice });
  const label = make("label", { className: "choice" }, input, make("span", { textContent: choice }));
  form.append(label);
  return { input, label, choice };
});
form.append(row, verdict);

const bar = (label, share, words, kind) =>
  make("div", { className: "bar" }, make("span", { textContent: label }),
    make("i", { className: kind, style: `width: ${Math.max(0.5, 46 * share)}%` }), make("span", { textContent: words }));

// The same card in another frame of the page is locked with the same guess.
let later = false; // the lesson shows the card once more, after the experiment
addEventListener("message", ({ source, data }) => {
  if (source !== parent) return;
  later ||= Boolean(data.later);
  const { guess } = data;
  if (!guess || lock.disabled) return;
  for (const { input, choice } of radios) input.checked = choice === guess[""];
  for (const { name, input } of sliders) (input.value = guess[name]), input.oninput();
  form.requestSubmit();
});

form.onsubmit = (event) => {
  event.preventDefault();
  const chosen = radios.find(({ input }) => input.checked);
  const missing = sliders.filter(({ name }) => !moved.has(name)).map(({ name }) => name || "the slider");
  if (radios.length ? !chosen : missing.length) {
    hint.textContent = radios.length ? "Choose first." : `Move ${missing.join(" and ")} first.`;
    return;
  }
  hint.textContent = "";
  lock.textContent = "Locked";
  for (const { input } of [...radios, ...sliders]) input.disabled = true;
  lock.disabled = true;
  const guess = chosen ? { "": chosen.choice } : Object.fromEntries(sliders.map(({ name, input }) => [name, input.value]));
  parent.postMessage({ guess }, "*");
  if (later) {
    hint.textContent = "Read on: the result stands below, beside your guess.";
    return;
  }
  if (card.result[""] === null) hint.textContent = "The result stands in the lesson, below.";
  for (const { label, choice } of card.result[""] === null ? [] : radios) {
    const right = choice === card.result[""], mine = choice === chosen.choice;
    if (right) label.classList.add("right");
    if (right || mine) label.append(right ? " ✓" : "", mine ? " (your guess)" : "");
  }
  for (const { name, input, unit, low, high } of sliders) {
    const result = card.result[name], guess = +input.value;
    if (typeof result !== "number") continue;
    const least = Math.min(0, low, result), most = Math.max(high, result, guess);
    const share = (value) => (value - least) / (most - least || 1);
    if (name) verdict.append(make("b", { textContent: name }));
    verdict.append(bar("guess", share(guess), number(guess, unit), "guess"), bar("result", share(result), number(result, unit), "result"));
  }
  const why = chosen && chosen.choice !== card.result[""] ? card.tempting[chosen.choice] ?? "" : "";
  verdict.append(make("p", { textContent: `${card.note} ${why}`.trim() }));
};
