"""Timeline: the Gantt chart of any trace. It shows who did what when, what each wait was for, and
who was slowed, paused or killed.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

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
from course_lib.widgets.kit import badge, page
from course_lib.widgets.kit.widget import Scripted
from course_lib.widgets.timeline.scene import lanes_svg, messages_svg, packed


class TimelineSource(NamedTuple):
    """The source of a timeline: a trace, what ran (`title`), how real it is (`reality`, "" if that
    is not known) and `why`, and what its spec `imposed` on tasks from the start.
    """

    trace: Trace
    title: str
    reality: str
    why: str
    imposed: Sequence[Lifecycle] = ()


class Timeline(Scripted):
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

    def __init__(self, given: Any) -> None:
        self.given = given
        super().__init__()
        self.refresh()
        self.on_msg(self._asked)

    def refresh(self) -> Self:
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

    def table(self) -> str:
        """Tell as text the time of each task by phase, and for whom it waited; the messages, if
        they were recorded; the faults; and the errors of the nodes' clocks.
        """
        trace, lanes = self.source.trace, self.scene["lanes"]
        parts = [measures.table(trace)] if trace.all(Phase) else []
        waited = (
            (
                w.phase.task,
                w.released.task if w.released else "network or core",
                w.phase.end - w.phase.start,
            )
            for w in waits(with_waits(trace))
        )
        sent = ((m.src, m.dst, m.bytes) for m in trace.all(Message))
        faults = [(f"{f['at']:.2f} s", lanes[f["lane"]], f["words"]) for f in self.scene["faults"]]
        clocks = [
            (t, f"clock \u00b1{1000 * off:.2g} ms")
            for t, off in zip(lanes, self.scene["unsure"], strict=True)
            if off
        ]
        parts += [_sums("waited for", waited, "{:.2f} s"), _sums("to", sent, "{} bytes")]
        return "\n\n".join(filter(None, [*parts, text.table(faults), text.table(clocks)]))

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


def _sums(verb: str, amounts: Iterable[tuple[str, str, float]], form: str) -> str:
    """A table of how often something went on between two tasks, and how much it was together."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one, other, amount in amounts:
        sums[one, other].append(amount)
    rows = [
        (f"{one} {verb} {other}", f"{len(each)} times", form.format(sum(each)))
        for (one, other), each in sorted(sums.items(), key=lambda item: [*map(task_key, item[0])])
    ]
    return text.table(rows, right=True)


def source(given: Any) -> TimelineSource:
    """Read what was given.

    Raises `SpecError` for a path that holds no trace, and for an object that has none.
    """
    try:
        if isinstance(given, str | Path):
            given = Trace.of_run(given) if Path(given).is_dir() else Trace.load(given)
        trace = given if isinstance(given, Trace) else getattr(given, "trace", None)
        if not isinstance(trace, Trace):
            raise ValueError("it has no trace")
    except (OSError, ValueError) as error:
        allowed = "a run, its directory, a simulation with trace=True, or a Trace: Timeline(run)"
        raise SpecError("trace", given, f"{allowed} ({error})") from None
    if isinstance(given, Simulation):
        title = f"{given.schedule.name}, {given.schedule.ranks} ranks"
        return TimelineSource(trace, title, *SIMULATED)
    saved = trace.files.spec if trace.files and trace.files.holds_run else None
    if spec := getattr(given, "spec", None) or saved:
        shares = f"{spec.shares} {'replicas' if spec.replicas > 1 else 'workers'}"
        title = f"{spec.strategy} · {spec.framework} · {shares}"
        imposed = planned(spec)
        life = Life([*imposed, *trace.all(Lifecycle)])
        return TimelineSource(trace, title, *reality(spec, life), imposed)
    algorithm = getattr(given, "algorithm", "")
    title = f"{algorithm}, {given.workers} workers" if algorithm else ""
    return TimelineSource(trace, title, getattr(given, "reality", ""), getattr(given, "why", ""))
