"""Predict: a question that the learner answers before anything runs. The guess is locked, and later
shown beside what the run gave. It stays locked when the cell or the kernel runs again.
"""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import anywidget
import ipywidgets as w

from course_lib.widgets.cards import guesses
from course_lib.widgets.kit import Markup, element, join, page, svg
from course_lib.widgets.kit.widget import Pictured, takes

Range = tuple[float, float, str]
"""Of a slider: the lowest value, the highest, and the unit."""
Outcome = str | float | Mapping[str, float]
"""A choice, a number in the card's unit, or one for each name."""
STAYS = "It stays as it is. Now run the experiment."  # on one line at any width
GUESS, RESULT = "#CC79A7", "#0072B2"
RIGHT, WRONG = ("✓", "#009E73"), ("✗", "#D55E00")


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
        self.question, self.choices = question, tuple(choices)
        self.several = isinstance(numbers, Mapping)
        self.ranges: dict[str, Range] = dict(_named(numbers)) if numbers else {}
        self.guess: Any = None
        self.result: Outcome | None = None
        self.note = ""
        self._moved: set[str] = set()
        radio = w.RadioButtons(options=self.choices, value=None, layout=w.Layout(width="auto"))
        self.inputs = self._sliders() or {"": radio}
        self.input = next(iter(self.inputs.values()))
        # it takes the place of the choices; buttons stay where they are, as both have one height
        self.ticked = w.HTML(layout=w.Layout(margin="0"))
        self.button = w.Button(icon="lock", tooltip="It stays, even if this cell runs again")
        self.button.on_click(lambda _: self.lock())
        anew = "Take the guess back, and guess anew"
        self.eraser = w.Button(description="Forget my guess", icon="undo", tooltip=anew)
        self.eraser.on_click(lambda _: self.forget())
        self.hint, self.answer, self._onward = w.HTML(), w.HTML(), _Onward()
        room = w.Layout(height=f"{20 * len(choices) + 8}px" if choices else None, overflow="hidden")
        asked = w.VBox([*self.inputs.values(), self.ticked], layout=room)
        line = [self.button, self.eraser, self.hint, self._onward]
        row = w.HBox(line, layout=w.Layout(align_items="center"))
        box = w.Layout(border_left=f"4px solid {RESULT}", padding="4px 14px", margin="6px 0")
        super().__init__([w.HTML(_question(question)), asked, row, self.answer], layout=box)
        self.add_class("ls-predict")
        self._recall()
        self._update()

    def lock(self) -> None:
        """Keep the present choice as the guess; without one, the card says what is missing."""
        missing = [name for name in self.ranges if name not in self._moved]
        if self.guess is not None:
            return
        if self.choices and self.input.value is None:
            self.hint.value = "Choose first."
        elif missing:
            several = f"Move these sliders first: {', '.join(missing)}."
            self.hint.value = join(several if self.several else "Move the slider first.")
        else:
            values = {name: slider.value for name, slider in self.inputs.items()}
            self.guess = values if self.several else values[""]
            self._keep(STAYS, "It stays until you run this cell again")
            self._onward.send({})

    def forget(self) -> None:
        """Take the guess back, so that another can be made; what was revealed is hidden."""
        self.guess, self.result, self.note = None, None, ""
        self._moved.clear()
        self._keep("Your guess is forgotten.", "Your guess comes back if you run this cell again")

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
        asked, bold = textwrap.wrap(f"Predict. {self.question}", 88), {"font_weight": 600}
        parts: list[Markup] = []
        y = 10.0
        for line in asked:
            parts.append(svg.text(20, y := y + 22, line, font_size=17, **bold))
        for choice in self.choices:
            mine = choice == self.guess
            sign, color = self._mark(choice) or ("●" if mine else "○", None)
            parts.append(svg.text(24, y := y + 26, sign, fill=color, **bold))
            parts.append(svg.text(46, y, f"{choice}   (your guess)" if mine else choice))
        for name, bars, height in self._bars():
            if name:
                parts.append(svg.text(20, y := y + 24, name, **bold))
            parts.append(element("g", bars, transform=f"translate(20 {y + 10:g})"))
            y += 10 + height
        words = self._sentence() or self.table().splitlines()[1].capitalize()
        for line in textwrap.wrap(words, 104):
            parts.append(svg.text(20, y := y + 24, line, class_="muted"))
        size = 800, y + 18
        edge, body = svg.rect(0, 0, 4, size[1], fill=RESULT), element("g", parts, class_="ink")
        return svg.picture(*size, asked[0], page.paper(*size), edge, body)

    def __repr__(self) -> str:
        return f"Predict({self.question!r})"

    # --- words ---

    def _sentence(self) -> str:
        """Guess, result and note in words; empty before the result."""
        if self.result is None:
            return ""
        guess, result = self.guess, self._show(self.result)
        if guess is None:
            words = f"You made no guess. Result: {result}."
        elif self.choices:
            words = f"You guessed: {guess}. {self._verdict()}; result: {result}."
        else:
            words = f"Your guess: {self._show(guess)}. Result: {result}."
        return f"{words} {self.note}".strip()

    def _verdict(self) -> str:
        return f"You were {'right' if self.guess == self.result else 'wrong'}"

    def _show(self, value: Outcome) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {self._number(v, name)}" for name, v in value.items())
        return value if isinstance(value, str) else self._number(value, "")

    def _number(self, value: float, name: str) -> str:
        digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return f"{digits} {self.ranges[name][2] if name in self.ranges else ''}".strip()

    def _mark(self, choice: str) -> tuple[str, str] | None:
        """The mark of the right choice and of a wrong guess, and its colour."""
        if choice == self.result:
            return RIGHT
        return WRONG if self.result is not None and choice == self.guess else None

    def _choices(self) -> Iterator[Markup]:
        """All choices: the right one ticked, and the guess named."""
        for choice in self.choices:
            mark, color = self._mark(choice) or ("", "inherit")
            words = [element("b", choice) if choice == self.result else choice]
            if choice == self.guess:
                words.append(element("i", "  your guess", style=f"color:{color}"))
            style = f"display:inline-block;width:1.6em;font-weight:700;color:{color}"
            yield _line("div", element("span", mark, style=style), words, more=";margin:0")

    def _bars(self) -> Iterator[tuple[str, list[Markup], float]]:
        """For each number its name, the bars of guess and result as SVG, and how high they are."""
        guesses, results = _named(self.guess), _named(self.result)
        for name, (lowest, highest, _) in self.ranges.items():
            values = {"guess": guesses.get(name), "result": results.get(name)}
            known = {label: float(value) for label, value in values.items() if value is not None}
            if not known:
                continue
            finite = list(filter(math.isfinite, known.values()))
            # bars that begin at zero can be compared by their length
            low, high = min(0.0, lowest, *finite), max(highest, *finite)
            stripes = f"{svg.unique_prefix()}guess"
            line = svg.path("M", 0, 8, "L", 8, 0, stroke="white", stroke_width=2)
            drawn = [svg.pattern(stripes, GUESS, line)]
            looks = {"guess": (f"url(#{stripes})", GUESS), "result": (RESULT, RESULT)}
            for row, (label, value) in enumerate(known.items()):
                y, (fill, edge) = 4 + 26 * row, looks[label]
                width = 1 + 300 * (value - low) / (high - low)
                drawn += [
                    svg.text(72, y + 15, label, text_anchor="end"),
                    svg.rect(80, y, 300, 20, opacity=0.12),
                    svg.rect(80, y, width, 20, fill=fill, stroke=edge),
                    svg.text(388, y + 15, self._number(value, name)),
                ]
            yield name, drawn, 8 + 26 * len(known)

    def _answer(self) -> Markup:
        """The result in HTML: bars of numbers, and words."""
        if self.result in self.choices:
            words = "You made no guess." if self.guess is None else f"{self._verdict()}."
            return _line("p", f"{words} {self.note}".strip())
        style = {"fill": "currentColor", "style": "width:640px;max-width:100%;display:block"}
        parts = []
        for name, bars, height in self._bars():
            drawn = svg.drawing(640, height, bars, aria_label="guess and result", **style)
            parts.append(element("div", element("b", name), drawn, style="margin-top:8px"))
        return join([parts, _line("p", self._sentence())])

    # --- controls ---

    def _sliders(self) -> dict[str, w.FloatSlider]:
        """A slider for each number; all begin at one place."""
        units = {name: unit for name, (_, _, unit) in self.ranges.items()}
        labels = [
            f"{name} ({unit})" if name and unit else name or unit for name, unit in units.items()
        ]
        room = f"{0.6 * max(map(len, labels), default=0) + 1:.1f}em"
        sliders = {}
        for label, (name, (low, high, _)) in zip(labels, self.ranges.items(), strict=True):
            step = _step(high - low)
            sliders[name] = w.FloatSlider(
                **{"description": label, "value": low, "min": low, "max": high, "step": step},
                readout_format=f",.{max(0, round(-math.log10(step)))}f",
                layout=w.Layout(width="34em"),
                style={"description_width": room},
            )
            sliders[name].observe(partial(self._slide, name), "value")
        return sliders

    def _slide(self, name: str, change: dict[str, Any]) -> None:
        """A slider was moved; after the lock, it goes back to the guess."""
        if self.guess is None:
            self._moved.add(name)
        else:
            change["owner"].value = _named(self.guess)[name]

    def _update(self) -> None:
        """Show guess and result, and enable what can be moved and pressed now."""
        locked, revealed = self.guess is not None, self.result is not None
        ticked = revealed and self.result in self.choices
        for one in self.inputs.values():
            one.disabled = locked or revealed
            one.layout.display = "none" if ticked else None
        self.ticked.value = join(self._choices()) if ticked else ""
        self.ticked.layout.display = None if ticked else "none"
        self.button.disabled = locked or revealed
        label = "Locked" if locked else "No guess" if revealed else "Lock my guess"
        self.button.description = label
        self.eraser.layout.visibility = "visible" if locked else "hidden"
        self.answer.value = self._answer() if revealed else ""
        self.changed()

    # --- what is kept beside the notebook ---

    @property
    def _key(self) -> str:
        """The question with its answers: another question, or other answers, is another guess."""
        ranges = [
            f"{name} {low:g} to {high:g} {unit}" for name, (low, high, unit) in self.ranges.items()
        ]
        return "\n- ".join([self.question, *self.choices, *ranges])

    def _keep(self, words: str, otherwise: str) -> None:
        self._update()
        try:
            guesses.keep(self._key, self.guess)
            self.hint.value = words
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
        values = _named(guess)
        right = isinstance(guess, Mapping) is self.several and values.keys() == self.inputs.keys()
        if right and all(map(self._fits, values, values.values())):
            for name, value in values.items():
                self.inputs[name].value = value
            self.guess = guess
            self.hint.value = "You locked this guess earlier. Now run the experiment."

    def _fits(self, name: str, value: Any) -> bool:
        """Return True for a value that can be the answer."""
        if self.choices:
            return value in self.choices
        low, high, _ = self.ranges[name]
        return isinstance(value, int | float) and low <= value <= high


def _named(value: Any) -> Mapping[str, Any]:
    """A value for each name; that of a card with one slider has no name."""
    return value if isinstance(value, Mapping) else {"": value}


def _step(span: float) -> float:
    """Of a slider: 1 where that is fine enough, so that whole numbers stay as they are typed."""
    return 1 if 20 <= span <= 5000 else 10.0 ** math.floor(math.log10(span / 50))


def _are_choices(given: Any) -> bool:
    texts = isinstance(given, list | tuple) and all(isinstance(each, str) for each in given)
    return texts and len(set(given)) == len(given) > 1


def _are_numbers(given: Any) -> bool:
    """Return True for a `Range`, or several by name."""
    if isinstance(given, Mapping):
        return bool(given) and all(map(_are_numbers, given.values()))
    try:
        low, high, unit = given
        return bool(low < high) and isinstance(unit, str)
    except (TypeError, ValueError):
        return False


def _question(question: str) -> Markup:
    style = "font-size:15px;line-height:1.5"
    return element("div", element("b", "Predict."), f" {question}", style=style)


def _line(tag: str, *inside: Any, more: str = "") -> Markup:
    return element(tag, inside, style=f"margin:6px 0 0;font-size:14px;line-height:20px{more}")
