"""The controls of a board. They act on running clusters: each only hands over an order, which
another thread carries out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ipywidgets as w

from course_lib.errors import LockstepError, SpecError
from course_lib.spec import Link
from course_lib.widgets.board.side import Side

EVERY = "all"
Order = Callable[[], object]


class Controls(w.VBox):
    """Choose a run and a task of it; slow it, pause it, resume it, kill it; stop everything.

    `submit` takes an order and returns at once.
    """

    def __init__(
        self, sides: list[Side], submit: Callable[[Order], None], stop: Callable[[], None]
    ) -> None:
        self.sides, self.submit = sides, submit
        # Orders under way: the factor, and how many the trace had shown before.
        self._ordered: dict[tuple[str, str], tuple[float, int]] = {}
        self._shown = 1.0  # where the slider was put by whoever moved it last
        self.run = w.Dropdown(
            options=[EVERY, *(side.label for side in sides)]
            if len(sides) > 1
            else [sides[0].label],
            layout=_wide(),
        )
        self.run.description, self.run.style.description_width = "run", "initial"
        self.task = w.Dropdown(
            description="task", layout=_wide(), style={"description_width": "initial"}
        )
        self.factor = w.FloatSlider(
            value=1.0,
            min=1,
            max=10,
            step=0.5,
            description="times slower",
            readout_format=".1f",
            continuous_update=False,
            style={"description_width": "initial"},
            layout=w.Layout(width="300px"),
        )
        self.pause = _button(
            "Pause",
            "pause",
            "Freeze the task (SIGSTOP): a machine that hangs",
            lambda: self._each("pause"),
        )
        self.resume = _button(
            "Resume", "play", "Let a paused task go on (SIGCONT)", lambda: self._each("resume")
        )
        self.kill = _button(
            "Kill",
            "bolt",
            "Kill the task (SIGKILL): a machine that loses power",
            lambda: self._each("kill"),
        )
        self.stop = _button("Stop", "stop", "End everything, with all its processes", stop)
        if len(sides) == 1:
            self.run.layout.display = "none"
        self._offer_tasks()
        self.run.observe(lambda _: self._offer_tasks(), "value")
        self.task.observe(lambda _: self._show_factor(), "value")
        self.factor.observe(self._slow, "value")
        self.links = Links(
            [side for side in sides if len(side.spec.all_hosts) > 1 and hasattr(side.run, "link")],
            submit,
        )
        row = w.Layout(flex_flow="row wrap", align_items="center")
        super().__init__(
            [
                w.HBox(
                    [
                        self.run,
                        self.task,
                        self.factor,
                        self.pause,
                        self.resume,
                        self.kill,
                        self.stop,
                    ],
                    layout=row,
                ),
                self.links,
            ]
        )
        self.add_class("lk-controls")

    @property
    def chosen(self) -> list[Side]:
        """The runs that are chosen, of those that have the task that is chosen."""
        named = [side for side in self.sides if self.run.value in (EVERY, side.label)]
        return [side for side in named if self.task.value in side.spec.tasks]

    def refresh(self) -> None:
        """Offer what can be done in the present state of the runs; disable all once they are over."""
        live = [side for side in self.chosen if side.active]
        self._show_factor()
        states = {
            side.digest.states[self.task.value].state
            for side in live
            if self.task.value in side.digest.states
        }
        self.pause.disabled = self.kill.disabled = not live
        self.factor.disabled = not any(_can_be_slowed(side, self.task.value) for side in live)
        self.resume.disabled = "paused" not in states
        self.stop.disabled = not any(side.active for side in self.sides)
        self.links.refresh()

    def _offer_tasks(self) -> None:
        tasks = {
            task: None
            for side in self.sides
            if self.run.value in (EVERY, side.label)
            for task in side.spec.tasks
        }
        kept = self.task.value
        self.task.options = list(tasks)
        stragglers = [task for side in self.sides for task in side.spec.slow if task in tasks]
        workers = [task for task in tasks if task.startswith("worker:")]
        self.task.value = kept if kept in tasks else [*workers, *stragglers][-1]
        self._show_factor()

    def _show_factor(self) -> None:
        """Let the slider stand where the chosen task is; that is not an order."""
        factor = max((self._factor(side) for side in self.chosen), default=self._shown)
        if factor != self._shown:
            self._shown = factor
            self.factor.max = max(self.factor.max, factor)
            self.factor.value = factor

    def _factor(self, side: Side) -> float:
        """How many times slower the chosen task of a run is: as was ordered here, until the trace
        shows it, then as the trace says.
        """
        task = self.task.value
        factor, before = self._ordered.get((side.label, task), (1.0, 0))
        if (side.label, task) in self._ordered and factor not in side.digest.slowed[task][before:]:
            return factor
        self._ordered.pop((side.label, task), None)
        return side.digest.factors.get(task, 1.0)

    def _slow(self, change: dict[str, Any]) -> None:
        task, factor = self.task.value, change["new"]
        if factor == self._shown:
            return
        self._shown = factor
        for side in self.chosen:
            if self._factor(side) != factor and side.active and _can_be_slowed(side, task):
                self._ordered[side.label, task] = factor, len(side.digest.slowed[task])
                self.submit(partial(self._order_slow, side, task, factor))

    def _order_slow(self, side: Side, task: str, factor: float) -> None:
        try:
            side.order("slow", task, factor)
        except LockstepError:  # the trace will never show it
            self._ordered.pop((side.label, task), None)
            raise

    def _each(self, what: str) -> None:
        task = self.task.value
        for side in self.chosen:
            if side.active:
                self.submit(partial(side.order, what, task))


class Links(w.HBox):
    """The links between hosts, for runs that have several: how fast one is, and whether it is cut."""

    def __init__(self, sides: list[Side], submit: Callable[[Order], None]) -> None:
        self.sides, self.submit = sides, submit
        hosts = sorted({host for side in sides for host in side.spec.all_hosts})
        mbit = next(
            (
                link.mbit
                for side in sides
                for link in [side.spec.link_of(host) for host in hosts[:1]]
                if link.mbit
            ),
            1000.0,
        )
        self.host = w.Dropdown(
            options=hosts,
            description="host",
            layout=w.Layout(width="max-content"),
            style={"description_width": "initial"},
        )
        self.speed = w.FloatLogSlider(
            value=mbit,
            min=0,
            max=4,
            step=0.05,
            description="link, Mbit/s",
            readout_format=".0f",
            continuous_update=False,
            style={"description_width": "initial"},
            layout=w.Layout(width="300px"),
        )
        self.cut = _button(
            "Cut off",
            "unlink",
            "Cut the host off from all others, until it is healed",
            lambda: self._each("partition"),
        )
        self.heal = _button(
            "Heal", "link", "Join the host to the others again", lambda: self._each("heal")
        )
        self.speed.observe(self._shape, "value")
        super().__init__(
            [self.host, self.speed, self.cut, self.heal],
            layout=w.Layout(flex_flow="row wrap", align_items="center"),
        )
        self.layout.display = None if sides else "none"

    def refresh(self) -> None:
        """Disable what comes too late."""
        live = any(side.active for side in self.sides)
        self.speed.disabled = self.cut.disabled = self.heal.disabled = not live

    def _live(self) -> list[Side]:
        return [
            side for side in self.sides if side.active and self.host.value in side.spec.all_hosts
        ]

    def _shape(self, change: dict[str, Any]) -> None:
        host = self.host.value
        for side in self._live():
            link = Link(mbit=change["new"], delay_ms=side.spec.link_of(host).delay_ms)
            self.submit(partial(side.order, "link", host, link))

    def _each(self, what: str) -> None:
        host = self.host.value
        for side in self._live():
            self.submit(partial(side.order, what, host))


def _wide() -> w.Layout:
    return w.Layout(width="max-content", max_width="260px")


def _can_be_slowed(side: Side, task: str) -> bool:
    try:
        return bool(side.spec.check_slow(task))
    except SpecError:
        return False


def _button(text: str, icon: str, tooltip: str, do: Callable[[], None]) -> w.Button:
    button = w.Button(description=text, icon=icon, tooltip=tooltip, layout=w.Layout(width="auto"))
    button.on_click(lambda _: do())
    return button
