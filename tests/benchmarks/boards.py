"""The boards: what they cost to make and to draw, early and late in a run; how late the page is,
how smooth; and how soon Stop has stopped.

A page is told by comm messages what to show. They are counted where they are sent. Of the other
widgets too, but for the stage, which has rows of its own.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comm
import psutil
from comm.base_comm import BaseComm
from playwright.sync_api import Page

from course_lib import machine_card, start, strategy_table
from course_lib.record.digest import Digest
from course_lib.record.events import Event, Lifecycle, Metric, Phase, Update
from course_lib.record.trace import Trace
from course_lib.spec.run_spec import RunSpec
from course_lib.widgets.board import RaceBoard, TrainingBoard
from course_lib.widgets.cards.predict import Predict
from course_lib.widgets.kit.page import Card
from course_lib.widgets.timeline import Timeline
from tests.benchmarks.harness import Aim, Options, Rows, compare
from tests.browser.lab import CHROMIUM, chromium, opened
from tests.conftest import HOME

WORKERS, STEP = 8, 0.08  # a hundred updates a second from eight workers
SHORT, LONG, QUICK = 100, 12_500, 1_000  # steps: 8 s, 1000 s and 80 s of them
LIMIT = 100_000.0
DELAY = 0.3
SECONDS = 8.0  # for which a page is watched
STOP = 1.0
CELL = f"""
from course_lib import start
from course_lib.widgets import TrainingBoard
run = start("multi_worker_mirrored", framework="torch", workers=4, steps=100000,
            device_ms={1000 * STEP / 2})
TrainingBoard(run)
"""
RACE = f"""
from course_lib import race
from course_lib.widgets import RaceBoard
both = race("multi_worker_mirrored", "parameter_server", framework="torch",
            workers={WORKERS}, steps=100000, device_ms={2 * 1000 * STEP})
RaceBoard(both)
"""
WARM = """
from course_lib import start
from course_lib.widgets import TrainingBoard
start("one_device", framework="torch", steps=1).wait()
"""
FIRST = {  # what of a board is there -> where on the page, and seconds that it may take
    "chart": (".lk-chart .field", 0.5),
    "lane": (".lk-row path", 1.5),
}
CLOCK = """selector => {
  window.__took = new Promise((done) => addEventListener("keydown", ({ key, timeStamp }) => {
    const look = () => document.querySelector(selector)
      ? done((performance.now() - timeStamp) / 1000) : requestAnimationFrame(look);
    if (key === "Enter") look();
  }, true));
}"""
FRAMES = """async (ms) => {
  let count = 0;
  for (const end = performance.now() + ms; performance.now() < end; count++)
    await new Promise(requestAnimationFrame);
  return 1000 * count / ms;
}"""
WATCH = """() => {
  window.__seen = [];
  const shown = () => Number(document.querySelector('.lk-side').dataset.seconds);
  const look = () => window.__seen.push([Date.now() / 1000, shown()]);
  const sides = document.querySelector('.lk-sides').parentElement;
  new MutationObserver(look).observe(sides, {childList: true});
}"""


def rows(options: Options) -> Rows:
    """A row for each; the last four need a browser."""
    limit = ("100 kB", lambda: LIMIT)
    yield compare(
        "bytes to make a RaceBoard",
        "B",
        lambda: created(lambda: board(0)),
        limit,
        Aim("at most", 1),
        options,
    )
    for name, make in OTHERS.items():
        yield compare(
            f"bytes to make a {name}",
            "B",
            partial(created, make),
            limit,
            Aim("at most", 1),
            options,
        )
    yield compare(
        "bytes of a picture of a race, 2 x 8 workers",
        "B",
        lambda: later(SHORT)[1],
        limit,
        Aim("at most", 1),
        options,
    )
    long = QUICK if options.quick else LONG
    early = (f"in step {SHORT}", lambda: later(SHORT)[0])
    yield compare(
        f"a picture of a race, 2 x 8 workers, in step {long}",
        "ms",
        lambda: later(long)[0],
        early,
        Aim("at most", 3),
        options,
    )
    for framework in ("torch", "tensorflow"):
        name = f"from a click on Stop to no process left, 4 workers at full speed, {framework}"
        yield compare(
            name,
            "s",
            partial(stopped, framework),
            ("1 s", lambda: STOP),
            Aim("at most", 1),
            options,
        )
    if CHROMIUM:
        with live_page(RACE) as (page, blank):
            ms = 1000 * (1 if options.quick else SECONDS / 2)
            empty = ("an empty page beside it", lambda: float(blank.evaluate(FRAMES, ms)))
            name = f"frames of a page with a live race, 2 x {WORKERS} workers, 100 updates/s"
            yield compare(
                name,
                "frames/s",
                lambda: float(page.evaluate(FRAMES, ms)),
                empty,
                Aim("at least", 0.9),
                options,
            )
        for what, (selector, limit_s) in FIRST.items():
            yield compare(
                f"from a cell to the first {what}, imports done and zygote warm",
                "s",
                partial(first, selector),
                (f"{limit_s} s", partial(float, limit_s)),
                Aim("at most", 1),
                options,
            )
        yield compare(
            "from an event in a worker to the page",
            "s",
            page_delay,
            ("0.3 s", lambda: DELAY),
            Aim("at most", 1),
            options,
        )


class Wire:
    """Bytes that widgets have sent to their page."""

    def __init__(self) -> None:
        self.bytes = 0

    def comm(self, **settings: Any) -> BaseComm:
        """A comm that counts and has nobody at its other end."""
        wire = self

        class Counting(BaseComm):
            def publish_msg(
                self,
                msg_type: str,
                data: Any = None,
                metadata: Any = None,
                buffers: Any = None,
                **_: Any,
            ) -> None:
                state = (data or {}).get("state", {})
                wire.bytes += len(json.dumps(state, default=str)) + sum(
                    memoryview(part).nbytes for part in buffers or []
                )

        return Counting(**settings)

    @classmethod
    @contextlib.contextmanager
    def tapped(cls) -> Iterator[Wire]:
        """All widgets made inside are counted."""
        wire, before = cls(), comm.create_comm
        comm.create_comm = wire.comm
        try:
            yield wire
        finally:
            comm.create_comm = before


class Made:
    """A run that is made up and goes on: `more` lets it take steps."""

    def __init__(self) -> None:
        self.spec = RunSpec(framework="torch", workers=WORKERS, steps=1_000_000, device_ms=10)
        self.state, self.trace, self.result, self.step = "running", Trace(), {}, 0
        self._digest = Digest(self.spec, self.trace)

    @property
    def digest(self) -> Digest:
        return self._digest.update()

    def pulse(self) -> None:
        """Nothing is known but its trace."""

    def more(self, steps: int) -> None:
        events: list[Event] = []
        for n in range(self.step, self.step + steps):
            start = n * STEP
            for k in range(WORKERS):
                task, ready = f"worker:{k}", start + STEP * (0.2 + k / WORKERS / 2)
                events += [
                    Phase(task, n, "compute", start, ready),
                    Phase(task, n, "reduce", ready, start + 0.9 * STEP),
                    Phase(task, n, "apply", start + 0.9 * STEP, start + STEP),
                    Update(task, n, "all", "cpu", n, n + 1, start + STEP),
                    Metric(
                        task, "loss", 2 / (1 + n / 100), n, (n + 1) * self.spec.batch, start + STEP
                    ),
                ]
        self.trace._add(events)
        self.step += steps


def board(steps: int) -> RaceBoard:
    """A board of two made-up runs, which does not follow them by itself."""
    runs = {"one": Made(), "other": Made()}
    race: Any = SimpleNamespace(
        runs=runs, target_loss=None, target_accuracy=None, stop=lambda: None
    )
    shown = RaceBoard(race)
    shown.halt()
    for run in runs.values():  # now that nobody else draws
        run.more(steps)
    return shown


def created(make: Callable[[], Any]) -> float:
    """Bytes that a page is sent to show a new widget, or a card, which is HTML and no more."""
    with Wire.tapped() as wire:
        shown = make()
        if isinstance(shown, Card):
            return float(len(shown._repr_html_().encode()))
        shown.close()
        return float(wire.bytes)


def single() -> TrainingBoard:
    """A board of one run that has not begun."""
    shown = TrainingBoard(Made())
    shown.halt()
    return shown


def timeline() -> Timeline:
    """The timeline of eight workers in a hundred steps."""
    run = Made()
    run.more(SHORT)
    return Timeline(run)


OTHERS: dict[str, Callable[[], Any]] = {
    "TrainingBoard": single,
    f"Timeline, {WORKERS} workers, {SHORT} steps": timeline,
    "MachineCard": machine_card,
    "StrategyTable": strategy_table,
    "Predict": lambda: Predict("How many times longer does a step take?", numbers=(1, 10, "times")),
}


def later(steps: int) -> tuple[float, float]:
    """Milliseconds and bytes of a picture, charts and all, after so many steps and three more."""
    with Wire.tapped() as wire:
        shown = board(steps)
        shown.draw()
        for run in shown.race.runs.values():
            run.more(3)
        # as timeit does: a whole collection of a million events is not the picture's time
        gc.collect()
        before, began = wire.bytes, time.perf_counter()
        shown.draw()
        took, size = 1000 * (time.perf_counter() - began), wire.bytes - before
        shown.close()
    return took, float(size)


def stopped(framework: str) -> float:
    """Seconds from a click on Stop, where the kernel hears of it, until no process of the run is
    left: tasks and supervisor.
    """
    run = start("multi_worker_mirrored", framework=framework, workers=4, steps=1_000_000)
    board = TrainingBoard(run)
    try:
        run.wait_running()
        deadline = time.monotonic() + 60
        while len(run.trace.all(Phase, what="apply", step=20)) < 4:
            if time.monotonic() > deadline:
                raise RuntimeError("no 20 steps of 4 workers in 60 s")
            time.sleep(0.05)
        tasks = [psutil.Process(e.pid) for e in run.trace.all(Lifecycle, state="starting")]
        all_of_it = [*tasks, tasks[0].parent()]
        began = time.perf_counter()
        board.controls.buttons["stop"].click()
        _, left = psutil.wait_procs(all_of_it, timeout=30)
        took = time.perf_counter() - began
        if left:
            raise RuntimeError(f"still there 30 s after Stop: {left}")
        return took
    finally:
        run.stop()
        board.close()


@contextlib.contextmanager
def live_page(cell: str) -> Iterator[tuple[Page, Page]]:
    """JupyterLab with a board that draws what goes on, and an empty page beside it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium() as browser,
        opened(browser, Path(folder), cell) as lab,
    ):
        lab.run()
        lab.page.locator(".lk-row path").first.wait_for(state="attached")
        lab.page.locator(".lk-chart .line").first.wait_for(state="attached")
        lab.page.wait_for_timeout(2000)
        yield lab.page, browser.new_page()


def first(selector: str) -> float:
    """Seconds from the key that runs a cell until a part of its board is in the page."""
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium() as browser,
        opened(browser, Path(folder), WARM, CELL) as lab,
    ):
        lab.run()
        lab.page.get_by_text("[1]:", exact=True).first.wait_for()
        lab.page.evaluate(CLOCK, selector)
        lab.run()
        return float(lab.page.evaluate("window.__took"))


def page_delay() -> float:
    """Seconds from an event until the page shows it, a mean over all moments: between two pictures
    it waits for the next.
    """
    with live_page(CELL) as (page, _):
        page.evaluate(WATCH)
        page.wait_for_timeout(1000 * SECONDS)
        seen = page.evaluate("window.__seen")
    newest = max(Path(HOME, "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    zero = json.loads((newest / "run.json").read_text())["origin"] + time.time() - time.monotonic()
    return mean_delay([(at, zero + shown) for at, shown in seen])


def mean_delay(pictures: list[tuple[float, float]]) -> float:
    """Of pictures (when shown, the newest event in it): how long an event waits for the first that
    has it, a mean over all moments.
    """
    waited = covered = 0.0
    for (_, since), (at, until) in itertools.pairwise(pictures):
        waited += (at - (since + until) / 2) * (until - since)
        covered += until - since
    return waited / covered
