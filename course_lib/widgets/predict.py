"""Predict: a question whose answer the learner commits to before anything runs, and meets again beside what was measured."""

from __future__ import annotations

import html
from collections.abc import Sequence

import ipywidgets as w


class Predict(w.VBox):
    """A card with a question and either `choices` or a slider over `numbers` = (lowest, highest, unit).

    `guess` is None until the learner locks it; after that it cannot be changed. `reveal(measured, note)` shows both side by side; for a guess
    that was never made it says so and shows the measurement all the same.
    """

    def __init__(self, question: str, choices: Sequence[str] = (), numbers: tuple[float, float, str] | None = None) -> None:
        if bool(choices) == bool(numbers):
            raise ValueError("a prediction needs either choices or numbers")
        self.question, self.choices, self.numbers = question, tuple(choices), numbers
        self.guess: str | float | None = None
        if numbers:
            low, high, unit = numbers
            self.input: w.Widget = w.FloatSlider(
                value=low, min=low, max=high, step=(high - low) / 100, description=unit, layout=w.Layout(width="26em"), readout_format=".3g"
            )
        else:
            self.input = w.RadioButtons(options=list(choices), value=None, layout=w.Layout(width="auto"))
        self.button = w.Button(description="Lock my guess", icon="lock", tooltip="After this the guess stays as it is")
        self.button.on_click(lambda _: self.lock())
        self.answer = w.HTML()
        super().__init__([w.HTML(f"<b>Predict.</b> {html.escape(question)}"), self.input, self.button, self.answer])
        self.layout.border_left = "4px solid #0072B2"
        self.layout.padding = "4px 12px"

    def lock(self) -> None:
        """Keep what is chosen now as the guess; without a choice nothing happens."""
        if self.guess is None and self.input.value is not None:
            self.guess = self.input.value
            self.input.disabled = self.button.disabled = True
            self.button.description = "Locked"

    def reveal(self, measured: str | float, note: str = "") -> str:
        """Show the guess beside what was `measured` (a choice, or a number in the card's unit); returns the text shown."""
        self.input.disabled = self.button.disabled = True
        if self.guess is None:
            text = f"You made no guess. Measured: {self._show(measured)}."
        elif isinstance(self.guess, float) and isinstance(measured, (int, float)):
            text = f"Your guess: {self._show(self.guess)}. Measured: {self._show(measured)}."
        else:
            text = f"You guessed: {self.guess}. {'You were right' if self.guess == measured else 'You were wrong'}; measured: {measured}."
        text = f"{text} {note}".strip()
        self.answer.value = html.escape(text)
        return text

    def _show(self, value: str | float) -> str:
        return value if isinstance(value, str) else f"{value:.3g} {self.numbers[2] if self.numbers else ''}".strip()

    def __repr__(self) -> str:
        return f"Predict({self.question!r})"
