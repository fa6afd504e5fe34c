"""The controls of a board: buttons, sliders and menus that follow the trace and give orders."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import anywidget
import ipywidgets as w
import traitlets
from ipywidgets.widgets.widget_string import HTMLStyle

from course_lib.record.reality import link_of
from course_lib.spec.fields import Link
from course_lib.widgets.board.view import Side
from course_lib.widgets.kit import element, page

EVERY = "all"
DELAYS = {
    "none": "every step takes as long",
    "lognormal:0.5": "the device's time differs from step to step, mostly by up to half",
    "exponential:20ms": "20 ms more in the mean: often less, sometimes much more",
    "one_in:20:200ms": "200 ms more in one step of 20, left to chance",
}
BUTTONS = {  # order -> label, icon, tooltip
    "pause": ("Pause", "pause", "Freeze the task (SIGSTOP): a machine that hangs"),
    "resume": ("Resume", "play", "Let a paused task go on (SIGCONT)"),
    "kill": ("Kill", "bolt", "Kill the task (SIGKILL): a machine that loses power"),
    "stop": ("Stop", "stop", "End everything, with all its processes"),
    "restart": ("Restart", "refresh", "Start all of it once more, from the beginning"),
    "partition": ("Cut off", "unlink", "Cut the host off from all others, until it is healed"),
    "heal": ("Heal", "link", "Join the host to the others again"),
}
IN_TURN = (("pause", "resume"), ("stop", "restart"), ("partition", "heal"))
"""Orders of which one is possible at a time: their buttons share a place."""
FASTEST = 4  # the link slider ends at 10 ** 4 Mbit/s, where a link without a limit stands, too
LOG_LINES = 12
Order = Callable[[], object]


class Controls(w.VBox):
    """All controls of a board: of a task, which is chosen with its run, and of the link of a host,
    if some runs have several. `submit` takes an order and returns at once. `acts`: the orders
    to the board itself, "save", "stop" and, where that is possible, "restart".

    Sliders and the menu of delays follow the trace. They keep what a learner sets until the trace
    shows another value, or another task or host is chosen.
    """

    def __init__(
        self, sides: list[Side], submit: Callable[[Order], None], acts: Mapping[str, Order]
    ) -> None:
        self.sides, self.submit, self.acts = sides, submit, acts
        labels = [side.label for side in sides]
        hosts = {host for side in self._linked() for host in side.spec.all_hosts}
        # shared, as each costs the page a model; the style of a slider does for a menu, too
        style, room = w.SliderStyle(description_width="initial"), w.Layout(width="222px")
        dropdown = partial(_dropdown, style=style)
        slider = {"continuous_update": False, "layout": room, "style": style}
        shared = {"layout": w.Layout(width="auto"), "style": w.ButtonStyle()}
        self.run = dropdown("run", [EVERY, *labels] if len(sides) > 1 else labels)
        self.run.layout.display = None if len(sides) > 1 else "none"
        self.task, self.host = dropdown("task", []), dropdown("host", sorted(hosts))
        self._offer_tasks()
        self.delays = dropdown("delays", [*DELAYS])
        self.delays.tooltip = "\n".join(f"{form}: {what}" for form, what in DELAYS.items())
        scale = {"value": 1.0, "min": 1, "max": 10, "step": 0.25, "readout_format": ""}
        self.factor = w.FloatSlider(description="times slower", **scale, **slider)
        scale = {"value": 1e3, "min": 0, "max": FASTEST, "step": 0.05, "readout_format": ".0f"}
        self.speed = w.FloatLogSlider(description="link, Mbit/s", **scale, **slider)
        self.followed = {self.factor: self._pace, self.delays: self._jitter, self.speed: self._mbit}
        self.traced: dict[w.Widget, Any] = {}  # control -> its value as the trace had it
        self.put: dict[w.Widget, Any] = {}  # control -> its value as it was set last
        self.ordered: dict[w.Widget, Any] = {}  # control -> a value that the trace lacks yet
        moves = {self.factor: "slow", self.speed: "link", self.delays: "jitter"}
        for control, order in moves.items():
            control.observe(partial(self._moved, order), "value")
        full = _button("1\u00d7", "", "Back to full speed", **shared).add_class("lk-back")
        full.on_click(lambda _: self.factor.set_trait("value", 1.0))
        unlimited = _button("\u221e", "", "No limit", **shared).add_class("lk-back")
        unlimited.on_click(lambda _: self.speed.set_trait("value", 10.0**FASTEST))
        faces = BUTTONS.items()
        self.buttons = {order: _button(*face, style=shared["style"]) for order, face in faces}
        for order, button in self.buttons.items():
            do = partial(submit, act) if (act := acts.get(order)) else partial(self._order, order)
            button.on_click(lambda _, do=do: do())
        self.bar = Bar().add_class("ls")
        self.bar.on_msg(lambda *_: submit(acts["save"]))
        tip = "The end of what the task has printed"
        self.reads = w.ToggleButton(description="Log", tooltip=tip, layout=shared["layout"])
        (self.printed,) = htmls(None)
        self.reads.observe(lambda _: self._show_log(), "value")
        self.run.observe(lambda _: self._offer_tasks(), "value")
        for chooser in (self.task, self.host):
            chooser.observe(lambda _: self._show(anew=True), "value")
        self._show(anew=True)
        room = w.Layout(width="92px", overflow="hidden")  # of both, so that nothing moves
        pause, stop, cut = (w.Box([self.buttons[o] for o in pair], layout=room) for pair in IN_TURN)
        orders = [pause, self.buttons["kill"], stop]
        tasks = [self.run, self.task, self.factor, full, self.delays, *orders]
        self.links = w.HBox([self.host, self.speed, unlimited, cut])
        self.links.layout.display = None if hosts else "none"
        super().__init__([w.HBox([*tasks, self.reads, self.bar]), self.links])
        self.add_class("lk-controls")

    def refresh(self) -> None:
        """Show how tasks and links are now, and enable what can be done with them."""
        self._show()
        live = [side for side in self._having() if side.active]
        paused = any(side.digest.life.paused(self.task.value) for side in live)
        any_active = any(side.active for side in self.sides)
        able = dict.fromkeys(BUTTONS, any_active) | dict.fromkeys(("pause", "kill"), bool(live))
        able |= {"resume": paused, "restart": not any_active and "restart" in self.acts}
        for order, button in self.buttons.items():
            button.disabled = not able[order]
        cut = any(side.cut(self.host.value) for side in self._having(host=True))
        turns = paused, able["restart"], cut
        for pair, second in zip(IN_TURN, turns, strict=True):
            for order, shown in zip(pair, (not second, second), strict=True):
                self.buttons[order].layout.display = None if shown else "none"
        self.factor.disabled = self.delays.disabled = not live
        self.speed.disabled = not any_active
        self._show_log()

    def _show(self, anew: bool = False) -> None:
        """Put controls where the trace is, which is no order."""
        for control, present in self.followed.items():
            value, ordered = present(), self.ordered.get(control)
            if not (ordered is None or anew or _alike(ordered, value)):
                continue
            self.ordered.pop(control, None)
            if anew or value != self.traced.get(control):
                self.traced[control] = self.put[control] = value
                if control is self.delays and value not in control.options:
                    self.put[control] = control.options[0]  # which it turns to for a moment
                    control.options = [*control.options, value]
                    self.put[control] = value
                elif control is self.factor:
                    control.max = max(control.max, value)
                control.value = value

    def _moved(self, order: str, change: dict[str, Any]) -> None:
        if change["new"] != self.put.get(change["owner"]):
            self.put[change["owner"]] = self.ordered[change["owner"]] = change["new"]
            self._order(order)

    def _show_log(self) -> None:
        """Show the end of what the chosen task has printed, if that is asked for."""
        texts = []
        for side in self._having() if self.reads.value else ():
            log = getattr(side.run, "log", None) or side.run.log_tail
            text = log(self.task.value, LOG_LINES) or "It has printed nothing."
            texts.append(element("p", f"{self.task.value} of {side.label}"))
            texts.append(element("pre", text, tabindex=0))
        self.printed.value = element("div", texts, class_="lk-log") if texts else ""

    def _chosen(self) -> list[Side]:
        return [side for side in self.sides if self.run.value in (EVERY, side.label)]

    def _linked(self) -> list[Side]:
        """The runs with links between hosts that can be changed."""
        return [s for s in self.sides if len(s.spec.all_hosts) > 1 and hasattr(s.run, "link")]

    def _having(self, host: bool = False) -> list[Side]:
        """The runs that have the chosen host, or those chosen that have the chosen task."""
        if host:
            return [side for side in self._linked() if self.host.value in side.spec.all_hosts]
        return [side for side in self._chosen() if self.task.value in side.spec.tasks]

    def _offer_tasks(self) -> None:
        """The tasks of the chosen runs; at first a straggler is chosen, or else the last worker."""
        tasks = list(dict.fromkeys(task for side in self._chosen() for task in side.spec.tasks))
        kept = self.task.value
        self.task.options = tasks
        stragglers = [task for side in self.sides for task in side.spec.slow if task in tasks]
        workers = [task for task in tasks if task.startswith("worker:")]
        self.task.value = kept if kept in tasks else [*workers, *stragglers][-1]

    # --- as the trace has it ---

    def _pace(self) -> float:
        return max((side.digest.factor(self.task.value) for side in self._having()), default=1.0)

    def _jitter(self) -> str:
        forms = (side.digest.jitter(self.task.value) for side in self._having())
        return next(filter(None, forms), "none")

    def _mbit(self) -> float:
        top = 10.0**FASTEST
        speeds = (self._link_of(side).mbit or top for side in self._having(host=True))
        return min(max([1.0, *speeds]), top)

    def _link_of(self, side: Side) -> Link:
        linked = side.digest.life.last(f"host:{self.host.value}", "linked")
        return link_of(linked.cause) if linked else side.spec.link_of(self.host.value)

    # --- orders ---

    def _order(self, what: str) -> None:
        """Have all active runs do `what` to the chosen task or host."""
        of_host = what in ("link", "partition", "heal")
        chosen = self.host.value if of_host else self.task.value
        for side in self._having(of_host):
            values: list[Any] = [chosen]
            if what == "slow":
                values.append(self.factor.value)
            elif what == "jitter":
                values.append(None if self.delays.value == "none" else self.delays.value)
            elif what == "link":
                values.append(self._link_of(side).model_copy(update={"mbit": self.speed.value}))
            if side.active:
                self.submit(partial(getattr(side.run, what), *values))

    def forget(self) -> None:
        """Have all controls follow the trace: it will never show what was refused."""
        self.traced.clear()
        self.ordered.clear()


class Bar(anywidget.AnyWidget):
    """The buttons of the page itself, which saves the board and enlarges it; and its voice, which
    tells what has changed to those who do not see it.
    """

    _esm = page.asset("kit/projector.js", "kit/sliders.js", "board/bar.js")
    headline = traitlets.Unicode("").tag(sync=True)
    message = traitlets.Unicode("").tag(sync=True)


def _alike(one: Any, other: Any) -> bool:
    """Compare two values of a control, numbers to four digits."""
    return one == other if isinstance(one, str) else f"{one:.4g}" == f"{other:.4g}"


def _dropdown(label: str, options: Sequence[Any], style: w.SliderStyle) -> w.Dropdown:
    room = w.Layout(width="max-content", max_width="260px")
    return w.Dropdown(options=options, description=label, layout=room, style=style)


def _button(text: str, icon: str, tooltip: str, **parts: Any) -> w.Button:
    parts = {"layout": w.Layout(width="auto"), **parts}
    return w.Button(description=text, icon=icon, tooltip=tooltip, **parts)


def htmls(*heights: str | None) -> list[w.HTML]:
    """An HTML widget for each height, which is None where the content decides."""
    style = HTMLStyle()
    rooms = {tall: w.Layout(height=tall, overflow=tall and "auto") for tall in heights}
    return [w.HTML(layout=rooms[tall], style=style).add_class("ls") for tall in heights]
