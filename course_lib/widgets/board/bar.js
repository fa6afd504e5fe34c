// The buttons of the page itself, and the voice of the board for those who do not see it.

const wordsOf = (text) => text.replace(/[\d.,]+/g, "#");

export default {
  render({ model, el }) {
    const ending = new AbortController();
    const save = document.createElement("button"), voice = document.createElement("div");
    Object.assign(save, { type: "button", className: "lk-save", textContent: "Save", title: "Save this board as a page that needs no kernel" });
    save.addEventListener("click", () => model.send("page"));
    Object.assign(voice, { className: "lk-voice", role: "status" });
    // Numbers change all the time: a new sentence is told, not a new number in the same one.
    const tell = () => {
      const text = [model.get("message"), model.get("headline")].filter(Boolean).join(" ");
      if (wordsOf(text) !== wordsOf(voice.textContent)) voice.textContent = text;
    };
    const keep = ({ page, name }) => {
      const href = URL.createObjectURL(new Blob([page], { type: "text/html" }));
      Object.assign(document.createElement("a"), { href, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(href), 10_000);
    };
    model.on("change:headline", tell);
    model.on("change:message", tell);
    model.on("msg:custom", keep);
    el.classList.add("lk-bar");
    el.append(voice, save, projector(ending.signal));
    // the board is there a moment later
    const named = () => (el.closest(".lk-board") ? nameSliders(el.closest(".lk-board"), ending.signal) : requestAnimationFrame(named));
    requestAnimationFrame(named);
    tell();
    return () => {
      ending.abort();
      model.off("change:headline", tell);
      model.off("change:message", tell);
      model.off("msg:custom", keep);
    };
  },
};
