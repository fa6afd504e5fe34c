export default {
  render({ el }) {
    const ending = new AbortController();
    el.append(projector(ending.signal));
    return () => ending.abort();
  },
};
