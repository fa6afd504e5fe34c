// Larger type in all widgets, for a projector: one switch, for all pages and kernels. The browser keeps it, as it knows its screen.

const PROJECTOR = "lockstep-projector";
const projecting = () => document.documentElement.hasAttribute("data-ls-projector");

function project() {
  document.documentElement.toggleAttribute("data-ls-projector", localStorage.getItem(PROJECTOR) === "on");
  dispatchEvent(new Event(PROJECTOR));
}

/** The switch, as a button, until the signal of an AbortController. */
function projector(signal) {
  const button = document.createElement("button");
  const shown = () => button.setAttribute("aria-pressed", projecting());
  Object.assign(button, { type: "button", className: "ls-projector", textContent: "Projector", title: "Larger, for a projector: all widgets, until it is pressed again" });
  button.addEventListener("click", () => {
    localStorage.setItem(PROJECTOR, projecting() ? "off" : "on");
    project();
  });
  addEventListener(PROJECTOR, shown, { signal });
  addEventListener("storage", project, { signal });
  shown();
  return button;
}

/** Where a pointer is in an element, in pixels of the element. */
function pointIn(element, event) {
  const box = element.getBoundingClientRect(), scale = box.width / element.clientWidth || 1;
  return { x: (event.clientX - box.left) / scale, y: (event.clientY - box.top) / scale };
}

const zoomOf = (element) => element.currentCSSZoom ?? 1;
project();
