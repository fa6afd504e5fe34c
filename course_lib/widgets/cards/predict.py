"""Predict: a question that the learner answers before anything runs. The guess is locked, and later
shown beside what the run gave. It stays locked when the cell or the kernel runs again: guess and
result are kept in a hidden file beside the notebook.
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
import traitlets

from course_lib import text
from course_lib.errors import SpecError
from course_lib.notebook.shell import running
from course_lib.widgets.kit import Markup, element, join, page, svg, table
from course_lib.widgets.kit.widget import Pictured

Range = tuple[float, float, str]
"""Of a slider: the lowest value, the highest, and the unit."""
Numbers = Range | Mapping[str, Range]
Outcome = str | float | Mapping[str, float]
"""A choice, a number in the card's unit, or one for each name."""
HEADS = "question", "your guess", "result", "how near"
STAYS = "It is locked. Now run the next cells."  # on one line at any width
ANEW = "To guess before you see it, run the cell of this question again."
ALLOWED = """different choices or numbers: Predict("Which?", choices=["ring", "tree"]) or \
Predict("How long?", numbers=(0, 100, "ms"))"""
GUESS, RESULT = "#CC79A7", "#0072B2"
NAME = ".lockstep-guesses.json"
NOTEBOOK = ("__vsc_ipynb_file__", "__session__")  # where VS Code and Jupyter tell a kernel its path


class _Onward(anywidget.AnyWidget):
    """Nothing to see: it reports which slider of the card is touched and what is typed there,
    answers "lock?", and at "onward" moves the focus to the notebook's next cell. It unfolds the
    cells that begin with `# The answer to NAME:`, for each of the `unfolded` names.
    """

    _esm = page.asset("kit/projector.js", "kit/sliders.js", "cards/onward.js")
    _css = page.asset("kit/theme.css", "cards/predict.css")
    unfolded = traitlets.List().tag(sync=True)


class Predict(Pictured, w.VBox):
    """A card with a question and either `choices`, or a slider over `numbers` = (lowest, highest,
    unit), or several: {"ring": (0, 100, "ms"), ...}.

    `guess` is None until the learner locks it. Then it is kept beside the notebook, and cannot be
    changed until `forget`. `reveal` shows guess and result side by side, and says why; without a
    guess it says so and shows the result. How real a result is, measured, emulated or simulated,
    stands where it comes from. Raises SpecError unless it is given either choices or numbers.
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
        self.note, self.revealed = "", False
        self.tempting: Mapping[str, str] = {}
        self._touched: set[str] = set()
        self._beyond: dict[str, str] = {}  # slider -> its range in words, if more was typed
        radio = w.RadioButtons(options=self.choices, value=None, layout=w.Layout(width="auto"))
        wide = max((len(name + unit) + 3 for name, (*_, unit) in self.ranges.items()), default=0)
        self.inputs = {name: _slider(name, *range_, wide) for name, range_ in self.ranges.items()}
        self.inputs = self.inputs or {"": radio}
        self.input = next(iter(self.inputs.values()))
        for name in self.ranges:
            self.inputs[name].observe(lambda _, name=name: self._touched.add(name), "value")
        self.button = w.Button(icon="lock", tooltip="It stays, even if this cell runs again")
        self._onward = _Onward()
        self._onward.on_msg(lambda _, content, __: self._receive(content))
        # A click overtakes what a slider has yet to send, the answer to a message does not.
        self.button.on_click(lambda _: self._onward.send("lock?"))
        anew = "Take the guess back, and guess anew"
        self.eraser = w.Button(description="Forget my guess", icon="undo", tooltip=anew)
        self.eraser.on_click(lambda _: self.forget())
        self.hint, self.answer = w.HTML(), w.HTML()
        row = w.HBox([self.button, self.eraser, self.hint, self._onward])
        asked = element("div", element("b", "Predict."), f" {question}", class_="ls-asked")
        super().__init__([w.HTML(asked), *self.inputs.values(), row, self.answer])
        self.add_class("ls-predict")
        self._recall()
        self._update()
        ASKED[self._key] = self

    def lock(self) -> None:
        """Keep the present choice as the guess; without one, the card says what is missing."""
        missing = [name or "the slider" for name in self.ranges if name not in self._touched]
        if self.guess is not None:
            return
        if missing or self._beyond or (self.choices and self.input.value is None):
            words = f"Move {' and '.join(missing)} first, or press it where it is."
            words = " ".join(self._beyond.values()) or (words if missing else "Choose first.")
            self.hint.value = join(words)
            self._beyond.clear()  # its end, if it is pressed once more
        else:
            self.guess = self._value()
            self._keep(STAYS)
            self._onward.send("onward")

    def forget(self) -> None:
        """Take the guess back, so that another can be made; what was revealed is hidden."""
        self.guess, self.result, self.note, self.revealed = None, None, "", False
        self._touched.clear()
        if self.choices:
            self.input.value = None
        self._keep("Your guess is forgotten.")

    def reveal(
        self, result: Outcome | None, note: str = "", tempting: Mapping[str, str] | None = None
    ) -> str:
        """Show the guess beside the `result`: a choice, a number in the card's unit, or one for
        each name; None if this machine cannot measure it. Returns the text shown.

        `note` names the cause. `tempting` has a sentence for each choice that is not the result:
        why it tempts, and what is wrong with it. It is shown to those who chose it.
        """
        self.tempting = tempting or {}
        other = self.tempting.get(self.guess, "") if self.choices and self.guess != result else ""
        self.result, self.note, self.revealed = result, f"{note} {other}".strip(), True
        self._keep(ANEW if self.guess is None else "")
        return self._sentence()

    def row(self) -> tuple[str, str, str, str]:
        """Question, guess, result, and how near they are: "right" or "not right"; of numbers
        "near" (all within a tenth of their range) or "not near".
        """
        guess, result = self.guess, self.result
        if self.choices:
            how = "right" if guess == result else "not right"
        elif guess is not None and result is not None:
            spans = ((name, (high - low) / 10) for name, (low, high, _) in self.ranges.items())
            given, results = _named(guess), _named(result)
            near = all(abs(given[name] - results[name]) <= most for name, most in spans)
            how = "near" if near else "not near"
        guessed = "no guess" if guess is None else self._show(guess)
        missing = "not measured here" if self.revealed else "none yet"
        shown = missing if result is None else self._show(result)
        return self.question, guessed, shown, "" if guess is None or result is None else how

    def table(self) -> str:
        """Question, guess and result as text."""
        question, guess, result, _ = self.row()
        lines = [question, f"guess: {guess}", f"result: {result}", self.note]
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
        if not self.revealed:
            return ""
        _, guess, result, _ = self.row()
        guessed = "You made no guess" if self.guess is None else f"Your guess: {guess}"
        return f"{guessed}. Result: {result}. {self.note}".strip()

    def _show(self, value: Outcome) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {self._number(v, name)}" for name, v in value.items())
        return value if isinstance(value, str) else self._number(value, "")

    def _number(self, value: float, name: str) -> str:
        digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return f"{digits} {self.ranges[name][2] if name in self.ranges else ''}".strip()

    def _label(self, choice: str) -> str:
        """A choice: ticked if it is right, crossed if it was guessed and is not."""
        mine, known = choice == self.guess, self.result is not None
        mark = "✓ " if choice == self.result else "✗ " if mine and known else ""
        return f"{mark}{choice}{'   (your guess)' if mine else ''}"

    def _bars(self) -> tuple[list[Markup], float]:
        """The bars of all guesses and results as SVG, and how high they are together. They begin at
        zero, so that they can be compared by their length.
        """
        drawn, y = list[Markup](), 0.0
        for name, (lowest, highest, _) in self.ranges.items():
            guess, result = _named(self.guess).get(name), _named(self.result).get(name)
            both: list[Any] = [("guess", guess, GUESS), ("result", result, RESULT)]
            known = [each for each in both if each[1] is not None and math.isfinite(each[1])]
            values = [value for _, value, _ in known]
            low, high = min([0.0, lowest, *values]), max([highest, *values])
            if known and name:
                drawn.append(svg.text(0, (y := y + 26) - 6, name, font_weight=600))
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
        locked, revealed = self.guess is not None, self.revealed
        names = [name for name, value in _names().items() if value is self]
        self._onward.unfolded = names if locked else []
        if self.choices:
            chosen = self.input.value
            self.input.options = [(self._label(choice), choice) for choice in self.choices]
            self.input.value = chosen
        for one in (*self.inputs.values(), self.button):
            one.disabled = locked or revealed
        label = "Locked" if locked else "No guess" if revealed else "Lock my guess"
        self.button.description = label
        self.eraser.layout.visibility = "visible" if locked else "hidden"
        bars, height = self._bars()
        drawn = svg.drawing(640, height, bars, aria_label="guess and result", class_="ls-bars")
        words = element("p", self._sentence(), class_="ls-answer")
        self.answer.value = join([drawn if bars else None, words]) if revealed else ""
        self.changed()

    # --- what is kept beside the notebook ---

    def _value(self) -> Any:
        """The values of all inputs by name, or that of the only one."""
        values = {  # a slider's steps add up to 3.9999999999999996
            name: round(each.value, 9) if self.ranges else each.value
            for name, each in self.inputs.items()
        }
        return values.get("", values)

    def _receive(self, content: Any) -> None:
        """Lock; or note that a slider was touched, or whether what was typed is in its range."""
        if content == "lock":
            self.lock()
        elif self.guess is None:
            name, (low, high, unit) = [*self.ranges.items()][content["slider"]]
            if content["typed"] != self.inputs[name].value:  # else it was put to its end
                self._beyond.pop(name, None)
            if (typed := content["typed"]) is None:
                self._touched.add(name)
            elif isinstance(typed, str) or not low <= typed <= high:
                span = f"{low:g} to {high:g} {unit}".strip()
                self._beyond[name] = f"{name or 'The slider'} goes from {span}."
            self.hint.value = join(" ".join(self._beyond.values()))

    @property
    def _key(self) -> str:
        """The question with its answers: another question, or other answers, is another guess."""
        ranges = [f"{name} {low:g} to {high:g} {u}" for name, (low, high, u) in self.ranges.items()]
        return "\n- ".join([self.question, *self.choices, *ranges])

    def _keep(self, words: str) -> None:
        """Show the present state, and keep guess and result on disk; without a guess, forget them.
        A damaged file is replaced.
        """
        self._update()
        self.hint.value = words
        book = notebook()
        entries = kept(book)
        before = entries.pop(self._key, None)
        if self.guess is not None and book:
            entries[self._key] = {"guess": self.guess, "lesson": book.stem}
            entries[self._key] |= {"result": self.result} if self.revealed else {}
        try:
            if book and (before or self.guess is not None):
                content = json.dumps(entries, indent=1, default=float)
                book.with_name(NAME).write_text(f"{content}\n", encoding="utf-8")
        except OSError as error:
            self.hint.value = join(f"That is not kept: {NAME} cannot be written ({error}).")

    def _recall(self) -> None:
        """Take the guess that was locked earlier, if there is one for this question."""
        values = _named(kept(notebook()).get(self._key, {}).get("guess"))
        if values.keys() == self.inputs.keys() and None not in values.values():
            with suppress(traitlets.TraitError):  # what somebody else wrote cannot be the answer
                for name, value in values.items():
                    self.inputs[name].value = value
                self.guess = self._value()
                self.hint.value = "You locked this guess earlier. Now run the experiment."


ASKED: dict[str, Predict] = {}
"""The cards of this kernel by their questions, in the order in which these were asked first."""


class Guesses(page.Card):
    """A card of all questions that this kernel has asked, in their order: guess, result, and how
    near they are.
    """

    title = "Your guesses"
    style = page.asset("cards/verdict.css")

    def body(self) -> str:
        rows = list[Markup]()
        for *cells, how in (card.row() for card in ASKED.values()):
            near = element("td", how, class_="solved" if how in ("right", "near") else "quiet")
            rows.append(element("tr", [element("td", each) for each in cells], near))
        head = element("tr", [element("th", each, scope="col") for each in HEADS])
        return element("h3", self.title) + (table(head, rows) if rows else self.table())

    def table(self) -> str:
        rows = [card.row() for card in ASKED.values()]
        return text.table([HEADS, *rows]) if rows else "No question was asked in this kernel yet."


def kept(book: Any) -> dict[str, dict[str, Any]]:
    """Read what is kept beside a notebook, by question: `guess` and `lesson`, and `result` once it
    was revealed. What is damaged is left out; beside None there is nothing.
    """
    entries: Any = ()
    with suppress(OSError, ValueError, AttributeError):  # no notebook, no file, a damaged one
        entries = json.loads(book.with_name(NAME).read_text(encoding="utf-8")).items()
    return {asked: each for asked, each in entries if isinstance(each, dict) and "guess" in each}


def notebook() -> Path | None:
    """The open notebook; None in a program or a test run: nothing is kept then."""
    return next((Path(path) for name in NOTEBOOK if (path := _names().get(name))), None)


def _names() -> Mapping[str, Any]:
    """The names of the notebook's cells, and their values."""
    return dict(running().user_ns) if running() else {}


def _named(value: Any) -> Mapping[str, Any]:
    """A value for each name; that of a card with one slider has no name."""
    return value if isinstance(value, Mapping) else {"": value}


def _slider(name: str, low: float, high: float, unit: str, wide: int) -> w.FloatSlider:
    """A slider in steps of 1 where that is fine enough, or else of 0.05 or the like, so that round
    numbers stay as typed; `wide` characters for its name.
    """
    span = high - low
    step = 1 if 20 <= span <= 5000 else text.round_up(span / 250, (1, 5, 10))
    return w.FloatSlider(
        **{"value": low, "min": low, "max": high, "step": step},
        description=f"{name} ({unit})" if name and unit else name or unit,
        readout_format=",.6",  # 0.25, and 4 for 3.9999999999999996
        layout=w.Layout(width=f"calc(26em + {wide}ch)", max_width="100%"),
        style={"description_width": f"{wide}ch"},
    )
