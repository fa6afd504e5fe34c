// At a message the next cell gets the focus, if the card stands in the cell that has it: Shift+Enter goes on from there.
export default {
  render({ model, el }) {
    const onward = () => {
      const cell = el.closest(".jp-Cell.jp-mod-active");
      cell?.nextElementSibling?.focus();
    };
    model.on("msg:custom", onward);
    return () => model.off("msg:custom", onward);
  },
};
