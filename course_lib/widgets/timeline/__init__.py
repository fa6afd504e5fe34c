"""Timeline: the Gantt chart of any trace. It shows who did what when, what each wait was for, and
who was slowed, paused or killed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import anywidget
import traitlets

from course_lib import text
from course_lib.collectives import Simulation
from course_lib.errors import SpecError
from course_lib.record import export, measures
from course_lib.record.events import ACTIVE, Lifecycle, Message, Phase, task_key
from course_lib.record.life import Life, planned
from course_lib.record.reality import SIMULATED, reality
from course_lib.record.trace import Trace
from course_lib.record.waits import waits, with_waits
from course_lib.spec.run_spec import RunSpec
from course_lib.widgets.kit import badge, page
from course_lib.widgets.kit.widget import Pictured, takes
from course_lib.widgets.timeline.scene import packed
from course_lib.widgets.timeline.still import lanes_svg, messages_svg


class Traced(Protocol):
    """An object with a trace: a run, an entrant of a race, an all-reduce."""

    @property
    def trace(self) -> Trace: ...


Traceable = Trace | Traced | Simulation | Path | str


class TimelineSource(NamedTuple):
    """What a timeline shows: a trace, what ran (`title`), how real it is (`reality`, "" if that is
    not known) and `why`, and what its spec `imposed` on tasks from the start.
    """

    trace: Trace
    title: str
    reality: str
    why: str
    imposed: Sequence[Lifecycle] = ()


class Timeline(Pictured, anywidget.AnyWidget):
    """The timeline of a run, a run's directory, a file that `Trace.save` wrote, a simulation with
    its trace, or a `Trace`.

    It shows what has happened by now; `refresh()` reads on. `table()` gives the same facts as text,
    `to_html(path)` a page that needs no kernel and no network, `still(path)` a picture,
    `export(path)` a file for Perfetto. Raises `SpecError` for what has no trace.
    """

    _esm = page.asset(
        "kit/make.js",
        "kit/projector.js",
        *(f"timeline/{part}.js" for part in ("data", "draw", "input", "timeline")),
    )
    _css = page.asset("kit/theme.css", "timeline/timeline.css")
    scene = traitlets.Dict().tag(sync=True)
    data = traitlets.Bytes().tag(sync=True)
    live = traitlets.Bool().tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)

    @takes("what has a trace, such as a run or its directory: Timeline(run)", lambda given: True)
    def __init__(self, given: Traceable) -> None:
        self.given = given
        super().__init__()
        self.refresh()
        self.on_msg(self._asked)

    def refresh(self) -> Timeline:
        """Show what has happened since; returns the timeline itself."""
        self.source = source(self.given)
        described, data = packed(self.source.trace, self.source.imposed)
        sign = badge(self.source.reality, self.source.why)
        described |= {"title": self.source.title, "badge": sign}
        live = getattr(self.given, "state", "finished") in ACTIVE
        with self.hold_sync():  # one message: the columns belong to the description
            self.scene, self.data, self.live = described, data, live
        self.changed()
        return self

    def export(self, path: Path | str) -> Path:
        """Write the trace in Chrome's format. Open the file at ui.perfetto.dev yourself: nothing is
        sent anywhere from here.
        """
        export.save_chrome(self.source.trace, Path(path))
        return Path(path)

    def to_html(self, path: Path | str) -> Path:
        """Write a page with the same timeline, zoom and all, without a kernel or a network."""
        return page.save(path, page.html(self, self.source.title or "Timeline", self.table()))

    def picture(self, first: int | None = None, steps: int = 8, title: str = "") -> str:
        """An SVG of `steps` steps from step `first` on (default: from the middle); of a trace
        without phases, of its messages. `title`: default is what ran.
        """
        trace = self.source.trace
        title = " · ".join(filter(None, (title or self.source.title, self.source.reality)))
        numbers = sorted({p.step for p in trace.all(Phase)})
        if not numbers:
            return messages_svg(trace, title)
        begin = numbers[max(0, (len(numbers) - steps) // 2)] if first is None else first
        return lanes_svg(trace, title, begin, steps)

    def still(
        self, path: Path | str, first: int | None = None, steps: int = 8, title: str = ""
    ) -> Path:
        """Write the same `picture`, and return its path."""
        return page.save(path, self.picture(first, steps, title))

    def table(self) -> str:
        """Tell as text the time of each task by phase, and for whom it waited; the messages, if
        they were recorded; the faults; and the errors of the nodes' clocks.
        """
        trace = self.source.trace
        parts = [measures.table(trace)] if trace.all(Phase) else []
        parts += [self._waits(), self._messages(), self._faults(), self._clocks()]
        return "\n\n".join(filter(None, parts))

    def _waits(self) -> str:
        waited: dict[str, float] = defaultdict(float)
        for_whom: dict[str, Counter[str]] = defaultdict(Counter)
        for wait in waits(with_waits(self.source.trace)):
            waited[wait.phase.task] += wait.phase.end - wait.phase.start
            who = wait.released.task if wait.released else "network or core"
            for_whom[wait.phase.task][who] += 1
        rows = []
        for task in sorted(waited, key=task_key):
            reasons = (f"{who} ({n} times)" for who, n in for_whom[task].most_common())
            rows.append((task, f"waited {waited[task]:.2f} s, for {', '.join(reasons)}"))
        return text.table(rows)

    def _messages(self) -> str:
        sent: dict[tuple[str, str], list[int]] = defaultdict(list)
        for m in self.source.trace.all(Message):
            sent[m.src, m.dst].append(m.bytes)
        rows = []
        for src, dst in sorted(sent, key=lambda ends: tuple(map(task_key, ends))):
            sizes = sent[src, dst]
            rows.append((f"{src} to {dst}", f"{len(sizes)} messages", f"{sum(sizes)} bytes"))
        return text.table(rows, right=True)

    def _faults(self) -> str:
        lanes, faults = self.scene["lanes"], self.scene["faults"]
        return text.table([(f"{f['at']:.2f} s", lanes[f["lane"]], f["words"]) for f in faults])

    def _clocks(self) -> str:
        lanes = zip(self.scene["lanes"], self.scene["unsure"], strict=True)
        return text.table([(t, f"clock \u00b1{1000 * off:.2g} ms") for t, off in lanes if off])

    def _asked(self, _: Any, content: dict[str, Any], buffers: Any) -> None:
        """A button was pressed."""
        if content.get("do") == "refresh":
            self.refresh()
        elif content.get("do") == "export":
            name = "-".join(re.findall(r"[^\s·,]+", self.source.title)) or "trace"
            path = self.export(f"{name}.perfetto.json").resolve()
            yourself = "Open it at ui.perfetto.dev yourself; nothing was sent anywhere."
            self.said = f"Written: {path}. {yourself}"

    def __repr__(self) -> str:
        tasks = f"{len(self.scene['lanes'])} tasks"
        facts = filter(None, (self.source.title, tasks, self.source.reality))
        return f"Timeline({', '.join(facts)})"


def source(given: Traceable) -> TimelineSource:
    """Read what was given.

    Raises `SpecError` for a path that holds no trace, and for an object that has none.
    """
    if isinstance(given, (str, Path)):
        given = _saved(Path(given))
    trace = given if isinstance(given, Trace) else getattr(given, "trace", None)
    if isinstance(given, Simulation):
        if trace is None:
            allowed = "a simulation with its messages: simulate(..., trace=True)"
            raise SpecError("trace", given, allowed)
        title = f"{given.schedule.name}, {given.schedule.ranks} ranks"
        return TimelineSource(trace, title, *SIMULATED)
    if not isinstance(trace, Trace):
        allowed = "a run, the directory of one, a simulation, or a Trace: Timeline(run)"
        raise SpecError("trace", given, allowed)
    saved = trace.files.spec if trace.files and trace.files.holds_run else None
    spec: RunSpec | None = getattr(given, "spec", None) or saved
    if spec:
        shares = f"{spec.shares} {'replicas' if spec.replicas > 1 else 'workers'}"
        title = f"{spec.strategy} · {spec.framework} · {shares}"
        imposed = planned(spec)
        life = Life([*imposed, *trace.all(Lifecycle)])
        return TimelineSource(trace, title, *reality(spec, life), imposed)
    named: Any = given if hasattr(given, "algorithm") and hasattr(given, "workers") else None
    title = f"{named.algorithm}, {named.workers} workers" if named else ""
    real = getattr(given, "reality", ""), getattr(given, "why", "")
    return TimelineSource(trace, title, *real)


def _saved(path: Path) -> Trace:
    try:
        return Trace.of_run(path) if path.is_dir() else Trace.load(path)
    except (OSError, ValueError) as error:
        allowed = f"the directory of a run, or a file that Trace.save wrote ({error})"
        raise SpecError("trace", str(path), allowed) from None
