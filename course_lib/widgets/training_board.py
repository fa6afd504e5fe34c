"""TrainingBoard: a run as it happens. Loss, throughput, and a lane for each worker; a slider that slows one of them down."""

from __future__ import annotations

import contextlib
import html
import threading
from typing import Any, Protocol

import ipywidgets as w
import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from course_lib import measures
from course_lib.errors import LockstepError
from course_lib.spec import RunSpec
from course_lib.trace import Lifecycle, Phase, Trace
from course_lib.widgets.palette import INK, PHASE, WORKER, layout

PERIOD = 0.25  # seconds between pictures: plotly's widget manages four or five a second
STEPS_SHOWN = 10
POINTS = 1000  # at most, in one line


class Watched(Protocol):
    """What a board needs of a run; a live run has all of it."""

    spec: RunSpec

    @property
    def state(self) -> str: ...
    @property
    def trace(self) -> Trace: ...
    @property
    def result(self) -> Any: ...
    def slow(self, task: str, factor: float) -> None: ...
    def stop(self) -> Any: ...


class TrainingBoard(w.VBox):
    """A live board of one run. Shows itself as a cell's last value; returns at once; follows the run on a thread until it is over.

    The slider acts on the running cluster. `table()` gives the same facts as text. `close()` ends the updates.
    """

    def __init__(self, run: Watched) -> None:
        self.run = run
        workers = [task for task in run.spec.tasks if task.startswith("worker:")]
        self.workers = workers
        self.figure = _empty_figure(workers)
        self.status = w.HTML()
        self.who = w.Dropdown(options=workers, value=workers[-1], description="slow down", layout=w.Layout(width="auto"))
        self.factor = w.FloatSlider(
            value=run.spec.slow.get(workers[-1], 1.0),
            min=1,
            max=10,
            step=0.5,
            description="times slower",
            readout_format=".1f",
            continuous_update=False,
            style={"description_width": "initial"},
        )
        self.stopper = w.Button(description="Stop", icon="stop", tooltip="End the run and all its processes")
        self.who.observe(self._move_straggler, "value")
        self.factor.observe(self._slow, "value")
        self.stopper.on_click(self._stop)
        self._over = threading.Event()
        controls = w.HBox([self.who, self.factor, self.stopper], layout=w.Layout(flex_flow="row wrap", align_items="center"))
        super().__init__([self.status, self.figure, controls])
        self._thread = threading.Thread(target=self._follow, name="lockstep-board", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"TrainingBoard({self.run.spec.strategy}, {self.run.spec.framework}, {len(self.workers)} workers)"

    def close(self) -> None:
        """End the updates; the run is not touched."""
        self._over.set()
        super().close()

    def table(self) -> str:
        """The picture's facts as text: seconds and shares of each worker's phases."""
        return measures.table(self.run.trace)

    # --- controls: they only pass on what the learner wants ---

    def _slow(self, change: dict[str, Any]) -> None:
        with contextlib.suppress(LockstepError):  # the run may just have ended
            self.run.slow(self.who.value, change["new"])

    def _move_straggler(self, change: dict[str, Any]) -> None:
        with contextlib.suppress(LockstepError):
            self.run.slow(change["old"], 1.0)
            self.run.slow(change["new"], self.factor.value)

    def _stop(self, _: w.Button) -> None:
        threading.Thread(target=self.run.stop, name="lockstep-stop", daemon=True).start()

    # --- the picture ---

    def _follow(self) -> None:
        while not self._over.wait(PERIOD):
            over = self.run.state not in ("starting", "running")
            self.draw()
            if over:
                self.stopper.disabled = self.factor.disabled = self.who.disabled = True
                return

    def draw(self) -> None:
        """Draw the run as it stands."""
        trace = self.run.trace
        loss = _thin([(m.step, m.value) for m in measures.curve(trace)])
        speed = _thin(_throughput(trace, self.run.spec.batch))
        bars = _recent(measures.lanes(trace, since=trace.seconds - 30.0))
        self.status.value = _status(self.run, trace)
        with self.figure.batch_update():
            self.figure.data[0].update(x=loss[:, 0], y=loss[:, 1])
            self.figure.data[1].update(x=speed[:, 0], y=speed[:, 1])
            for line, what in zip(self.figure.data[2:], measures.SHOWN, strict=True):
                shown = [p for p in bars if p.what == what]
                line.update(
                    base=np.array([p.start for p in shown]),
                    x=np.array([p.end - p.start for p in shown]),
                    y=[p.task for p in shown],
                    customdata=np.array([[p.step, 1000 * (p.end - p.start)] for p in shown]),
                )
            if bars:
                self.figure.layout.xaxis3.range = (min(p.start for p in bars), max(p.end for p in bars))


def _empty_figure(workers: list[str]) -> go.FigureWidget:
    titles = (
        "loss over steps",
        "examples per second, all workers (over seconds)",
        f"what each worker did in the last {STEPS_SHOWN} steps (seconds since start)",
    )
    figure = make_subplots(
        rows=2,
        cols=2,
        specs=[[{}, {}], [{"colspan": 2}, None]],
        row_heights=[0.45, 0.55],
        vertical_spacing=0.17,
        horizontal_spacing=0.09,
        subplot_titles=titles,
    )
    figure.add_scatter(row=1, col=1, x=[], y=[], line={"color": WORKER[0]}, showlegend=False, name="loss")
    figure.add_scatter(row=1, col=2, x=[], y=[], line={"color": WORKER[2]}, showlegend=False, name="examples/s")
    for what in measures.SHOWN:
        color, pattern, words = PHASE[what]
        marker = {"color": color, "pattern": {"shape": pattern, "fgcolor": "white", "size": 5, "solidity": 0.35}, "line": {"width": 0}}
        hover = f"%{{y}}, step %{{customdata[0]}}: {what} %{{customdata[1]:.1f}} ms<extra></extra>"
        figure.add_bar(row=2, col=1, x=[], y=[], base=[], orientation="h", name=words, marker=marker, hovertemplate=hover)
    figure.update_yaxes(row=2, col=1, categoryorder="array", categoryarray=workers[::-1], range=(-0.6, len(workers) - 0.4))
    figure.update_yaxes(row=1, col=1, rangemode="tozero")
    figure.update_yaxes(row=1, col=2, rangemode="tozero")
    figure.update_annotations(font_size=15, font_color=INK)
    height = 380 + 34 * len(workers)
    figure.update_layout(**layout(barmode="overlay", height=height, bargap=0.25, autosize=True, uirevision="board"))
    return go.FigureWidget(figure)


def _recent(phases: list[Phase]) -> list[Phase]:
    """Phases of the last few steps that every worker has brought to its end: of others it is not yet known who waits for whom."""
    newest: dict[str, int] = {}
    for p in phases:
        if p.what == "apply":
            newest[p.task] = max(p.step, newest.get(p.task, 0))
    whole = min(newest.values(), default=0)
    return [p for p in phases if whole - STEPS_SHOWN < p.step <= whole]


def _throughput(trace: Trace, batch: int, every: float = 0.25) -> list[tuple[float, float]]:
    """(seconds, examples per second): steps that ended in each quarter of a second."""
    ends = measures.step_ends(trace)
    if len(ends) < 3:
        return []
    times = np.array(ends[1:])
    span = max(every, 8 * float(np.median(np.diff(ends))))
    edges = np.arange(times[0], times[-1], span)
    counts, _ = np.histogram(times, edges)
    return [(float(edge + span), float(batch * n / span)) for edge, n in zip(edges, counts, strict=False)]


def _thin(points: list[tuple[float, float]]) -> np.ndarray:
    """At most `POINTS` of them, evenly, as an array of two columns; the last is always among them."""
    array = np.array(points, dtype=float).reshape(-1, 2)
    return array if len(array) <= POINTS else array[np.linspace(0, len(array) - 1, POINTS).astype(int)]


def _status(run: Watched, trace: Trace) -> str:
    """One line: the state, how far, and whether times are measured or emulated."""
    spec = run.spec
    losses = measures.curve(trace)
    slowed = spec.slow or trace.all(Lifecycle, state="slowed")
    word = (
        f"emulated: a step sleeps {spec.device_ms:g} ms for its device"
        if spec.device_ms
        else "emulated: a straggler"
        if slowed
        else "measured"
    )
    far = f"step {losses[-1].step + 1} of {spec.steps}, loss {losses[-1].value:.3f}" if losses else "no step yet"
    if run.state == "failed":
        far = html.escape(_first_line_of_failure(run))
    return f"<b>{spec.strategy}</b> in {spec.framework}, {spec.workers} workers: <b>{run.state}</b>, {far} <i>({word})</i>"


def _first_line_of_failure(run: Watched) -> str:
    """What a failed run's error says first: which task, in which step, why."""
    try:
        return str(run.result)
    except LockstepError as error:
        return str(error).splitlines()[0]
