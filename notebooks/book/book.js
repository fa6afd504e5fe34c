// Frames of widgets as high as their pages, all as light or dark as the book, and figures of plotly.
(() => {
  const root = new URL("..", document.currentScript.src).href;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => {
    const chosen = document.body.dataset.theme;
    return chosen === "light" || chosen === "dark" ? chosen : system.matches ? "dark" : "light";
  };
  // A page that is read from a file cannot fetch another, from which the search would quote.
  if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

  const guesses = {};
  addEventListener("message", ({ source, data }) => {
    const frame = [...frames()].find((one) => one.contentWindow === source);
    if (frame && data.guess && !guesses[frame.src]) {
      guesses[frame.src] = data.guess; // the same card may stand below, where the lesson has the result
      for (const other of frames()) if (other !== frame && other.src === frame.src) other.contentWindow.postMessage(data, "*");
    }
    if (!frame || !(data.height > 0)) return;
    frame.style.height = `${data.height}px`;
    if (frame.dataset.theme !== theme()) paint(frame);
    const same = [...frames()].filter((one) => one.src === frame.src);
    if (same.at(-1) !== frame) frame.contentWindow.postMessage({ later: true }, "*"); // the result stands with the last
    if (guesses[frame.src]) frame.contentWindow.postMessage({ guess: guesses[frame.src] }, "*");
  });
  const paint = (frame) => {
    frame.dataset.theme = theme();
    frame.contentWindow.postMessage({ theme: theme() }, "*");
  };

  const frames = () => document.querySelectorAll("iframe.widget");
  addEventListener("load", ({ target }) => target.matches?.("iframe.widget") && paint(target), true);

  // Styles of cards follow the system; here they follow the book's switch.
  const rules = new Set();
  const style = () => {
    for (const { ownerNode } of document.styleSheets) {
      if (!ownerNode.closest?.(".cell_output")) continue;
      for (const rule of ownerNode.sheet.cssRules) if (rule.media?.mediaText === "(prefers-color-scheme: dark)") rules.add(rule);
    }
    for (const rule of rules) rule.media.mediaText = theme() === "dark" ? "all" : "not all";
  };

  const look = ({ layout }) => {
    const { color } = getComputedStyle(document.querySelector("article") ?? document.body);
    const line = theme() === "dark" ? "#3a424e" : "#d1d9e0";
    const axes = Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name));
    const lines = axes.flatMap((axis) => ["gridcolor", "zerolinecolor", "linecolor"].map((part) => [`${axis}.${part}`, line]));
    return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", "font.color": color, ...Object.fromEntries(lines) };
  };
  const figures = () => document.querySelectorAll(".figure");
  const draw = async () => {
    for (const place of figures()) {
      const { data, layout } = JSON.parse(place.firstElementChild.textContent);
      place.replaceChildren();
      await Plotly.newPlot(place, data, layout, { responsive: true, displaylogo: false });
      await Plotly.relayout(place, look(place));
    }
  };

  const turn = () => {
    style();
    frames().forEach(paint);
    if (window.Plotly) figures().forEach((place) => place.layout && Plotly.relayout(place, look(place)));
  };
  addEventListener("DOMContentLoaded", () => {
    style();
    frames().forEach(paint); // some were there before this script
    new MutationObserver(turn).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
    system.addEventListener("change", turn);
    if (!figures().length) return;
    document.head.append(Object.assign(document.createElement("script"), { src: `${root}_static/plotly.min.js`, onload: draw }));
  });
})();
