// Answers "lock?": by then the state of the sliders has been sent. At "onward" the next cell gets the focus, if the card stands in the cell that has it: Shift+Enter goes on from there.
export default {
  render({ model, el }) {
    const left = new AbortController(), { signal } = left;
    const act = (message) => (message === "lock?" ? model.send("lock") : el.closest(".jp-Cell.jp-mod-active")?.nextElementSibling?.focus());
    const unfold = () => el.closest(".jp-Notebook")?.querySelectorAll(".jp-InputPlaceholder .jp-Placeholder-content").forEach((cell) => {
      if (model.get("unfolded").some((name) => cell.textContent.startsWith(`# The answer to ${name}:`))) cell.click();
    });
    // A slider that is touched counts as moved. A number that is typed counts even without Enter.
    const touch = ({ type, key, target }) => {
      const slider = [...el.closest(".ls-predict").querySelectorAll(".widget-slider")].findIndex((one) => one.contains(target));
      const readout = slider >= 0 && target.matches(".widget-readout");
      if (readout) target.dataset.lmSuppressShortcuts = true; // of the notebook
      if (type === "blur") return void (readout && target.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", keyCode: 13, bubbles: true })));
      const text = target.textContent, plain = /^-?\d{1,3}(,\d{3})+(\.\d*)?$/.test(text) ? text.replaceAll(",", "") : text;
      const typed = !readout || key !== "Enter" ? null : Number.isFinite(+plain) ? +plain : text;
      if (slider >= 0 && key !== "Tab") model.send({ slider, typed });
    };
    function begin() {
      const card = el.closest(".ls-predict");
      if (!card) return void (signal.aborted || requestAnimationFrame(begin)); // it is not on the page yet
      nameSliders(card, signal);
      for (const type of ["pointerdown", "keydown", "blur"]) card.addEventListener(type, touch, { capture: true, signal });
      unfold();
    }
    begin();
    model.on("msg:custom", act);
    model.on("change:unfolded", unfold);
    return () => {
      left.abort();
      model.off("msg:custom", act);
      model.off("change:unfolded", unfold);
    };
  },
};
