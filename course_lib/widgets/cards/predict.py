"""Predict: a question that the learner answers before anything runs. The guess is locked, and later
shown beside what the run gave.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as w

from course_lib.widgets.kit import Markup, element, join, page, svg

Range = tuple[float, float, str]
"""Of a slider: the lowest value, the highest, and the unit."""
Outcome = str | float | Mapping[str, float]
"""A choice, a number in the card's unit, or one for each name."""
GUESS, RESULT, STRIPES = "#CC79A7", "#0072B2", "url(#ls-guess)"


class Predict(w.VBox):
    """A card with a question and either `choices`, or a slider over `numbers` = (lowest, highest,
    unit), or several: {"ring": (0, 100, "ms"), ...}.

    `guess` is None until the learner locks it; after that it cannot be changed. `reveal(result,
    note)` shows guess and result side by side; without a guess it says so and shows the result. How
    real a result is, measured, emulated or simulated, stands where it comes from. Raises ValueError
    unless it is given either choices or numbers.
    """

    def __init__(
        self,
        question: str,
        choices: Sequence[str] = (),
        numbers: Range | Mapping[str, Range] | None = None,
    ) -> None:
        if bool(choices) == bool(numbers):
            raise ValueError("a prediction needs either choices or numbers")
        self.question, self.choices, self.numbers = question, tuple(choices), numbers
        self.ranges: dict[str, Range] = dict(_named(numbers)) if numbers else {}
        self.guess: Any = None
        self.result: Outcome | None = None
        self.note = ""
        self._moved: set[str] = set()
        radio = w.RadioButtons(options=list(choices), value=None, layout=w.Layout(width="auto"))
        self.inputs = {name: self._slider(name) for name in self.ranges} or {"": radio}
        self.input = next(iter(self.inputs.values()))
        tip = "After this the guess stays as it is"
        self.button = w.Button(description="Lock my guess", icon="lock", tooltip=tip)
        self.button.on_click(lambda _: self.lock())
        self.hint, self.answer = w.HTML(), w.HTML()
        row = w.HBox([self.button, self.hint], layout=w.Layout(align_items="center"))
        look = w.Layout(border_left=f"4px solid {RESULT}", padding="4px 14px", margin="6px 0")
        parts = [w.HTML(_question(question)), *self.inputs.values(), row, self.answer]
        super().__init__(parts, layout=look)

    def lock(self) -> None:
        """Keep the present choice as the guess; without one, the card says what is missing."""
        missing = [name for name in self.ranges if name not in self._moved]
        if self.guess is not None:
            return
        if self.choices and self.input.value is None:
            self.hint.value = "Choose first."
        elif missing:
            several = f"Move these sliders first: {', '.join(missing)}."
            self.hint.value = join("Move the slider first." if missing == [""] else several)
        else:
            values = {name: slider.value for name, slider in self.inputs.items()}
            self.guess = values if isinstance(self.numbers, Mapping) else values[""]
            self.hint.value = "It stays as it is. Now run the experiment."
            self._close("Locked")

    def reveal(self, result: Outcome, note: str = "") -> str:
        """Show the guess beside the `result` (a choice, a number in the card's unit, or one for
        each name); returns the text shown.
        """
        self._close("Locked" if self.guess is not None else "No guess")
        self.hint.value = ""
        self.result, self.note = result, note
        said = f"{self._compare(result)} {note}".strip()
        look = "margin:6px 0 0;font-size:14px;line-height:1.5"
        self.answer.value = join((self._picture(), element("p", said, style=look)))
        return said

    def table(self) -> str:
        """Question, guess and result as text."""
        guess = "no guess" if self.guess is None else self._show(self.guess)
        result = "none yet" if self.result is None else self._show(self.result)
        lines = [self.question, f"guess: {guess}", f"result: {result}", self.note]
        return "\n".join(filter(None, lines))

    def to_html(self, path: Path | str) -> Path:
        """Write a page with question, guess and result that needs no kernel and no network."""
        choices = element("ul", [element("li", choice) for choice in self.choices])
        answer = Markup(self.answer.value) or element("p", self.table().splitlines()[1])
        body = join((_question(self.question), choices if self.choices else None, answer))
        return page.save(path, page.document("Predict", page.card(body), page.NARROW))

    def __repr__(self) -> str:
        return f"Predict({self.question!r})"

    # --- what is said ---

    def _compare(self, result: Outcome) -> str:
        if self.guess is None:
            return f"You made no guess. Result: {self._show(result)}."
        if self.choices:
            verdict = "right" if self.guess == result else "wrong"
            return f"You guessed: {self.guess}. You were {verdict}; result: {result}."
        return f"Your guess: {self._show(self.guess)}. Result: {self._show(result)}."

    def _show(self, value: Outcome) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {self._number(v, name)}" for name, v in value.items())
        return value if isinstance(value, str) else self._number(value, "")

    def _number(self, value: float, name: str) -> str:
        digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return f"{digits} {self.ranges[name][2] if name in self.ranges else ''}".strip()

    def _picture(self) -> list[Markup]:
        """Guess and result as bars, one pair for each number."""
        guesses, found = _named(self.guess), _named(self.result)
        names = [name for name in self.ranges if name in found]
        return [self._scale(name, guesses.get(name), float(found[name])) for name in names]

    def _scale(self, name: str, guess: float | None, result: float) -> Markup:
        low, high, _ = self.ranges[name]
        values = [v for v in (guess, result) if v is not None and math.isfinite(v)]
        # bars that begin at zero can be compared by their length
        low, high = min(0.0, low, *values), max(high, *values)
        bars: list[Markup] = []
        for label, value, fill in (("guess", guess, STRIPES), ("result", result, RESULT)):
            if value is not None:
                y = 4 + 26 * (len(bars) // 4)
                width = 1 + 300 * (value - low) / ((high - low) or 1)
                edge = GUESS if label == "guess" else RESULT
                bars += [
                    svg.text(72, y + 15, label, text_anchor="end"),
                    svg.rect(80, y, 300, 20, opacity=0.12),
                    svg.rect(80, y, width, 20, fill=fill, stroke=edge),
                    svg.text(388, y + 15, self._number(value, name)),
                ]
        line = svg.path("M", 0, 8, "L", 8, 0, stroke="white", stroke_width=2)
        parts = [svg.pattern("ls-guess", GUESS, line), bars]
        look = {"fill": "currentColor", "style": "width:640px;max-width:100%;display:block"}
        height, said = 8 + 26 * (len(bars) // 4), "guess and result"
        drawn = svg.drawing(640, height, parts, aria_label=said, **look)
        return element("div", element("b", name), drawn, style="margin-top:8px")

    # --- controls ---

    def _slider(self, name: str) -> w.Widget:
        low, high, unit = self.ranges[name]
        scale = {"value": low, "min": low, "max": high, "step": (high - low) / 100}
        label = f"{name} ({unit})" if name and unit else name or unit
        look = {"layout": w.Layout(width="34em"), "style": {"description_width": "initial"}}
        slider = w.FloatSlider(description=label, readout_format=",.3r", **scale, **look)
        slider.observe(lambda change: self._slide(name, change["owner"]), "value")
        return slider

    def _slide(self, name: str, slider: w.Widget) -> None:
        """A slider was moved; after the lock, it goes back to the guess."""
        if self.guess is None:
            self._moved.add(name)
        else:
            slider.value = _named(self.guess)[name]

    def _close(self, said: str) -> None:
        for one in self.inputs.values():
            one.disabled = True
        self.button.disabled, self.button.description = True, said


def _named(value: Any) -> Mapping[str, Any]:
    """A value for each name; that of a card with one slider has no name."""
    return value if isinstance(value, Mapping) else {"": value}


def _question(question: str) -> Markup:
    look = "font-size:15px;line-height:1.5"
    return element("div", element("b", "Predict."), f" {question}", style=look)
