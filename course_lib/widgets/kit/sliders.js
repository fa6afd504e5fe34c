// Names for the sliders of ipywidgets, which have none, and their values as they are shown: "times slower, 4". Choices keep their keys, which JupyterLab would take for cells.

/** Keep the sliders below an element named, until the signal of an AbortController. */
function nameSliders(root, signal) {
  const put = (node, name, value) => node.getAttribute(name) !== value && node.setAttribute(name, value);
  const keep = () => root.querySelectorAll("select, input[type=radio]").forEach((one) => put(one, "data-lm-suppress-shortcuts", "true"));
  const name = () => root.querySelectorAll(".widget-slider").forEach((slider) => {
    const handle = slider.querySelector(".noUi-handle"), readout = slider.querySelector(".widget-readout");
    const label = slider.querySelector(".widget-label")?.textContent || root.getAttribute("aria-label") || "value";
    if (handle) put(handle, "aria-label", label);
    if (handle && readout) put(handle, "aria-valuetext", readout.textContent);
    if (readout) put(readout, "aria-label", `${label}, as a number`);
  });
  const renew = () => { name(); keep(); };
  const watch = new MutationObserver(renew);
  watch.observe(root, { subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ["aria-valuetext"] });
  signal.addEventListener("abort", () => watch.disconnect());
  renew();
}
