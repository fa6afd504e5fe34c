"""An extension of IPython, loaded in the kernels that run a lesson for the book: a widget is shown
as a frame, and its page is written when the last cell has run, as runs are over then.
"""

import os
import time
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets
from IPython import get_ipython
from IPython.display import display

# of a page before it has told its own
HEIGHTS = {"AllReduceStage": 620, "Timeline": 420, "TrainingBoard": 640, "RaceBoard": 760}
RECORDED = 3.0  # seconds of a run that goes on, before the next cell stops it
shown: list[Any] = []


def load_ipython_extension(shell: Any) -> None:
    shell.events.register("pre_run_cell", _install)


def _install(_: Any) -> None:
    """Replace what widgets show, with the first cell: course_lib asks the cell that imports it
    whether somebody watches.
    """
    from course_lib.course import cards
    from course_lib.widgets import Predict
    from course_lib.widgets.kit import element
    from course_lib.widgets.kit.widget import Pictured

    def link(book: Any, words: str) -> str:
        """A link from the page of any notebook."""
        return element("a", words, href=f"../{book.path.parent.name}/{book.path.name}")

    cards.link = link
    get_ipython().events.unregister("pre_run_cell", _install)
    Pictured._ipython_display_ = _frame
    ipywidgets.interactive._ipython_display_ = _at_rest
    Predict.reveal = _revealed(Predict.reveal)


def _revealed(reveal: Any) -> Any:
    """The result without a guess, which a reader makes on the card's page."""

    def revealed(card: Any, *given: Any, **named: Any) -> str:
        reveal(card, *given, **named)
        return f"Result: {card.row()[2]}. {card.note}".strip()

    return revealed


def frame(address: str, title: str, height: int) -> str:
    """A page in a page: a script of the book gives it the height that it tells, and the theme."""
    return (
        f'<iframe class="widget" loading="lazy" src="{address}" title="{escape(title)}"'
        f' style="height: {height}px"></iframe>'
    )


def _frame(widget: Any) -> None:
    if not any(widget is other for other in shown):
        shown.append(widget)
        view = getattr(widget, "view", None)
        if view and any(side.run.state in ("starting", "running") for side in view.sides):
            time.sleep(RECORDED)
    number = next(i for i, other in enumerate(shown) if widget is other)
    address = f"{os.environ['BOOK_WIDGETS']}/{number}.html"
    html = frame(address, repr(widget), HEIGHTS.get(type(widget).__name__, 300))
    display({"text/html": html, "text/plain": repr(widget)}, raw=True)


def _at_rest(control: Any) -> None:
    """Words in place of the sliders of `interact`, which need a kernel. It has shown already what
    they give where they stand.
    """
    names = "; ".join(slider.description for slider in control.kwargs_widgets)
    words = f"In JupyterLab sliders stand here ({names}), and change what is shown above."
    display({"text/html": f"<p>{escape(words)}</p>", "text/plain": words}, raw=True)


def save(folder: str) -> None:
    """Write the pages of all widgets shown. Runs that go on are stopped first, so that boards show
    all of them.
    """
    from course_lib import Run
    from course_lib.widgets import Predict

    for run in Run.going():
        run.stop()

    for number, widget in enumerate(shown):
        path = Path(folder) / f"{number}.html"
        if thread := getattr(widget, "_thread", None):
            thread.join(60)
        if isinstance(widget, Predict):
            import predictions

            path.write_text(predictions.page_of(widget), encoding="utf-8")
        else:
            widget.to_html(path)
