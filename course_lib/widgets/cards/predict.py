"""Predict: a question that the learner answers before anything runs. The guess is locked, and later
shown beside what the run gave. It stays locked when the cell or the kernel runs again.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as w

from course_lib.widgets.cards import answers, guesses
from course_lib.widgets.cards.answers import RESULT, RIGHT, WRONG, named
from course_lib.widgets.kit import Markup, element, join, page
from course_lib.widgets.kit.given import takes
from course_lib.widgets.kit.saved import Pictured

Range = tuple[float, float, str]
"""Of a slider: the lowest value, the highest, and the unit."""
Outcome = str | float | Mapping[str, float]
"""A choice, a number in the card's unit, or one for each name."""
STAYS = "It stays as it is. Now run the experiment."  # on one line at any width


class _Onward(anywidget.AnyWidget):
    """Nothing to see: it follows the projector switch, and at a message it moves the focus to the
    notebook's next cell.
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

    @takes(
        'a question, and choices or numbers: Predict("Which is faster?", choices=["ring", "tree"]) '
        'or Predict("How long?", numbers=(0, 100, "ms"))',
        lambda question, choices, numbers: (
            isinstance(question, str)
            and ((_are_choices(choices) and not numbers) or (not choices and _are_numbers(numbers)))
        ),
    )
    def __init__(
        self,
        question: str,
        choices: Sequence[str] = (),
        numbers: Range | Mapping[str, Range] | None = None,
    ) -> None:
        self.question, self.choices, self.numbers = question, tuple(choices), numbers
        self.ranges: dict[str, Range] = dict(named(numbers)) if numbers else {}
        self.guess: Any = None
        self.result: Outcome | None = None
        self.note = ""
        self._moved: set[str] = set()
        radio = w.RadioButtons(options=list(choices), value=None, layout=w.Layout(width="auto"))
        self.ticked = w.HTML(layout=w.Layout(display="none", margin="0"))
        self.inputs = {name: self._slider(name) for name in self.ranges} or {"": radio}
        self.input = next(iter(self.inputs.values()))
        self.button = w.Button(icon="lock", tooltip="It stays, even if this cell runs again")
        self.button.on_click(lambda _: self.lock())
        again = "Take the guess back, and guess anew"
        self.eraser = w.Button(description="Forget my guess", icon="undo", tooltip=again)
        self.eraser.on_click(lambda _: self.forget())
        self.hint, self.answer, self._onward = w.HTML(), w.HTML(), _Onward()
        row = [self.button, self.eraser, self.hint, self._onward]
        look = w.Layout(border_left=f"4px solid {RESULT}", padding="4px 14px", margin="6px 0")
        line = w.HBox(row, layout=w.Layout(align_items="center"))
        # The buttons stay where they are: choices and the list of them that is revealed have the
        # same room, and all else that is revealed stands below.
        room = w.Layout(height=f"{20 * len(choices) + 8}px" if choices else None, overflow="hidden")
        asked = w.VBox([*self.inputs.values(), self.ticked], layout=room)
        parts = [w.HTML(_question(question)), asked, line, self.answer]
        super().__init__(parts, layout=look)
        self.add_class("ls-predict")
        self._open(True)
        self._recall()

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
            self._open(False)
            self._keep(STAYS, "It stays until you run this cell again")
            self._onward.send({})

    def forget(self) -> None:
        """Take the guess back, so that another can be made; what was revealed is hidden."""
        self.guess, self.result, self.note = None, None, ""
        self.ticked.value = self.answer.value = ""
        self._moved.clear()
        self._open(True)
        self._keep("Your guess is forgotten.", "Your guess comes back if you run this cell again")

    def reveal(self, result: Outcome, note: str = "") -> str:
        """Show the guess beside the `result` (a choice, a number in the card's unit, or one for
        each name); returns the text shown.
        """
        self.result, self.note = result, note
        self._open(False)
        self.hint.value = ""
        said = f"{self.compare(result)} {note}".strip()
        if result in self.choices:
            self.ticked.value = join(self._choices())
            self.answer.value = _line("p", f"{self._verdict()} {note}".strip())
        else:
            self.answer.value = join([answers.bars(self), _line("p", said)])
        self.changed()
        return said

    def picture(self) -> str:
        """Question, choices or numbers, guess and result as SVG."""
        return answers.picture(self)

    def table(self) -> str:
        """Question, guess and result as text."""
        guess = "no guess" if self.guess is None else self._show(self.guess)
        result = "none yet" if self.result is None else self._show(self.result)
        lines = [self.question, f"guess: {guess}", f"result: {result}", self.note]
        return "\n".join(filter(None, lines))

    def to_html(self, path: Path | str) -> Path:
        """Write a page with question, guess and result that needs no kernel and no network."""
        choices = element("ul", [element("li", choice) for choice in self.choices])
        asked = [choices if self.choices else None, element("p", self.table().splitlines()[1])]
        said = Markup(self.ticked.value + self.answer.value) or asked
        body = join((_question(self.question), said))
        return page.save(path, page.document("Predict", page.card(body), page.NARROW))

    def __repr__(self) -> str:
        return f"Predict({self.question!r})"

    # --- what is said ---

    def compare(self, result: Outcome) -> str:
        if self.guess is None:
            return f"You made no guess. Result: {self._show(result)}."
        if self.choices:
            verdict = "right" if self.guess == result else "wrong"
            return f"You guessed: {self.guess}. You were {verdict}; result: {result}."
        return f"Your guess: {self._show(self.guess)}. Result: {self._show(result)}."

    def _show(self, value: Outcome) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {self.number(v, name)}" for name, v in value.items())
        return value if isinstance(value, str) else self.number(value, "")

    def number(self, value: float, name: str) -> str:
        digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return f"{digits} {self.ranges[name][2] if name in self.ranges else ''}".strip()

    def _verdict(self) -> str:
        word = "right" if self.guess == self.result else "wrong"
        return f"You were {word}." if self.guess else "You made no guess."

    def _choices(self) -> list[Markup]:
        """All choices: the right one ticked, and the guess named."""
        rows = []
        for choice in self.choices:
            right, mine = choice == self.result, choice == self.guess
            mark, color = RIGHT if right else WRONG if mine else ("", "inherit")
            said = [element("b", choice) if right else choice]
            said += [element("i", "  your guess", style=f"color:{color}")] if mine else []
            look = f"display:inline-block;width:1.6em;font-weight:700;color:{color}"
            rows.append(_line("div", element("span", mark, style=look), said, more=";margin:0"))
        return rows

    # --- controls ---

    def _slider(self, name: str) -> w.Widget:
        low, high, _ = self.ranges[name]
        step = _step(high - low)
        scale = {"value": low, "min": low, "max": high, "step": step}
        digits = f",.{max(0, round(-math.log10(step)))}f"
        labels = {
            each: f"{each} ({unit})" if each and unit else each or unit
            for each, (_, _, unit) in self.ranges.items()
        }
        room = f"{0.6 * max(map(len, labels.values())) + 1:.1f}em"  # so all begin at one place
        look = {"layout": w.Layout(width="34em"), "style": {"description_width": room}}
        slider = w.FloatSlider(description=labels[name], readout_format=digits, **scale, **look)
        slider.observe(lambda change: self._slide(name, change["owner"]), "value")
        return slider

    def _slide(self, name: str, slider: w.Widget) -> None:
        """A slider was moved; after the lock, it goes back to the guess."""
        if self.guess is None:
            self._moved.add(name)
        else:
            slider.value = named(self.guess)[name]

    def _open(self, asking: bool) -> None:
        """Whether it asks, or has been answered: what can be moved and pressed."""
        for one in self.inputs.values():
            one.disabled = not asking
            # then a list of all choices takes its place
            one.layout.display = "none" if self.result in self.choices else None
        self.ticked.layout.display = None if self.result in self.choices else "none"
        locked = self.guess is not None
        self.button.disabled = not asking
        said = "Lock my guess" if asking else "Locked" if locked else "No guess"
        self.button.description = said
        self.eraser.layout.visibility = "visible" if locked else "hidden"

    # --- what is kept beside the notebook ---

    @property
    def _key(self) -> str:
        """The question with its answers: another question, or other answers, is another guess."""
        ranges = [
            f"{name} {low:g} to {high:g} {unit}" for name, (low, high, unit) in self.ranges.items()
        ]
        return "\n- ".join([self.question, *self.choices, *ranges])

    def _keep(self, said: str, otherwise: str) -> None:
        self.changed()
        try:
            guesses.keep(self._key, self.guess)
            self.hint.value = said
        except OSError as error:
            self.hint.value = join(f"{otherwise}: {guesses.NAME} cannot be written ({error}).")

    def _recall(self) -> None:
        """Take the guess that was locked earlier, if there is one for this question."""
        try:
            guess = guesses.kept(self._key)
        except (OSError, ValueError) as error:
            lost = f"Guesses locked earlier are lost: {guesses.NAME} cannot be read ({error})."
            self.hint.value = join(lost)
            return
        values, several = named(guess), isinstance(self.numbers, Mapping)
        right = isinstance(guess, Mapping) is several and values.keys() == self.inputs.keys()
        if right and all(map(self._fits, values, values.values())):
            for name, value in values.items():
                self.inputs[name].value = value
            self.guess = guess
            self._open(False)
            self.hint.value = "You locked this guess earlier. Now run the experiment."

    def _fits(self, name: str, value: Any) -> bool:
        """Whether a value can be the answer."""
        if self.choices:
            return value in self.choices
        low, high, _ = self.ranges[name]
        return isinstance(value, int | float) and low <= value <= high


def _step(span: float) -> float:
    """Of a slider: 1 where that is fine enough, so that whole numbers stay as they are typed."""
    return 1 if 20 <= span <= 5000 else 10.0 ** math.floor(math.log10(span / 50))


def _are_choices(given: Any) -> bool:
    texts = isinstance(given, list | tuple) and all(isinstance(each, str) for each in given)
    return texts and len(set(given)) == len(given) > 1


def _are_numbers(given: Any) -> bool:
    """Whether it is a `Range`, or several by name."""
    if isinstance(given, Mapping):
        return bool(given) and all(map(_are_numbers, given.values()))
    try:
        low, high, unit = given
        return bool(low < high) and isinstance(unit, str)
    except (TypeError, ValueError):
        return False


def _question(question: str) -> Markup:
    look = "font-size:15px;line-height:1.5"
    return element("div", element("b", "Predict."), f" {question}", style=look)


def _line(tag: str, *inside: Any, more: str = "") -> Markup:
    return element(tag, inside, style=f"margin:6px 0 0;font-size:14px;line-height:20px{more}")
