// Answers "lock?": by then the state of the sliders has been sent. At "onward" the next cell gets the focus, if the card stands in the cell that has it: Shift+Enter goes on from there.
export default {
  render({ model, el }) {
    const act = (message) => {
      if (message === "lock?") {
        model.send("lock");
        return;
      }
      const cell = el.closest(".jp-Cell.jp-mod-active");
      cell?.nextElementSibling?.focus();
    };
    model.on("msg:custom", act);
    return () => model.off("msg:custom", act);
  },
};
