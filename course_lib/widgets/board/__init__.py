"""RaceBoard and TrainingBoard: runs as they happen, in a notebook. A thread keeps a `View` of the
runs up to date and draws it in the widgets.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as w

from course_lib.activity import ORDERED
from course_lib.errors import LockstepError
from course_lib.widgets.board import pictures
from course_lib.widgets.board.charts import Charts
from course_lib.widgets.board.controls import Controls, Order, Switch
from course_lib.widgets.board.side import Watched
from course_lib.widgets.board.view import HIDEABLE, Raced, View
from course_lib.widgets.kit import element, page, svg
from course_lib.widgets.kit.widget import Pictured, hidden, is_run, takes

DRAW_EVERY = 0.2  # seconds
# the heights of the headline with its note, of a race's, and of messages, whatever they say
HEAD, RACE_HEAD, MESSAGE = "78px", "116px", "32px"
SAVE_EVERY = 10.0  # seconds: the picture in the notebook, of a run that goes on
REST_PER_DRAWING = 3.0  # pause, in times of the last drawing: at most a quarter of a core is used


class Board(Pictured, w.VBox):
    """A live board of runs; a cell shows it as its last value. It returns at once and follows the
    runs on a thread until they are over.

    `table()` gives the same facts as text, `still(path)` a picture, `to_html(path)` a page that
    needs no kernel. `halt()` and `close()` end the updates; the runs go on. `hide` names what has
    not been explained yet and is not shown: "staleness", "memory", "links", "delays".
    """

    def __init__(
        self,
        runs: Mapping[str, Watched],
        stop: Callable[[], Any],
        race: Raced | None = None,
        hide: Sequence[str] = (),
    ) -> None:
        self.view = View(runs, race)
        self.view.hidden = hidden(hide, HIDEABLE)
        self._prefix, self._stop_runs = svg.unique_prefix(), stop
        self.charts = Charts([side.label for side in self.view.sides], self.view.panels())
        self.charts.observe(self._scaled, "logarithmic")
        height = HEAD if race is None else RACE_HEAD
        self.head = w.HTML(layout=w.Layout(height=height, overflow="auto"))
        self.message = w.HTML(layout=w.Layout(height=MESSAGE, overflow="auto"))
        self.lanes = w.HTML()
        self.legend = w.HTML()
        for part in (self.head, self.lanes, self.legend, self.message):
            part.add_class("ls")
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self.controls = Controls(self.view.sides, self._orders.put, self._stop)
        unexplained = {"links": [self.controls.links], "delays": self.controls.tasks.delaying}
        for control in (each for name in self.view.hidden for each in unexplained.get(name, ())):
            control.layout.display = "none"
        # what may grow or shrink stands below the controls, so that they stay where they are
        line = w.HBox([self.message, Switch()])
        line.add_class("lk-said")
        below = (self.controls, line, self.lanes, self.legend)
        super().__init__([self.head, self.charts, *below])
        self.add_class("lk-board")
        self._show()  # the cell returns with all in place; nothing has been read yet
        # the thread that draws and a cell that writes a page share the view
        self._looking = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="lockstep-board", daemon=True)
        self._thread.start()

    def halt(self) -> None:
        """End the updates and leave the board as it is; the runs go on."""
        self._over.set()
        self._orders.put(None)
        self._thread.join(5)

    def close(self) -> None:
        """End the updates and take the board away; the runs go on."""
        if hasattr(self, "_thread"):  # what was refused is closed as well
            self.halt()
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
        with self._looking:
            self.view.look()
            return of(self.view)

    def _scaled(self, change: dict[str, Any]) -> None:
        """The page chose an axis, which pictures take over."""
        self.view.logarithmic = change["new"]

    # --- the thread ---

    def _follow(self) -> None:
        """Draw until all runs are over; between drawings, carry out what the controls order."""
        saved = 0.0
        ORDERED.set("on the board")
        try:
            while not self._over.is_set():
                took = self.draw()
                if self.view.over or time.monotonic() > saved + SAVE_EVERY:
                    saved = time.monotonic()
                    self.leave()
                if self.view.over:
                    return
                self._obey(until=time.monotonic() + max(DRAW_EVERY - took, REST_PER_DRAWING * took))
        except Exception as problem:  # a thread has no cell to show it in
            self._say(f"The board stopped drawing: {type(problem).__name__}: {problem}")

    def _obey(self, until: float) -> None:
        while not self._over.is_set() and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                if order := self._orders.get(timeout=left):
                    self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        """Carry out an order; if it is refused, as the run may just have ended, say why."""
        try:
            order()
            self._say("")
        except LockstepError as refused:
            self._say(str(refused).splitlines()[0])

    def _stop(self) -> None:
        """Stop the runs on a thread of its own: stopping waits for processes."""
        stop = partial(self._carry_out, self._stop_runs)
        threading.Thread(target=stop, name="lockstep-stop", daemon=True).start()

    def _say(self, text: str) -> None:
        self.message.value = element("div", text, class_="lk-message", role="status")

    def draw(self) -> float:
        """Draw the runs as they are now; return the seconds that it took."""
        began = time.monotonic()
        with self._looking:
            self.view.look()
            self._show()
        return time.monotonic() - began

    def _show(self) -> None:
        """Put what was seen at the last look into the widgets."""
        self.charts.show(self.view.panels())
        self.head.value = pictures.head(self.view)
        self.lanes.value = pictures.sides(self.view, self._prefix)
        self.legend.value = pictures.frame(self._prefix, self.view)
        self.controls.refresh()


class TrainingBoard(Board):
    """A live board of one run, or the board of a saved one. It returns at once and follows the run
    until it is over.

        run = start("multi_worker_mirrored", workers=4)
        TrainingBoard(run)
    """

    @takes(
        'a run, live or saved: TrainingBoard(start("one_device")); a race has a RaceBoard',
        lambda run, hide: is_run(run),
    )
    def __init__(self, run: Watched, hide: Sequence[str] = ()) -> None:
        self.run = run
        runs = {run.spec.strategy: run}
        super().__init__(runs, lambda: self.view.sides[0].order("stop"), hide=hide)

    def __repr__(self) -> str:
        spec = self.run.spec
        return f"TrainingBoard({spec.strategy}, {spec.framework}, {spec.workers} workers)"


class RaceBoard(Board):
    """A live board of a race, its runs side by side on one clock: who is ahead, what each worker
    does, and in the end a verdict. It returns at once and follows the race until all are over.

        entrants = race("multi_worker_mirrored", "parameter_server", slow={"worker:3": 4})
        RaceBoard(entrants)
    """

    @takes(
        'a race: RaceBoard(race("one_device", "mirrored")); a run has a TrainingBoard',
        lambda race, hide: isinstance(getattr(race, "runs", None), Mapping),
    )
    def __init__(self, race: Raced, hide: Sequence[str] = ()) -> None:
        self.race = race
        super().__init__(race.runs, race.stop, race, hide)

    def __repr__(self) -> str:
        return f"RaceBoard({', '.join(self.race.runs)})"
