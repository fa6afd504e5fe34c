"""Exchanges that go on beside computing: what of them counts as hidden, waited for, or exposed."""

import re
import xml.etree.ElementTree as ET

import pytest

from course_lib import RunSpec
from course_lib.record import measures
from course_lib.record.digest import Digest
from course_lib.record.events import Phase
from course_lib.record.trace import Trace
from course_lib.record.waits import waits
from course_lib.widgets.board.plots import NAMES, TimeWindow, lanes
from course_lib.widgets.kit import svg
from course_lib.widgets.timeline import lanes_svg

Span = tuple[str, float, float]


def phases(*workers: list[Span], step: int = 0) -> list[Phase]:
    """The phases of a step: a list of (what, start, end) for each worker."""
    return [
        Phase(f"worker:{k}", step, what, start, end)
        for k, spans in enumerate(workers)
        for what, start, end in spans
    ]


def told(trace: Trace, task: str = "worker:0") -> list[Span]:
    return [(p.what, p.start, p.end) for p in trace.with_waits() if p.task == task]


def test_an_exchange_beside_computing_is_hidden_and_what_is_left_of_it_is_waited_for() -> None:
    spans: list[Span] = [("compute", 0, 10), ("reduce", 4, 7), ("reduce", 8, 13)]
    trace = Trace(phases(spans, spans))
    assert told(trace) == [
        ("compute", 0, 10),
        ("hidden", 4, 7),
        ("hidden", 8, 10),
        ("reduce", 10, 13),
    ]
    assert measures.idle_share(trace) == {"worker:0": 0.0, "worker:1": 0.0}
    assert measures.exchange_ms(trace) == {"hidden": 5000.0, "exposed": 3000.0}


def test_buckets_that_travel_at_the_same_time_are_counted_once() -> None:
    spans: list[Span] = [
        ("compute", 0, 10),
        ("reduce", 5, 14),
        ("reduce", 9, 12),
        ("reduce", 10, 15),
    ]
    trace = Trace(phases(spans, spans))
    assert told(trace)[1:] == [("hidden", 5, 10), ("reduce", 10, 14), ("reduce", 14, 15)]
    assert measures.exchange_ms(trace) == {"hidden": 5000.0, "exposed": 5000.0}


def test_a_wait_for_a_straggler_counts_only_after_ones_own_computing() -> None:
    fast: list[Span] = [
        ("compute", 0, 10),
        ("reduce", 5, 22),
        ("reduce", 10, 41),
        ("apply", 41, 42),
    ]
    late: list[Span] = [
        ("compute", 0, 40),
        ("reduce", 20, 22),
        ("reduce", 40, 41),
        ("apply", 41, 42),
    ]
    trace = Trace(phases(fast, late))
    assert told(trace) == [
        ("compute", 0, 10),
        ("wait", 10, 20),
        ("reduce", 20, 22),
        ("wait", 22, 40),
        ("reduce", 40, 41),
        ("apply", 41, 42),
    ]
    assert told(trace, "worker:1")[:2] == [("compute", 0, 40), ("hidden", 20, 22)]
    assert measures.idle_share(trace) == {"worker:0": pytest.approx(28 / 42), "worker:1": 0.0}
    assert Digest(RunSpec(workers=2), trace).update(over=True).reductions.lockstep
    causes = [
        (w.released.task, w.released.what, w.last) for w in waits(trace.with_waits()) if w.released
    ]
    assert causes == [("worker:1", "compute", True)] * 2


def test_where_an_exchange_divides_computing_another_can_go_on_beside_both_parts() -> None:
    spans: list[Span] = [
        ("compute", 0, 3),
        ("reduce", 1, 9),  # asked for early
        ("reduce", 3, 5),
        ("compute", 5, 8),
        ("compute", 9, 10),
    ]
    trace = Trace(phases(spans, spans))
    exchanged = [span for span in told(trace) if span[0] != "compute"]
    assert exchanged == [("hidden", 1, 3), ("reduce", 3, 5), ("hidden", 5, 8), ("reduce", 8, 9)]


def test_what_is_hidden_is_beside_the_table_of_shares() -> None:
    spans: list[Span] = [
        ("compute", 0, 10),
        ("reduce", 4, 7),
        ("reduce", 10, 13),
        ("apply", 13, 14),
    ]
    moved = [[(what, 14 * n + a, 14 * n + b) for what, a, b in spans] for n in range(8)]
    trace = Trace([p for n, each in enumerate(moved) for p in phases(each, each, step=n)])
    head, first, _ = measures.table(trace).splitlines()
    assert head.split() == [*measures.SHOWN, "hidden"]
    shares = [int(word[:-1]) for word in first.split() if word.endswith("%")]
    assert sum(shares[:-1]) in (99, 100, 101) and first.split()[-3:] == ["24.00", "s", "21%"]


def test_lanes_draw_what_is_hidden_as_a_thin_bar_over_computing() -> None:
    spans: list[Span] = [("compute", 0, 10), ("reduce", 4, 7), ("reduce", 10, 13)]
    trace = Trace(phases(spans, spans))
    digest = Digest(RunSpec(workers=2), trace).update(over=True)
    lane = lanes(digest, TimeWindow(0, 13), columns=13)[0]
    assert {NAMES[what] for what in lane.cells[:10]} == {"compute"}
    assert [i for i, what in enumerate(lane.hidden) if what != svg.NOTHING] == [4, 5, 6]
    tall: dict[str, tuple[float, ...]] = {}
    for path in ET.fromstring(lanes_svg(trace, "name")).iter("{http://www.w3.org/2000/svg}path"):
        what = path.get("fill", "").removeprefix("url(#ls-")
        if box := re.match(r"M\S+ (\S+)h\S+?v([\d.]+)h", path.get("d", "")):
            tall.setdefault(what, tuple(map(float, box.groups())))
    (y, height), (above, whole) = tall["hidden)"], tall["compute)"]
    assert height < whole / 2 and y + height == pytest.approx(above + whole)


def test_device_time_that_exchanges_divide_is_counted_once() -> None:
    """Of each step of 10 s, 4 are emulated, in two parts of computing that last 3 s each."""
    spans: list[Span] = [("compute", 0, 3), ("reduce", 3, 6), ("compute", 6, 9), ("apply", 9, 10)]
    moved = [[(what, 10 * n + a, 10 * n + b) for what, a, b in spans] for n in range(6)]
    trace = Trace([p for n, each in enumerate(moved) for p in phases(each, each, step=n)])
    digest = Digest(RunSpec(workers=2, device_ms=4000), trace).update(over=True)
    assert digest.zero == 10  # the first step is left out
    assert digest.overhead == pytest.approx(0.6)
