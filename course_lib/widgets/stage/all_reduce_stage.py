"""AllReduceStage: all-reduce algorithms side by side on one clock, every transfer as it moved, and
whose gradients each chunk holds.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anywidget
import traitlets as t

from course_lib.collectives import AlphaBeta, Topology
from course_lib.collectives.algorithms import Algorithm
from course_lib.errors import SpecError
from course_lib.spec import Link, parse_bytes
from course_lib.widgets.kit import page
from course_lib.widgets.kit.palette import WORKER
from course_lib.widgets.stage.act import Act, Setting, alike, scene, table
from course_lib.widgets.stage.scene import Reduced
from course_lib.widgets.stage.still import still_svg

# Workers in order get cool colours in the first half and warm ones in the second, so that two hosts
# can be told apart.
PALETTE = (WORKER[0], WORKER[5], WORKER[2], "ink", WORKER[1], WORKER[4], WORKER[6], WORKER[3])
SCRIPTS = ("words", "state", "layout", "draw", "sliders", "transport", "all_reduce_stage")
PAST = "These were carried out as they are: settings cannot be changed."

Carry = Callable[..., Sequence[Reduced]]
"""What carries algorithms out: (bytes, algorithms, workers, hosts, link=) -> a result for each, as
`course_lib.reduction.call.compare`.
"""


class AllReduceStage(anywidget.AnyWidget):
    """Algorithms side by side: play, pause, step a round, scrub. A cell's last value shows it.

    `algorithms`: names, functions `workers -> Schedule` of your own, or all-reduces that
    `course_lib.allreduce` has carried out, whose measured moments are then played. A function that
    is not right plays up to the transfer that breaks it, and says why. `labels`: what to call them,
    if not by their names. `bytes`: what each worker brings. `link`: the link of each host, in the
    simulation and in a real run. Sliders change workers, hosts, bytes and links, and simulate anew.
    `run`: what carries algorithms out when the button is pressed.

    `clock` ("rounds", "simulated" or "measured"), `at` (a round, or seconds), `playing` and `speed`
    can be set from a cell, too. Raises SpecError for impossible settings.
    """

    _esm = page.asset(*(f"stage/{part}.js" for part in SCRIPTS))
    _css = page.asset("kit/theme.css", "stage/all_reduce_stage.css")

    scene = t.Dict().tag(sync=True)
    settings = t.Dict().tag(sync=True)  # the fields of a Setting
    clock = t.Enum(("rounds", "simulated", "measured"), "rounds").tag(sync=True)
    at = t.Float(0.0).tag(sync=True)
    playing = t.Bool(False).tag(sync=True)
    speed = t.Float(1.0).tag(sync=True)
    status = t.Unicode("").tag(sync=True)
    busy = t.Bool(False).tag(sync=True)
    runnable = t.Bool(False).tag(sync=True)

    def __init__(
        self,
        *algorithms: str | Algorithm | Reduced,
        workers: int = 8,
        hosts: int = 2,
        bytes: int | str = "4MiB",
        topology: Topology = Topology(),  # noqa: B008  # frozen
        link: Link | None = None,
        labels: Sequence[str] = (),
        run: Carry | None = None,
    ) -> None:
        self.algorithms = algorithms or ("ring", "hierarchical")
        self.labels = tuple(labels) or ("",) * len(self.algorithms)
        if len(self.labels) != len(self.algorithms):
            raise SpecError("labels", labels, f"{len(self.algorithms)}, one for each algorithm")
        done = [a for a in self.algorithms if not isinstance(a, str) and not callable(a)]
        if done:
            workers, hosts, bytes, link = alike(done)
        inter = topology.inter
        if link:  # what it leaves open stays as the topology has it
            inter = AlphaBeta(0.0, 1 / link.bytes_per_second or inter.beta, link.delay)
        self.run, self.past = run, PAST if done else ""
        self.base = replace(topology, hosts=None, inter=inter)
        inside, between = (
            1 / path.beta if path.beta else math.inf for path in (topology.intra, inter)
        )
        self.setting = Setting(
            workers, hosts, parse_bytes(bytes), inside, between, inter.delay, bool(done and link)
        )
        self.acts = self._acts(self.setting)
        first = scene(self.acts, self.setting, PALETTE, self.past)
        super().__init__(
            scene=first,
            settings=first["settings"],
            runnable=run is not None and not done,
            clock="measured" if done else "rounds",
        )
        self.runner: threading.Thread | None = None
        self.observe(self._set, "settings")
        self.on_msg(self._told)

    def __repr__(self) -> str:
        s, labels = self.setting, ", ".join(act.label for act in self.acts)
        return f"AllReduceStage({labels}: {s.workers} workers, {s.hosts} hosts, {s.bytes} bytes)"

    def table(self) -> str:
        """The same as text: rounds, bytes, times and bus bandwidth, or what is wrong."""
        return table(self.acts, self.setting)

    def to_html(self, path: Path | str, title: str = "") -> Path:
        """Write a page that plays without a kernel or a network; return its path."""
        title = title or f"All-reduce: {' beside '.join(act.label for act in self.acts)}"
        return page.save(path, page.html(self, title, self.table()))

    def still(self, path: Path | str, round: int | None = None) -> Path:
        """Write an SVG picture for slides: the state after `round` rounds (default: half of the
        shortest), and what moves next.
        """
        return page.save(path, still_svg(self.acts, self.setting, PALETTE, round))

    def carry_out(self) -> None:
        """Carry the algorithms out in real processes, on a thread, and play their measured moments.

        A second call meanwhile does nothing.
        """
        if self.run and not self.busy:
            self.busy, self.status = True, ""
            self.runner = threading.Thread(
                target=self._carry,
                args=(self.run, self.setting),
                name="lockstep-stage",
                daemon=True,
            )
            self.runner.start()

    def _carry(self, run: Carry, setting: Setting) -> None:
        try:
            done = run(
                setting.bytes, self.algorithms, setting.workers, setting.hosts, link=setting.link
            )
            if setting == self.setting:
                setting = replace(setting, held=any(d.link for d in done))
                acts = self._acts(setting, done)
                with self.hold_sync():  # one message
                    self._show(setting, acts)
                    self.clock, self.at, self.playing = "measured", 0.0, True
            else:
                self.status = "That run had other settings than these. Run it again to see it."
        except Exception as error:  # there is nobody else on this thread to tell
            self.status = f"It did not run: {error}"
        finally:
            self.busy = False

    def _acts(self, setting: Setting, done: Sequence[Reduced | None] = ()) -> list[Act]:
        done = done or (None,) * len(self.algorithms)
        return [
            Act.of(a, label, setting, self.base, d)
            for a, label, d in zip(self.algorithms, self.labels, done, strict=True)
        ]

    def _show(self, setting: Setting, acts: list[Act]) -> None:
        self.setting, self.acts = setting, acts
        self.scene = scene(acts, setting, PALETTE, self.past)

    def _set(self, change: dict[str, Any]) -> None:
        """Take settings from a slider or a cell; hosts are at most as many as workers."""
        wanted = {**self.scene["settings"], **change["new"], "held": False}
        wanted["hosts"] = min(wanted["hosts"], wanted["workers"])
        if wanted != self.scene["settings"] and not self.past:
            self.status = ""
            setting = Setting(**wanted)
            self._show(setting, self._acts(setting))

    def _told(self, _: Any, content: dict[str, Any], __: Any) -> None:
        if content.get("run"):
            self.carry_out()
