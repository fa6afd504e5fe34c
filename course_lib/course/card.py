"""A verdict as a card in a notebook: the diagnosis first, then the picture of what failed, and
hints at a click. It needs no kernel and no script.
"""

import base64
import re
from collections.abc import Iterator

from course_lib.collectives import Schedule
from course_lib.course.answers import Verdict, find
from course_lib.errors import SpecError
from course_lib.record.events import Phase
from course_lib.widgets.kit import Inside, Markup, element, page
from course_lib.widgets.stage.scene import Played
from course_lib.widgets.stage.still import film_svg, filmed
from course_lib.widgets.timeline.scene import lanes_svg

MARKS = {  # state -> colour, sign in a circle of 24 x 24
    "passed": ("#009E73", "M6.5 12.5l4 4 7-8.5"),
    "not yet": ("#D55E00", "M8 8l8 8M16 8l-8 8"),
    "to do": ("#7A7A7A", "M8 12h8"),
}
LAST = 6  # steps of a run that are shown
FILM = (
    "Round by round: a row is a rank, a column a chunk of its gradient. A layer in a rank's colour:"
    " that rank's gradient is in. + is added, = replaces."
)
CROSS = " The cross is where it goes wrong."
LANES, EXCHANGE = "The last steps of the run", ". Orange is the exchange that nothing hides."
STYLE = page.asset("cards/verdict.css")


def card(verdict: Verdict) -> str:
    """The HTML of a verdict."""
    color, sign = MARKS[verdict.state]
    circle = element("circle", cx=12, cy=12, r=11, fill=color)
    stroke = {"fill": "none", "stroke": "white", "stroke_width": 2.5, "stroke_linecap": "round"}
    parts = (circle, element("path", d=sign, **stroke))
    mark = element("svg", parts, viewBox="0 0 24 24", aria_hidden="true", class_=verdict.state)
    state = element("span", element("b", verdict.task), f": {verdict.state}")
    body = (element("div", mark, state, class_="state"), *_inside(verdict))
    inside = element("div", body, class_="ls-verdict", style=f"border-color:{color}")
    return page.card(inside, STYLE)


def _inside(verdict: Verdict) -> Iterator[Markup]:
    """The diagnosis, a picture, all that was found, and the hints."""
    text, hint = verdict.text, verdict.hint
    if hint and ("\n" in text or text.endswith(":")):  # an example: what it shows comes first
        text, hint = hint, text
    head, _, rest = text.partition("\n")
    if head.endswith(":"):
        head, _, rest = f"{head} {rest}".partition("\n")
    first, *more = re.split(r"(?<=[.?!]) (?=[A-Z])", head, maxsplit=1)
    yield element("p", element("b", *_code(first)), *_code("".join(f" {words}" for words in more)))
    long = [words for words in (rest, hint) if "\n" in words]
    for words in (rest, hint):
        if words and words not in long:
            yield element("p", *_code(words))
    yield from _picture(verdict, first)
    if long:
        yield _unfold("All that was found", element("pre", *_code("\n\n".join(long))))
    if verdict.state != "passed":
        yield from _hints(verdict.task)


def _picture(verdict: Verdict, alt: str) -> Iterator[Markup]:
    """The schedule or the run that it is about."""
    shown, picture, caption = verdict.shown, "", ""
    try:
        if isinstance(shown, Schedule):
            played = Played.of(shown)
            picture, caption = film_svg(played), FILM + CROSS * bool(played.problem)
            caption += _left_out(filmed(played).start)
        elif shown and (phases := shown.all(Phase)):
            first = max(phase.step for phase in phases) - LAST + 1
            exchanged = any(phase.what == "reduce" for phase in phases)
            picture = lanes_svg(shown, LANES + EXCHANGE * exchanged, max(first, 0), LAST)
    except SpecError:  # too large to be looked at
        return
    if picture:
        data = base64.b64encode(picture.encode()).decode()
        yield element("img", src=f"data:image/svg+xml;base64,{data}", alt=alt)
        if caption:
            yield element("p", caption, class_="quiet")


def _left_out(before: int) -> str:
    """Words for the rounds that a picture does not show."""
    rounds = "Round 0 is" if before == 1 else f"Rounds 0 to {before - 1} are"
    return f" {rounds} left out: the picture would be too large." if before else ""


def _code(text: str) -> Iterator[Inside]:
    """A text in which what stands between backticks is code."""
    for i, part in enumerate(re.split(r"`([^`\n]+)`", text)):
        yield element("code", part) if i % 2 else part


def _hints(task: str) -> Iterator[Markup]:
    """Each hint inside the one before, so that one more is a click."""
    inner: list[Markup] = []
    hints = list(enumerate(find(task).hints, 1))
    for number, hint in reversed(hints):
        inner = [_unfold(f"Hint {number} of {len(hints)}", element("pre", *_code(hint)), *inner)]
    yield from inner


def _unfold(label: str, *inside: Inside) -> Markup:
    summary = element("summary", label, data_lm_suppress_shortcuts="true")
    return element("details", summary, *inside)
