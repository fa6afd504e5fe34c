"""AllReduceStage: all-reduce algorithms side by side on one clock. It shows each transfer as it
moves and whose gradients each chunk holds.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import traitlets as t

from course_lib import text
from course_lib.collectives.algorithms import Algorithm
from course_lib.errors import SpecError
from course_lib.spec.fields import Link, parse_bytes
from course_lib.widgets.kit import page
from course_lib.widgets.kit.widget import Scripted, hidden
from course_lib.widgets.stage.scene import PALETTE, Reduced, Setting, alike, limits, stage
from course_lib.widgets.stage.still import still_svg

SCRIPTS = ("words", "state", "layout", "draw", "sliders", "transport", "all_reduce_stage")
HIDEABLE = ("busiest link", "bus bandwidth")
CLOCKS = ("rounds", "simulated", "measured")
HEADS = ("", "rounds", "a rank sends", "busiest link", "time", "bus bandwidth", "")
PAST = "These were carried out as they are: settings cannot be changed."

STARTING = "Starting real processes on this machine"
STOPPED = "You stopped it: its processes are gone, and nothing of it is shown."

Carry = Callable[..., Sequence[Reduced]]
"""A function that carries algorithms out: (bytes, algorithms, workers, hosts, link=, watch=) -> a
result for each, as `course_lib.reduction.allreduce.compare`; it calls `watch` when a run begins.
"""


class AllReduceStage(Scripted):
    """Algorithms side by side: play, pause, step a round, scrub. A cell shows it as its last value.

    `algorithms`: names, functions `workers -> Schedule` of your own, or results of
    `course_lib.allreduce`, which are played as they were measured. A wrong schedule is played up to
    the transfer that breaks it, and the stage says why. `bytes`: what each worker brings. `link`:
    the link of each host, in the simulation and in a real run. Sliders change workers, hosts, bytes
    and links; each change is simulated anew. `run`: the function that carries algorithms out when
    the button is pressed. `hide` names figures that have not been explained yet: "busiest link",
    "bus bandwidth".

    `clock` ("rounds", "simulated" or "measured"), `at` (a round, or seconds), `playing` and `speed`
    can be set from a cell, too. Raises SpecError for impossible settings.
    """

    _esm = page.asset("kit/projector.js", *(f"stage/{part}.js" for part in SCRIPTS))
    _css = page.asset("kit/theme.css", "stage/all_reduce_stage.css")

    scene = t.Dict().tag(sync=True)
    settings = t.Dict().tag(sync=True)  # the fields of a Setting
    clock = t.Enum(CLOCKS, "rounds").tag(sync=True)
    at = t.Float(0.0).tag(sync=True)
    playing = t.Bool(False).tag(sync=True)
    speed = t.Float(1.0).tag(sync=True)
    status = t.Unicode("").tag(sync=True)
    busy = t.Bool(False).tag(sync=True)
    runnable = t.Bool(False).tag(sync=True)
    most = t.Dict().tag(sync=True)  # of workers and hosts, on a page that simulates by itself

    def __init__(
        self,
        *algorithms: str | Algorithm | Reduced,
        workers: int = 8,
        hosts: int = 2,
        bytes: int | str = "4MiB",
        link: Link | None = None,
        run: Carry | None = None,
        hide: Sequence[str] = (),
    ) -> None:
        for given in algorithms:
            if not (isinstance(given, str) or callable(given) or hasattr(given, "schedule")):
                allowed = 'names, functions or results of allreduce: AllReduceStage("ring", "tree")'
                raise SpecError("algorithms", given, allowed)
        if not isinstance(link, Link | None):
            raise SpecError("link", link, "a link: AllReduceStage(link=Link(mbit=200))")
        self.hidden = hidden(hide, HIDEABLE)
        self.algorithms = algorithms or ("ring", "hierarchical")
        done = [a for a in self.algorithms if not isinstance(a, str) and not callable(a)]
        self.run, self.past = run, PAST if done else ""
        if done:
            workers, hosts, bytes, link = alike(done)
        setting = Setting.of(workers, hosts, parse_bytes(bytes), link)
        self._show(replace(setting, imposed=limits(link) if done else ""))
        clock, runnable = ("measured", False) if done else ("rounds", run is not None)
        super().__init__(settings=self.scene["settings"], runnable=runnable, clock=clock)
        self.runner: threading.Thread | None = None
        self._going: Any = None  # the run with real processes
        self._cancelled = False
        self.observe(self._set, "settings")
        self.observe(lambda _: self.changed(), ["at", "scene"])
        self.on_msg(self._on_message)

    def __repr__(self) -> str:
        s, labels = self.setting, ", ".join(one.label for one in self.staged)
        return f"AllReduceStage({labels}: {s.workers} workers, {s.hosts} hosts, {s.bytes} bytes)"

    def table(self) -> str:
        """The same as text: rounds, bytes, times and bus bandwidth, or what is wrong."""
        rows = [row for one in self.staged for row in one.rows(self.setting.bytes)]
        problems = [f"{one.label}: {one.problem}" for one in self.staged if one.problem]
        facts = [text.table([HEADS, *rows])] if rows else []
        return "\n".join([self.setting.words("simulated")["about"], *facts, *problems])

    def picture(self, round: int | None = None) -> str:
        """An SVG picture: the state after `round` rounds, and what moves next. Default: the present
        round, if it has been moved on the clock of rounds, or else half of the shortest.
        """
        about = self.setting.words("simulated")["about"]
        if round is None and self.clock == "rounds":
            round = int(self.at) or None
        return still_svg(self.staged, self.setting.bytes, about, round)

    def carry_out(self) -> None:
        """Carry the algorithms out in real processes, on a thread, and play their measured moments.

        A second call meanwhile does nothing; `cancel` ends it.
        """
        if self.run and not self.busy:
            self._going, self._cancelled = None, False
            self.status, self.busy = STARTING, True
            carry = partial(self._carry, self.run, self.setting)
            self.runner = threading.Thread(target=carry, name="lockstep-stage", daemon=True)
            self.runner.start()

    def cancel(self) -> None:
        """End the run with real processes, if one goes on."""
        self._cancelled = True
        if self._going:
            self._going.stop()

    def _watch(self, run: Any, what: str) -> None:
        self._going, self.status = run, f"{len(run.tasks)} processes carry out {what}"
        if self._cancelled:
            run.stop()

    def _carry(self, run: Carry, setting: Setting) -> None:
        size, where = setting.bytes, (setting.workers, setting.hosts)
        try:
            done = run(size, self.algorithms, *where, link=setting.link, watch=self._watch)
            if setting == self.setting:
                with self.hold_sync():  # one message
                    self._show(replace(setting, imposed=limits(done[0].link)), done)
                    self.clock, self.at, self.playing = "measured", 0.0, True
                    self.status = ""
            else:
                self.status = "That run had other settings than these. Run it again to see it."
        except Exception as error:  # there is nobody else on this thread to tell
            why, *_ = str(error).splitlines() or [type(error).__name__]
            self.status = STOPPED if self._cancelled else f"It did not run: {why}"
        finally:
            self._going = None
            self.busy = False

    def _show(self, setting: Setting, done: Sequence[Reduced | None] = ()) -> None:
        """Show all algorithms with a setting; `done`: as they have just been carried out with it.

        In the scene, `fixed` says why the setting cannot be changed; "" if it can.
        """
        pairs = zip(self.algorithms, done or (None,) * len(self.algorithms), strict=True)
        self.staged, self.setting = [stage(a, setting, d) for a, d in pairs], setting
        self.scene = {
            "panels": [one.panel(setting.bytes) for one in self.staged],
            "settings": asdict(setting),
            "words": {clock: setting.words(clock) for clock in CLOCKS[1:]},
            "palette": list(PALETTE),
            "hidden": list(self.hidden),
            "fixed": self.past,
        }

    def _set(self, change: dict[str, Any]) -> None:
        """Take settings from a slider or a cell; hosts are at most as many as workers."""
        wanted = {**self.scene["settings"], **change["new"], "imposed": ""}
        wanted["hosts"] = min(wanted["hosts"], wanted["workers"])
        if wanted != self.scene["settings"] and not self.past:
            self.status = ""
            self._show(Setting(**wanted))

    def _on_message(self, _: Any, content: dict[str, Any], __: Any) -> None:
        if content.get("stop"):
            self.cancel()
        elif content.get("run"):
            self.carry_out()
