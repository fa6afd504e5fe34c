"""Predict: a question that the learner answers before anything runs. The guess is locked, and later
shown beside what the run gave. It stays locked when the cell or the kernel runs again: it is kept
in a hidden file beside the notebook.
"""

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as w
from IPython import get_ipython
from traitlets import TraitError

from course_lib.errors import SpecError
from course_lib.widgets.kit import Markup, element, join, page, svg
from course_lib.widgets.kit.widget import Pictured

Range = tuple[float, float, str]
"""Of a slider: the lowest value, the highest, and the unit."""
Numbers = Range | Mapping[str, Range]
Outcome = str | float | Mapping[str, float]
"""A choice, a number in the card's unit, or one for each name."""
STAYS = "It stays as it is. Now run the experiment."  # on one line at any width
ALLOWED = """different choices or numbers: Predict("Which?", choices=["ring", "tree"]) or \
Predict("How long?", numbers=(0, 100, "ms"))"""
GUESS, RESULT = "#CC79A7", "#0072B2"
NAME = ".lockstep-guesses.json"
NOTEBOOK = ("__vsc_ipynb_file__", "__session__")  # where VS Code and Jupyter tell a kernel its path


class _Onward(anywidget.AnyWidget):
    """Nothing to see: it follows the projector switch, answers "lock?", and at "onward" moves the
    focus to the notebook's next cell.
    """

    _esm = page.asset("kit/projector.js", "cards/onward.js")
    _css = page.asset("kit/theme.css")


class Predict(Pictured, w.VBox):
    """A card with a question and either `choices`, or a slider over `numbers` = (lowest, highest,
    unit), or several: {"ring": (0, 100, "ms"), ...}.

    `guess` is None until the learner locks it. Then it is kept beside the notebook, and cannot be
    changed until `forget`. `reveal(result, note)` shows guess and result side by side, and `note`
    says why; without a guess it says so and shows the result. How real a result is, measured,
    emulated or simulated, stands where it comes from. Raises SpecError unless it is given either
    choices or numbers.
    """

    def __init__(
        self, question: str, choices: Sequence[str] = (), numbers: Numbers | None = None
    ) -> None:
        self.question, self.choices = question, tuple(choices)
        self.ranges: dict[str, Range] = dict(_named(numbers)) if numbers else {}
        differ = len({*choices}) == len(choices) > 1
        if differ == bool(self.ranges) or any(low >= high for low, high, _ in self.ranges.values()):
            raise SpecError("choices", choices or numbers, ALLOWED)
        self.guess: Any = None
        self.result: Outcome | None = None
        self.note = ""
        self._moved: set[str] = set()
        radio = w.RadioButtons(options=self.choices, value=None, layout=w.Layout(width="auto"))
        self.inputs = {name: _slider(name, *range_) for name, range_ in self.ranges.items()}
        self.inputs = self.inputs or {"": radio}
        self.input = next(iter(self.inputs.values()))
        for name in self.ranges:
            self.inputs[name].observe(lambda _, name=name: self._moved.add(name), "value")
        self.button = w.Button(icon="lock", tooltip="It stays, even if this cell runs again")
        self._onward = _Onward()
        self._onward.on_msg(lambda *_: self.lock())
        # A click overtakes what a slider has yet to send, the answer to a message does not.
        self.button.on_click(lambda _: self._onward.send("lock?"))
        anew = "Take the guess back, and guess anew"
        self.eraser = w.Button(description="Forget my guess", icon="undo", tooltip=anew)
        self.eraser.on_click(lambda _: self.forget())
        self.hint, self.answer = w.HTML(), w.HTML()
        line = [self.button, self.eraser, self.hint, self._onward]
        row = w.HBox(line, layout=w.Layout(align_items="center"))
        box = w.Layout(border_left=f"4px solid {RESULT}", padding="4px 14px", margin="6px 0")
        style = "font-size:15px;line-height:1.5"
        asked = element("div", element("b", "Predict."), f" {question}", style=style)
        super().__init__([w.HTML(asked), *self.inputs.values(), row, self.answer], layout=box)
        self.add_class("ls-predict")
        self._recall()
        self._update()

    def lock(self) -> None:
        """Keep the present choice as the guess; without one, the card says what is missing."""
        missing = [name or "the slider" for name in self.ranges if name not in self._moved]
        if self.guess is not None:
            return
        if missing or (self.choices and self.input.value is None):
            words = f"Move {' and '.join(missing)} first." if missing else "Choose first."
            self.hint.value = join(words)
        else:
            self.guess = self._value()
            self._keep(STAYS)
            self._onward.send("onward")

    def forget(self) -> None:
        """Take the guess back, so that another can be made; what was revealed is hidden."""
        self.guess, self.result, self.note = None, None, ""
        self._moved.clear()
        if self.choices:
            self.input.value = None
        self._keep("Your guess is forgotten.")

    def reveal(self, result: Outcome, note: str = "") -> str:
        """Show the guess beside the `result` (a choice, a number in the card's unit, or one for
        each name); returns the text shown.
        """
        self.result, self.note, self.hint.value = result, note, ""
        self._update()
        return self._sentence()

    def table(self) -> str:
        """Question, guess and result as text."""
        guess = "no guess" if self.guess is None else self._show(self.guess)
        result = "none yet" if self.result is None else self._show(self.result)
        lines = [self.question, f"guess: {guess}", f"result: {result}", self.note]
        return "\n".join(filter(None, lines))

    def picture(self) -> str:
        """Question, choices or numbers, guess and result as SVG, 800 wide."""
        asked = textwrap.wrap(f"Predict. {self.question}", 88)
        words = textwrap.wrap(self._sentence() or self.table().splitlines()[1].capitalize(), 104)
        bars, height = self._bars()
        parts = svg.lines(20, 32, 24, asked, font_weight=600)
        parts += svg.lines(20, 32 + 24 * len(asked), 24, map(self._label, self.choices))
        y = 24.0 * (len(asked) + len(self.choices)) + 10
        parts.append(element("g", bars, transform=f"translate(20 {y:g})"))
        parts += svg.lines(20, y + height + 22, 24, words, class_="muted")
        size = 800, y + height + 22 + 24 * len(words)
        edge, body = svg.rect(0, 0, 4, size[1], fill=RESULT), element("g", parts, class_="ink")
        return svg.picture(*size, asked[0], page.paper(*size), edge, body)

    def __repr__(self) -> str:
        return f"Predict({self.question!r})"

    # --- words and bars ---

    def _sentence(self) -> str:
        """Guess, result and note in words; empty before the result."""
        if self.result is None:
            return ""
        known, right = self.guess is not None, self.guess == self.result
        guessed = f"Your guess: {self._show(self.guess)}" if known else "You made no guess"
        verdict = f" You were {'right' if right else 'wrong'}." if known and self.choices else ""
        return f"{guessed}. Result: {self._show(self.result)}.{verdict} {self.note}".strip()

    def _show(self, value: Outcome) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {self._number(v, name)}" for name, v in value.items())
        return value if isinstance(value, str) else self._number(value, "")

    def _number(self, value: float, name: str) -> str:
        digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return f"{digits} {self.ranges[name][2] if name in self.ranges else ''}".strip()

    def _label(self, choice: str) -> str:
        """A choice: ticked if it is right, crossed if it was guessed and is not."""
        mine, revealed = choice == self.guess, self.result is not None
        mark = "✓ " if choice == self.result else "✗ " if mine and revealed else ""
        return f"{mark}{choice}{'   (your guess)' if mine else ''}"

    def _bars(self) -> tuple[list[Markup], float]:
        """The bars of all guesses and results as SVG, and how high they are together. They begin at
        zero, so that they can be compared by their length.
        """
        drawn, y = list[Markup](), 0.0
        for name, (lowest, highest, _) in self.ranges.items():
            looks = ("guess", self.guess, GUESS), ("result", self.result, RESULT)
            named: list[tuple[str, Any, str]] = [
                (label, _named(value).get(name), color) for label, value, color in looks
            ]
            known = [each for each in named if each[1] is not None and math.isfinite(each[1])]
            values = [value for _, value, _ in known]
            low, high = min([0.0, lowest, *values]), max([highest, *values])
            if known and name:
                drawn.append(svg.text(0, y := y + 20, name, font_weight=600))
            for label, value, color in known:
                width = 1 + 300 * (value - low) / (high - low)
                drawn += [
                    svg.text(72, y + 19, label, text_anchor="end"),
                    svg.rect(80, y + 4, 300, 20, opacity=0.12),
                    svg.rect(80, y + 4, width, 20, fill=color, stroke=color),
                    svg.text(388, y + 19, self._number(value, name)),
                ]
                y += 26
        return drawn, y

    def _update(self) -> None:
        """Show guess and result, and enable what can be moved and pressed now."""
        locked, revealed = self.guess is not None, self.result is not None
        if self.choices:
            chosen = self.input.value
            self.input.options = [(self._label(choice), choice) for choice in self.choices]
            self.input.value = chosen
        for one in self.inputs.values():
            one.disabled = locked or revealed
        self.button.disabled = locked or revealed
        label = "Locked" if locked else "No guess" if revealed else "Lock my guess"
        self.button.description = label
        self.eraser.layout.visibility = "visible" if locked else "hidden"
        bars, height = self._bars()
        style = {"fill": "currentColor", "style": "width:640px;max-width:100%;display:block"}
        drawn = svg.drawing(640, height, bars, aria_label="guess and result", **style)
        words = element("p", self._sentence(), style="margin:6px 0 0;font-size:14px")
        self.answer.value = join([drawn if bars else None, words]) if revealed else ""
        self.changed()

    # --- what is kept beside the notebook ---

    def _value(self) -> Any:
        """The values of all inputs by name, or that of the only one."""
        values = {name: each.value for name, each in self.inputs.items()}
        return values.get("", values)

    @property
    def _key(self) -> str:
        """The question with its answers: another question, or other answers, is another guess."""
        ranges = [f"{name} {low:g} to {high:g} {u}" for name, (low, high, u) in self.ranges.items()]
        return "\n- ".join([self.question, *self.choices, *ranges])

    def _keep(self, words: str) -> None:
        """Keep the guess on disk; None forgets it. A damaged file is replaced."""
        self._update()
        kept = _kept() | {self._key: self.guess}
        text = json.dumps({q: guess for q, guess in kept.items() if guess is not None}, indent=1)
        try:
            if place := folder():
                (place / NAME).write_text(text + "\n", encoding="utf-8")
            self.hint.value = words
        except OSError as error:
            self.hint.value = join(f"That is not kept: {NAME} cannot be written ({error}).")

    def _recall(self) -> None:
        """Take the guess that was locked earlier, if there is one for this question."""
        values = _named(_kept().get(self._key))
        if values.keys() == self.inputs.keys() and None not in values.values():
            with suppress(TraitError):  # what somebody else wrote cannot be the answer
                for name, value in values.items():
                    self.inputs[name].value = value
                self.guess = self._value()
                self.hint.value = "You locked this guess earlier. Now run the experiment."


def folder() -> Path | None:
    """The folder of the open notebook; None in a program or a test run: nothing is kept then."""
    shell: Any = get_ipython()
    names = shell.user_ns if shell else {}
    return next((Path(names[name]).parent for name in NOTEBOOK if names.get(name)), None)


def _kept() -> dict[str, Any]:
    """Guess by question, of all notebooks of a folder; none from a file that is damaged."""
    try:
        guesses = json.loads(((folder() or Path()) / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return guesses if folder() and isinstance(guesses, dict) else {}


def _named(value: Any) -> Mapping[str, Any]:
    """A value for each name; that of a card with one slider has no name."""
    return value if isinstance(value, Mapping) else {"": value}


def _slider(name: str, low: float, high: float, unit: str) -> w.FloatSlider:
    """A slider in steps of 1 where that is fine enough, so that whole numbers stay as typed."""
    span = high - low
    step = 1 if 20 <= span <= 5000 else 10.0 ** math.floor(math.log10(span / 50))
    return w.FloatSlider(
        **{"value": low, "min": low, "max": high, "step": step},
        description=f"{name} ({unit})" if name and unit else name or unit,
        readout_format=f",.{max(0, round(-math.log10(step)))}f",
        layout=w.Layout(width="34em"),
        style={"description_width": "initial"},
    )
