// plotly fits its figure again when the window changes, but not when only the room for it does: a side bar opens, or a cell gets its place late.
export default {
  render({ el }) {
    const watch = new ResizeObserver(() => window.dispatchEvent(new Event("resize")));
    watch.observe(el);
    return () => watch.disconnect();
  },
};
