// Moves the window of a saved board through its run, by the slider or by itself.
const film = document.querySelector(".lk-film");
if (film) {
  const [play, slider, shown] = film.children, LASTS = 12_000; // ms
  const { begin, until } = shown.dataset;
  let before = null;
  const show = () => {
    film.closest(".lk-board").style.setProperty("--at", slider.value);
    shown.textContent = `from ${(+begin + slider.value * (until - begin)).toFixed(2)} s`;
    slider.setAttribute("aria-valuetext", shown.textContent);
  };
  const stop = () => { before = null; play.textContent = "Play"; };
  const move = (now) => {
    if (before === null) return;
    slider.value = +slider.value + (now - before) / LASTS;
    before = now;
    show();
    +slider.value < 1 ? requestAnimationFrame(move) : stop();
  };
  slider.addEventListener("input", () => { stop(); show(); });
  play.addEventListener("click", () => {
    if (before !== null) return stop();
    if (+slider.value >= 1) slider.value = 0;
    before = performance.now();
    play.textContent = "Pause";
    requestAnimationFrame(move);
  });
  show();
}
