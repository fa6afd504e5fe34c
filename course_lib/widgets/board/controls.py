"""The controls of a board, which act on running clusters. Each hands an order to the board, whose
thread carries it out.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anywidget
import ipywidgets as w

from course_lib.errors import LockstepError, SpecError
from course_lib.record.reality import link_of
from course_lib.spec.fields import Link
from course_lib.widgets.board.side import Side
from course_lib.widgets.kit import page

EVERY = "all"
DELAYS = {
    "none": "every step takes as long",
    "lognormal:0.5": "the device's time differs from step to step, mostly by up to half",
    "exponential:20ms": "20 ms more in the mean: often less, sometimes much more",
    "one_in:20:200ms": "200 ms more in one step of 20, left to chance",
}
FASTEST = 4  # the link slider ends at 10 ** 4 Mbit/s, where a link without a limit stands, too
Order = Callable[[], object]
Submit = Callable[[Order], None]


class Controls(w.VBox):
    """All controls of a board: those of tasks, and those of links if some runs have several hosts.

    `submit` takes an order and returns at once.
    """

    def __init__(self, sides: list[Side], submit: Submit, stop: Callable[[], None]) -> None:
        several = [s for s in sides if len(s.spec.all_hosts) > 1 and hasattr(s.run, "link")]
        self.tasks = TaskControls(sides, submit, stop)
        self.links = LinkControls(several, submit)
        super().__init__([self.tasks, self.links])
        self.add_class("lk-controls")

    def refresh(self) -> None:
        """Show how tasks and links are now, and enable what can be done with them."""
        self.tasks.refresh()
        self.links.refresh()


class Switch(anywidget.AnyWidget):
    """The projector switch."""

    _esm = page.asset("kit/projector.js", "board/switch.js")

    def __init__(self) -> None:
        super().__init__()
        self.add_class("ls")


class _Following(w.HBox):
    """Controls of a task or host that is chosen in a dropdown, with a slider that follows the
    trace. The slider shows the present value for the chosen one, and orders the value that a
    learner sets. Until the trace shows that value, the slider shows the ordered one.

    A subclass has these methods. `having()`: the runs that have the chosen task or host.
    `values(side, chosen)`: its value in the spec of a run, then all values that it was set to
    since. `set(side, chosen, value)`: have the run set it.
    """

    def __init__(self, chooser: w.Dropdown, slider: w.Widget, submit: Submit) -> None:
        super().__init__(layout=w.Layout(flex_flow="row wrap", align_items="center"))
        self.chooser, self.slider, self.submit = chooser, slider, submit
        # orders that the trace does not show yet: the value, and how many values it had shown
        # before
        self._ordered: dict[tuple[str, Any], tuple[float, int]] = {}
        self._shown = float(slider.value)  # where the slider was put by whoever moved it last
        self.show()
        chooser.observe(lambda _: self.show(), "value")
        slider.observe(lambda change: self._moved(change["new"]), "value")

    def show(self) -> None:
        """Put the slider where the trace is; that is not an order."""
        present = max((self._present(side) for side in self.having()), default=self._shown)
        if present != self._shown:
            self._shown = present
            if isinstance(self.slider, w.FloatSlider):
                self.slider.max = max(self.slider.max, present)
            self.slider.value = present

    def button(self, text: str, icon: str, tooltip: str, what: str) -> w.Button:
        """A button that has all active runs do `what` to the chosen one."""
        return _button(text, icon, tooltip, lambda: self._each(what))

    def _each(self, what: str, *values: Any) -> None:
        for side in self.having():
            if side.active:
                self.submit(partial(side.order, what, self.chooser.value, *values))

    def _present(self, side: Side) -> float:
        key, values = (side.label, self.chooser.value), self.values(side, self.chooser.value)
        if key in self._ordered:
            ordered, before = self._ordered[key]
            if ordered not in values[before:]:
                return ordered
            self._ordered.pop(key, None)
        return values[-1]

    def _moved(self, value: float) -> None:
        if value == self._shown:
            return
        self._shown, chosen = value, self.chooser.value
        for side in self.having():
            if side.active and self._present(side) != value:
                self._ordered[side.label, chosen] = value, len(self.values(side, chosen))
                self.submit(partial(self._carry_out, side, chosen, value))

    def _carry_out(self, side: Side, chosen: Any, value: float) -> None:
        try:
            self.set(side, chosen, value)
        except LockstepError:  # the trace will never show it
            self._ordered.pop((side.label, chosen), None)
            raise


class TaskControls(_Following):
    """Choose a run and one of its tasks; slow it, delay its steps, pause it, resume it, kill it;
    stop everything.
    """

    def __init__(self, sides: list[Side], submit: Submit, stop: Callable[[], None]) -> None:
        self.sides = sides
        labels = [side.label for side in sides]
        self.run = _dropdown("run", [EVERY, *labels] if len(sides) > 1 else labels)
        self.run.layout.display = None if len(sides) > 1 else "none"
        self.task = _dropdown("task", [])
        self._offer_tasks()
        self.delays, self._delays_shown = _dropdown("delays", [*DELAYS]), ("", "none")
        self.delays.tooltip = "\n".join(f"{form}: {what}" for form, what in DELAYS.items())
        factor = {"value": 1.0, "min": 1, "max": 10, "step": 0.25, "readout_format": ".2f"}
        self.factor = _slider(w.FloatSlider, "times slower", **factor)
        super().__init__(self.task, self.factor, submit)
        frozen = "Freeze the task (SIGSTOP): a machine that hangs"
        self.pause = self.button("Pause", "pause", frozen, "pause")
        goes_on = "Let a paused task go on (SIGCONT)"
        self.resume = self.button("Resume", "play", goes_on, "resume")
        gone = "Kill the task (SIGKILL): a machine that loses power"
        self.kill = self.button("Kill", "bolt", gone, "kill")
        self.stop = _button("Stop", "stop", "End everything, with all its processes", stop)
        self.run.observe(lambda _: self._offer_tasks(), "value")
        varied = "Let the steps of the task vary as chosen, or no longer"
        self.delay = _button("Delay", "random", varied, self._delay)
        self.delaying = (self.delays, self.delay)
        buttons = (self.delay, self.pause, self.resume, self.kill, self.stop)
        self.children = (self.run, self.task, self.factor, self.delays, *buttons)

    def show(self) -> None:
        """Let slider and delays follow the trace; what is chosen but not ordered yet stays."""
        super().show()
        task = self.task.value
        forms = [side.digest.jitter(task) for side in self.having()]
        present = next(filter(None, forms), "none")
        if (task, present) != self._delays_shown:
            self._delays_shown = task, present
            self.delays.options = list(dict.fromkeys([*DELAYS, present]))
            self.delays.value = present

    def having(self) -> list[Side]:
        return [side for side in self._named() if self.task.value in side.spec.tasks]

    def values(self, side: Side, task: str) -> list[float]:
        paces = side.digest.life.of(task, "slowed", "full speed")
        return [1.0, *(span.cause.factor for span in paces)]

    def set(self, side: Side, task: str, factor: float) -> None:
        side.order("slow", side.spec.check_slow(task), factor)

    def _delay(self) -> None:
        jitter = None if self.delays.value == "none" else self.delays.value
        self._each("jitter", jitter)

    def refresh(self) -> None:
        """Show the factor of the task; enable what can be done in the present state of the runs."""
        live, task = [side for side in self.having() if side.active], self.task.value
        self.show()
        self.pause.disabled = self.kill.disabled = not live
        self.factor.disabled = not any(_can_be_slowed(side, task) for side in live)
        self.delay.disabled = self.factor.disabled
        self.resume.disabled = not any(side.digest.life.paused(task) for side in live)
        self.stop.disabled = not any(side.active for side in self.sides)

    def _named(self) -> list[Side]:
        return [side for side in self.sides if self.run.value in (EVERY, side.label)]

    def _offer_tasks(self) -> None:
        """The tasks of the chosen runs; at first a straggler is chosen, or else the last worker."""
        tasks = list(dict.fromkeys(task for side in self._named() for task in side.spec.tasks))
        kept = self.task.value
        self.task.options = tasks
        stragglers = [task for side in self.sides for task in side.spec.slow if task in tasks]
        workers = [task for task in tasks if task.startswith("worker:")]
        self.task.value = kept if kept in tasks else [*workers, *stragglers][-1]


class LinkControls(_Following):
    """The links of hosts, for runs that have several: how fast one is, and whether it is cut."""

    def __init__(self, sides: list[Side], submit: Submit) -> None:
        self.sides = sides
        hosts = sorted({host for side in sides for host in side.spec.all_hosts})
        self.host = _dropdown("host", hosts)
        speed = {"value": 1000.0, "min": 0, "max": FASTEST, "step": 0.05, "readout_format": ".0f"}
        self.speed = _slider(w.FloatLogSlider, "link, Mbit/s", **speed)
        super().__init__(self.host, self.speed, submit)
        apart = "Cut the host off from all others, until it is healed"
        self.cut = self.button("Cut off", "unlink", apart, "partition")
        self.heal = self.button("Heal", "link", "Join the host to the others again", "heal")
        self.children = (self.host, self.speed, self.cut, self.heal)
        self.layout.display = None if sides else "none"

    def having(self) -> list[Side]:
        return [side for side in self.sides if self.host.value in side.spec.all_hosts]

    def values(self, side: Side, host: int) -> list[float]:
        top = 10.0**FASTEST
        return [min(max(link.mbit or top, 1.0), top) for link in _links(side, host)]

    def set(self, side: Side, host: int, mbit: float) -> None:
        now = _links(side, host)[-1]
        side.order("link", host, Link(mbit=mbit, delay_ms=now.delay_ms, loss=now.loss))

    def refresh(self) -> None:
        """Show the link as it is now; disable the controls once all runs are over."""
        self.show()
        live = any(side.active for side in self.sides)
        self.speed.disabled = self.cut.disabled = self.heal.disabled = not live


def _links(side: Side, host: int) -> list[Link]:
    """The link of a host in the spec of a run, then all that it was set to since."""
    linked = side.digest.life.of(f"host:{host}", "linked")
    return [side.spec.link_of(host), *(link_of(span.cause) for span in linked)]


def _can_be_slowed(side: Side, task: str) -> bool:
    try:
        return bool(side.spec.check_slow(task))
    except SpecError:
        return False


def _dropdown(label: str, options: Sequence[Any]) -> w.Dropdown:
    room = w.Layout(width="max-content", max_width="260px")
    style = {"description_width": "initial"}
    return w.Dropdown(options=options, description=label, layout=room, style=style)


def _slider(kind: type[w.Widget], label: str, **scale: Any) -> w.Widget:
    look = {"layout": w.Layout(width="300px"), "style": {"description_width": "initial"}}
    return kind(description=label, continuous_update=False, **look, **scale)


def _button(text: str, icon: str, tooltip: str, do: Callable[[], None]) -> w.Button:
    button = w.Button(description=text, icon=icon, tooltip=tooltip, layout=w.Layout(width="auto"))
    button.on_click(lambda _: do())
    return button
