// Runs a widget's script on a page that has no kernel.

// The part of a Jupyter widget's model that a script uses: values, and those who want to hear when one changes.
const revive = (key, value) =>
  value && typeof value === "object" && "$bytes" in value
    ? new DataView(Uint8Array.from(atob(value.$bytes), (letter) => letter.charCodeAt(0)).buffer)
    : value;
const values = JSON.parse(document.getElementById("state").textContent, revive);
const heard = {};
const model = {
  get: (name) => values[name],
  set(name, value) {
    if (values[name] === value) return;
    values[name] = value;
    for (const call of heard[`change:${name}`] ?? []) call(model, value);
  },
  on: (event, call) => (heard[event] ??= []).push(call),
  off: (event, call) => { heard[event] = call ? (heard[event] ?? []).filter((one) => one !== call) : []; },
  save_changes() {},
  send() {},
};
const source = new Blob([JSON.parse(document.getElementById("script").textContent)], { type: "text/javascript" });
const { default: made } = await import(URL.createObjectURL(source));
const widget = typeof made === "function" ? await made() : made;
await widget.initialize?.({ model });
await widget.render({ model, el: document.getElementById("widget") });
