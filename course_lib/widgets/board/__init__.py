"""RaceBoard and TrainingBoard: runs as they happen, in a notebook. A thread keeps a `View` of the
runs up to date and draws it in the widgets. Controls hand it orders, which it carries out on the
running clusters.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ipywidgets as w

from course_lib.activity import ORDERED
from course_lib.errors import SpecError
from course_lib.widgets.board import pictures
from course_lib.widgets.board.controls import Controls, Order, htmls
from course_lib.widgets.board.plots import Charts
from course_lib.widgets.board.view import HIDEABLE, Raced, View, Watched
from course_lib.widgets.kit import page, svg
from course_lib.widgets.kit.widget import Pictured, hidden

DRAW_EVERY = 0.2  # seconds
HEAD = "66px"  # the height of the headline with its note, whatever they say
SAVE_EVERY = 10.0  # seconds: the picture in the notebook, of a run that goes on
REST_PER_DRAWING = 3.0  # pause, in times of the last drawing: at most a quarter of a core is used


class Board(Pictured, w.VBox):
    """A live board of runs; a cell shows it as its last value. It returns at once and follows the
    runs on a thread until they are over.

    `table()` gives the same facts as text, `still(path)` a picture, `to_html(path)` a page that
    needs no kernel. `halt()` and `close()` end the updates; the runs go on. `hide` names what has
    not been explained yet and is not shown: "staleness", "memory", "links", "delays".
    """

    needs: tuple[str, str, str]  # what a subject is called, an attribute of it, and an example

    def __init__(self, subject: Any, hide: Sequence[str] = ()) -> None:
        name, attribute, example = self.needs
        if not hasattr(subject, attribute):
            raise SpecError(name, subject, example)
        self._subject = subject
        self.view = View(*self._sides())
        self.view.hidden = hidden(hide, HIDEABLE)
        self._prefix = svg.unique_prefix()
        self.charts = Charts([side.label for side in self.view.sides])
        self.head, self.lanes, self.frame, self.facts = htmls(HEAD, None, None, None)
        self._orders = ThreadPoolExecutor(1, "lockstep-orders", ORDERED.set, ("on the board",))
        acts: dict[str, Order] = {"save": self._send_page, "stop": lambda: self._subject.stop()}
        if hasattr(subject, "restart"):
            acts["restart"] = self._restart
        self.controls = Controls(self.view.sides, self._order, acts)
        self.bar = self.controls.bar
        for name in {"links", "delays"}.intersection(self.view.hidden):
            getattr(self.controls, name).layout.display = "none"
        # what may grow or shrink stands below all else, which stays where it is
        parts = [self.head, self.lanes, self.frame, self.controls, self.controls.printed]
        super().__init__([*parts, self.charts, self.facts])
        self.add_class("lk-board")
        self._show()  # the cell returns with all in place; nothing has been read yet
        # the thread that draws and a cell that writes a page share the view
        self._view_lock = threading.RLock()
        self._over = threading.Event()
        self._begin()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._follow, name="lockstep-board", daemon=True)
        self._thread.start()

    @abstractmethod
    def _sides(self) -> tuple[Mapping[str, Watched], Raced]:
        """The runs that are shown, and the race if they are in one."""

    def halt(self) -> None:
        """End the updates and leave the board as it is; the runs go on."""
        self._over.set()
        self._thread.join(5)

    def close(self) -> None:
        """End the updates and take the board away; the runs go on."""
        if hasattr(self, "_thread"):  # what was refused is closed as well
            self.halt()
            self._orders.shutdown(wait=False)
        super().close()

    def table(self) -> str:
        """The present facts of the board as text."""
        return self._made(View.table)

    def picture(self) -> str:
        """The present board as SVG."""
        return self._made(pictures.still)

    def to_html(self, path: Path | str) -> Path:
        """Write the present board as a page without kernel or network; return its path."""
        return page.save(path, self._made(pictures.document))

    def _made(self, of: Callable[[View], str]) -> str:
        with self._view_lock:
            self.view.update()
            return of(self.view)

    def _restart(self) -> None:
        """Start what is over once more, and follow that."""
        self._subject = self._subject.restart()
        self.halt()
        fresh = View(*self._sides())
        fresh.hidden = self.view.hidden
        with self._view_lock:
            self.view, self.controls.sides = fresh, fresh.sides
        self._over.clear()
        self._begin()

    def _send_page(self) -> None:
        """Have the browser save the board as a page."""
        name = "-".join(side.label for side in self.view.sides)
        self.bar.send({"page": self._made(pictures.document), "name": f"{name}.html"})

    # --- the thread ---

    def _follow(self) -> None:
        """Draw until all runs are over."""
        saved = 0.0
        try:
            while not self._over.is_set():
                with self._view_lock:  # `leave`, or a cell, may read an end that is not drawn yet
                    took, over = self.draw(), self.view.over
                if over or time.monotonic() > saved + SAVE_EVERY:
                    saved = time.monotonic()
                    self.leave()
                if over:
                    return
                self._over.wait(max(DRAW_EVERY - took, REST_PER_DRAWING * took))
        except Exception as problem:  # a thread has no cell to show it in
            self._say(f"The board stopped drawing: {type(problem).__name__}: {problem}")

    def _order(self, order: Order) -> None:
        """Have an order carried out, after those given before."""
        self._orders.submit(self._carry_out, order)

    def _carry_out(self, order: Order) -> None:
        """Carry out an order; if it is refused, as the run may just have ended, say why."""
        try:
            order()
            self._say("")
        except Exception as refused:  # a thread has no cell to show it in
            self.controls.forget()
            self._say(str(refused).partition("\n")[0])

    def _say(self, text: str) -> None:
        self.bar.message = text
        self.head.value = pictures.head(self.view, text)

    def draw(self) -> float:
        """Draw the runs as they are now; return the seconds that it took."""
        began = time.monotonic()
        with self._view_lock:
            self.view.update()
            self._show()
        return time.monotonic() - began

    def _show(self) -> None:
        """Put what was read at the last update into the widgets."""
        self.charts.panels = [panel.plain() for panel in self.view.panels()]
        self.head.value = pictures.head(self.view, self.bar.message)
        self.lanes.value = pictures.sides(self.view, self._prefix)
        self.frame.value = pictures.frame(self._prefix, self.view)
        self.facts.value = pictures.facts(self.view)
        self.bar.headline = self.view.headline().replace("**", "")
        self.controls.refresh()


class TrainingBoard(Board):
    """A live board of one run, or the board of a saved one. It returns at once and follows the run
    until it is over.

        run = start("multi_worker_mirrored", workers=4)
        TrainingBoard(run)
    """

    needs = "run", "digest", 'a run: TrainingBoard(start("one_device")); a race has a RaceBoard'

    @property
    def run(self) -> Watched:
        return self._subject

    def _sides(self) -> tuple[Mapping[str, Watched], Raced]:
        return {self.run.spec.strategy: self.run}, None

    def __repr__(self) -> str:
        spec = self.run.spec
        return f"TrainingBoard({spec.strategy}, {spec.framework}, {spec.workers} workers)"


class RaceBoard(Board):
    """A live board of a race, its runs side by side on one clock: who is ahead, what each worker
    does, and in the end a verdict. It returns at once and follows the race until all are over.

        entrants = race("multi_worker_mirrored", "parameter_server", slow={"worker:3": 4})
        RaceBoard(entrants)
    """

    needs = "race", "runs", 'RaceBoard(race("one_device", "mirrored")); a run has a TrainingBoard'

    @property
    def race(self) -> Raced:
        return self._subject

    def _sides(self) -> tuple[Mapping[str, Watched], Raced]:
        return self.race.runs, self.race

    def __repr__(self) -> str:
        return f"RaceBoard({', '.join(self.race.runs)})"
