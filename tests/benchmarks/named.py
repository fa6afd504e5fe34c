"""From a signal to the error: one worker of four is killed or stopped from outside. Our error has
to name it, and a board beside it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from course_lib import Run, start
from course_lib.errors import Stalled, TaskFailed
from course_lib.network.layout import LOOPBACK, reserve_ports
from course_lib.record.events import Lifecycle, Phase
from course_lib.widgets import TrainingBoard
from tests.benchmarks import clusters, timed
from tests.benchmarks.harness import Aim, Options, Rows, compare
from tests.helpers import until

WORKERS, VICTIM = 4, 1
LONGEST = 15.0  # seconds after which a peer is given up: it took more than that
POLL = 0.005


def rows(options: Options) -> Rows:
    for framework in ("torch", "tensorflow"):
        clusters.warm(framework)
        for sent, aim in ((signal.SIGKILL, Aim("shown")), (signal.SIGSTOP, Aim("faster", 3))):
            yield compare(
                f"{sent.name} of a worker of {WORKERS} until an error names it, {framework}",
                "s",
                partial(ours, framework, sent),
                (
                    f"plain {framework}, any error; {LONGEST:g} s: none by then",
                    partial(plain, framework, sent, options),
                ),
                aim,
                options,
            )
        yield compare(
            f"SIGSTOP of a worker of {WORKERS} until a board names it, {framework}",
            "s",
            partial(on_a_board, framework),
            ("an error names it", partial(ours, framework, signal.SIGSTOP)),
            Aim("shown"),
            options,
        )


@contextlib.contextmanager
def going(framework: str) -> Iterator[tuple[Run, Lifecycle]]:
    """A run in the midst of its training, and the start of the worker that is to get a signal."""
    fields = {"framework": framework, "workers": WORKERS, "steps": 1_000_000}
    with start("multi_worker_mirrored", **fields) as run:
        until(lambda: run.trace.all(Phase, "worker:0", step=20), "twenty steps")
        [victim] = run.trace.all(Lifecycle, f"worker:{VICTIM}", state="starting")
        yield run, victim


def ours(framework: str, sent: signal.Signals) -> float:
    with going(framework) as (run, victim):
        began = time.monotonic()
        os.kill(victim.pid, sent)
        try:
            run.wait(clusters.LONGEST)
        except TaskFailed as error:
            named = error.task
        except Stalled as error:
            named = next(iter(error.waiting_for))
        seconds = time.monotonic() - began
    if named != victim.task:
        raise clusters.Unfinished(f"{named} was named, and {victim.task} got {sent.name}")
    return seconds


def on_a_board(framework: str) -> float:
    """Seconds until a board that follows the run has the words; a browser then has to draw them."""
    with going(framework) as (run, victim):
        board = TrainingBoard(run)
        time.sleep(1.0)
        began = time.monotonic()
        os.kill(victim.pid, signal.SIGSTOP)
        says = f"{victim.task} is paused"
        until(lambda: says in board.head.value, "the board's words", clusters.LONGEST, POLL)
        seconds = time.monotonic() - began
        board.halt()
    return seconds


def plain(framework: str, sent: signal.Signals, options: Options) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder,
        contextlib.ExitStack() as stack,
    ):
        ports = reserve_ports([f"worker:{k}" for k in range(WORKERS)])
        held = {task: stack.enter_context(sock) for task, sock in ports.items()}
        addresses = {task: f"{LOOPBACK}:{sock.getsockname()[1]}" for task, sock in held.items()}
        command = [sys.executable, str(clusters.PEERS / "endless.py"), framework, folder]
        places = timed.places(framework, addresses)
        started = [stack.enter_context(clusters.process(command, place)) for place in places]
        clusters.arrived(
            Path(folder), WORKERS, check=lambda: [clusters.still_there(each) for each in started]
        )
        time.sleep(1.0)  # they are in the midst of it
        began = time.monotonic()
        os.kill(started[VICTIM].pid, sent)
        while not (errors := [*Path(folder).glob("*.error")]):
            if time.monotonic() - began > LONGEST:
                return LONGEST
            time.sleep(POLL)
        seconds = time.monotonic() - began
        options.say(f"plain {framework}: {' '.join(errors[0].read_text().split())[:300]}")
        return seconds
