"""Leave a picture of a widget's last state in the notebook, for all who open that without a kernel.

On a page of JupyterLab a cell has two outputs: the widget, and its picture, which is hidden as long
as the widget lives (`saved.css`). So a new picture changes nothing that can be seen. Where cells
are run by a program, as by `jupyter execute`, the picture is the only output, and the state of
widgets, which nobody can use later, is not sent. Elsewhere both are one output, and each program
shows what it can.
"""

import base64
import json
import os
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import anywidget
import comm
from IPython.display import display

from course_lib.errors import SpecError
from course_lib.notebook.shell import running
from course_lib.widgets.kit import Markup, element, page, unfold

VIEW = "application/vnd.jupyter.widget-view+json"
MOST = 100_000  # bytes of a picture in a notebook, in all its forms
SOON = 1.0  # seconds from a change to its picture: more may follow
TITLES = re.compile("<title>.*?</title>", re.DOTALL)
BOX = re.compile(r'viewBox="0 0 (\d+) (\d+)"')
STYLE = element("style", Markup(page.asset("kit/saved.css")))


def hidden(names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Check the names of what a lesson hides, as it has not explained it yet.

    Raises SpecError for an unknown name.
    """
    for name in names:
        if name not in known:
            raise SpecError.unknown("hide", name, known)
    return tuple(names)


class Pictured:
    """A widget that leaves a picture of its last state in the notebook.

    It has `picture()`, an SVG, which raises ValueError if there is nothing to draw, and `table()`,
    text, which stands in for a picture that is too large. It calls `changed()` where the picture of
    a moment ago is not true any more.
    """

    picture: Callable[..., str]
    table: Callable[[], str]
    _place = ""  # the id of its picture among the outputs; empty before it is shown
    _late: threading.Timer | None = None

    def still(self, path: Path | str, *which: Any, **options: Any) -> Path:
        """Write the `picture`, with options of it, to an .svg file, and return its path."""
        if Path(path).suffix != ".svg":
            raise SpecError("path", str(path), "a picture is SVG: a file that ends in .svg")
        return page.save(path, self.picture(*which, **options))

    def _ipython_display_(self) -> None:
        self._place = self._place or uuid4().hex
        bundle = getattr(self, "_repr_mimebundle_", None)  # None where nothing can show widgets
        view = bundle() if bundle else {}
        view = {VIEW: (view[0] if isinstance(view, tuple) else view).get(VIEW)}
        if unwatched():
            _shown.add(self)
            view = {}
        elif "JPY_SESSION_NAME" in os.environ:  # a server of Jupyter, and so its pages
            display(view | {"text/plain": ""}, raw=True)
            view = {}
        display(self._bundle() | view, raw=True, display_id=self._place)

    def leave(self) -> None:
        """Put the picture of the present state in place of the one before."""
        if self._place:
            display(self._bundle(), raw=True, display_id=self._place, update=True)

    def changed(self) -> None:
        """Leave a new picture soon, from a thread: the kernel may be busy."""
        watched = self._place and "JPY_SESSION_NAME" in os.environ and not unwatched()
        if watched and not (self._late and self._late.is_alive()):
            self._late = threading.Timer(SOON, self.leave)
            self._late.daemon = True
            self._late.start()

    def _bundle(self) -> dict[str, str]:
        try:
            return bundle(self.picture(), repr(self))
        except ValueError:  # nothing to draw, or too much
            text = element("pre", self.table()[:8000], class_="ls-saved")
            return {"text/html": STYLE + text, "text/plain": repr(self)}


class Scripted(Pictured, anywidget.AnyWidget):
    """A widget that a script of its own draws, in a notebook or on a page."""

    def to_html(self, path: Path | str) -> Path:
        """Write a page with the same widget that needs no kernel or network; return its path.

        There the widget's script finds `model.get("standalone")` true, and what it saves or sends
        is dropped.
        """
        inherited = {*anywidget.AnyWidget.class_trait_names(sync=True), "_anywidget_id"}
        state = self.get_state(sorted({*self.keys} - inherited - {"_css", "_esm"}))
        state["standalone"] = True
        values = json.dumps(state, default=lambda data: {"$bytes": base64.b64encode(data).decode()})
        body = [
            element("h1", repr(self)),
            element("div", id="widget"),
            unfold("The same as text", element("pre", self.table()), class_="same"),
            page.script("state", values),
            page.script("script", json.dumps(self._esm)),
            f'<script type="module">\n{page.asset("kit/standalone.js")}</script>',
        ]
        return page.save(path, page.document(repr(self), "\n".join(body), self._css))


def bundle(picture: str, description: str) -> dict[str, str]:
    """An SVG as outputs in a notebook. As an image in HTML it is shown by all programs, even those
    that distrust the notebook; as SVG, if there is room, it can be taken out of the file.

    Raises ValueError if it is too large.
    """
    small = TITLES.sub("", picture)  # an image does not show them
    small = BOX.sub(r'\g<0> width="\1" height="\2"', small, count=1)  # or it fills the page
    code = base64.b64encode(small.encode()).decode()
    style = {"class_": "ls-saved", "style": "max-width:100%"}
    image = element("img", alt=description, src=f"data:image/svg+xml;base64,{code}", **style)
    html = STYLE + image
    if len(html) > MOST:
        raise ValueError(f"a picture of {len(html)} bytes is more than {MOST}")
    forms = {"text/html": html, "text/plain": description}
    return forms | ({"image/svg+xml": small} if len(html) + len(small) <= MOST else {})


def unwatched() -> bool:
    """Return True if a program runs the cells: it cannot be asked for input."""
    asked = running().get_parent() if hasattr(running(), "get_parent") else {}
    return asked.get("content", {}).get("allow_stdin") is False


_shown: weakref.WeakSet[Pictured] = weakref.WeakSet()  # by a program's cells


def _leave_all() -> None:
    for one in list(_shown):
        one.leave()


if unwatched():
    comm.create_comm = comm.DummyComm
    running().events.register("post_run_cell", lambda _: _leave_all())
