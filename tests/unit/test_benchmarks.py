"""The arithmetic of the benchmarks, and their command line; nothing is measured here."""

import io
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from rich.console import Console

from tests.benchmarks import kills, report, timed, tracing
from tests.benchmarks.__main__ import arguments, measure
from tests.benchmarks.harness import ENOUGH, Aim, Options, Row, compare
from tests.benchmarks.registry import SUBJECTS
from tests.processes.kernel_kill import Kill

PAIRS = ((1.0, 10.0), (2.0, 30.0), (1.0, 50.0))


def row(aim: Aim, pairs: tuple[tuple[float, float], ...] = PAIRS) -> Row:
    return Row("a start", "a peer", "s", pairs, aim)


def test_a_spread_is_the_median_with_the_least_and_the_most() -> None:
    assert row(Aim("faster", 15)).ours == (1.0, 1.0, 2.0)
    assert row(Aim("faster", 15)).theirs == (30.0, 10.0, 50.0)


def test_the_ratio_is_the_median_of_the_pairs_and_not_the_ratio_of_the_medians() -> None:
    assert row(Aim("faster", 15)).ratio == (15.0, 10.0, 50.0)
    assert row(Aim("at most", 1)).ratio.median == pytest.approx(2 / 30)


@pytest.mark.parametrize(
    ("aim", "reached"),
    [
        (Aim("faster", 15), True),
        (Aim("faster", 15.1), False),
        (Aim("at most", 0.07), True),
        (Aim("at most", 0.06), False),
        (Aim("none"), False),
    ],
    ids=str,
)
def test_an_aim_is_reached_or_not(aim: Aim, reached: bool) -> None:
    assert row(aim).reached is reached


def test_none_is_reached_only_if_every_single_figure_is_zero() -> None:
    assert row(Aim("none"), ((0.0, 2.0),) * 9).reached
    assert not row(Aim("none"), ((0.0, 2.0),) * 9 + ((1.0, 2.0),)).reached


@pytest.mark.parametrize(("pair", "ratio"), [((0.0, 2.0), math.inf), ((2.0, 0.0), 0.0)])
def test_zeros_do_not_break_a_ratio(pair: tuple[float, float], ratio: float) -> None:
    assert Aim("faster", 2).ratio(*pair) == ratio
    assert math.isnan(Aim("faster", 2).ratio(0.0, 0.0))


def test_both_sides_are_measured_in_turn() -> None:
    seen: list[str] = []

    def side(name: str, figures: Iterator[float]) -> float:
        seen.append(name)
        return next(figures)

    a, b = iter([1.0, 2.0, 3.0]), iter([4.0, 5.0, 6.0])
    made = compare(
        "x",
        "s",
        lambda: side("ours", a),
        ("peer", lambda: side("peer", b)),
        Aim("faster", 1),
        Options(repeats=3),
    )
    assert seen == ["ours", "peer"] * 3
    assert made.pairs == ((1.0, 4.0), (2.0, 5.0), (3.0, 6.0))


def test_fewer_repeats_than_enough_are_said_to_be_no_result() -> None:
    assert not row(Aim("faster", 1)).enough
    assert row(Aim("faster", 1), PAIRS[:1] * ENOUGH).enough
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(report.table([row(Aim("faster", 15))]))
    assert "only 3 repeats" in console.export_text()


def test_the_record_is_json_with_the_machine_and_every_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        SUBJECTS,
        "one",
        lambda options: iter([row(Aim("faster", 15)), row(Aim("none"), ((0.0, 0.0),))]),
    )
    monkeypatch.setitem(SUBJECTS, "broken", broken)
    failures = measure(["one", "broken"], Options(), False, tmp_path)
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert failures == record["failures"] == {"broken": "OSError: no such luck"}
    assert record["machine"]["cores"] >= 1
    first, second, third = record["rows"]
    assert first["ratio"] == {"median": 15.0, "low": 10.0, "high": 50.0}
    assert (first["peer"]["what"], first["reached"], len(first["pairs"])) == ("a peer", True, 3)
    assert second["ratio"]["median"] is None  # JSON knows no not-a-number
    assert third["name"] == "a start"  # what a subject measured before it broke is kept


def broken(options: Options) -> Iterator[Row]:
    yield row(Aim("faster", 15))
    raise OSError("no such luck")


def test_a_step_is_timed_after_the_warm_up() -> None:
    warm = [float(n) for n in range(timed.WARM_UP)]
    moments = [*warm, *(warm[-1] + x for x in (1.0, 1.002, 1.004, 1.024))]
    assert timed.median_ms(moments) == pytest.approx(2.0)


def test_only_one_group_of_processes_goes_on_at_a_time_and_in_the_end_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped: set[str] = set()
    during: list[set[str]] = []
    monkeypatch.setattr(timed.time, "sleep", lambda seconds: during.append(set(stopped)))

    def process(name: str) -> Any:
        return SimpleNamespace(
            suspend=lambda: stopped.add(name), resume=lambda: stopped.discard(name)
        )

    def gone() -> None:
        raise psutil.NoSuchProcess(1)

    ours = [SimpleNamespace(suspend=gone, resume=gone), process("ours")]
    left = iter([True, True, True, False])
    timed.take_turns([process("theirs")], ours, lambda: next(left))
    assert during == [{"ours"}, {"theirs"}, {"ours"}]
    assert not stopped
    with pytest.raises(StopIteration):
        timed.take_turns([process("theirs")], ours, lambda: next(left))
    assert not stopped


def test_a_recorded_stretch_is_paired_with_the_unrecorded_one_after_it() -> None:
    """The first two stretches are the warm-up, so the first moment that counts is the end of the
    second.
    """
    moments = [5.0, 7.0, 7.4, 7.6, 8.4, 8.8]
    assert [pytest.approx(pair) for pair in tracing.in_pairs(moments, 100)] == [
        (4.0, 2.0),
        (8.0, 4.0),
    ]


def test_two_hundred_kernels_are_killed_and_one_that_fails_does_not_cost_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every hundredth leaves something that is slow to go, one leaves something for ever."""
    begun = itertools.count()
    said: list[str] = []

    def made_up(framework: str, home: Path, moment: str, seconds: float) -> Kill:
        number = next(begun)
        assert home.is_dir()
        assert number != 7, "it ended by itself"
        left = {"process 1 python": 1.5} if number % 100 == 50 else {}
        return Kill(10, 0.25, left | ({"socket:[2]": math.inf} if number == 50 else {}))

    monkeypatch.setattr(kills, "kill", made_up)
    monkeypatch.setattr(kills, "fell", lambda home: "training")
    monkeypatch.setattr(kills, "orphans", lambda options: 4.0)
    (row,) = kills.rows(Options(repeats=2, say=said.append))
    assert next(begun) == 200
    assert row.pairs == ((0.0, 4.0), (0.0, 4.0), (2.0, 4.0), *((0.0, 4.0),) * 4, (1.0, 4.0)) + (
        ((0.0, 4.0),) * 2
    )
    assert not row.reached and "2 slow, 1 leaks, 1 kernels failed" in row.name
    assert "199 in training" in row.name and "at most 0.25 s" in row.name
    (failed,) = (line for line in said if "it ended by itself" in line)
    assert failed.startswith("seed 0, kill 7, ")
    assert any("socket:[2] was left (a leak)" in line for line in said)


def test_kills_end_where_kernels_fail_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Kill:
        raise AssertionError("it ended by itself")

    monkeypatch.setattr(kills, "kill", fails)
    with pytest.raises(AssertionError, match="by itself"):
        list(kills.rows(Options()))


@pytest.mark.parametrize("given", [["strat"], ["--repeat", "0"], ["start", "nothing"]])
def test_bad_input_ends_with_exit_code_2(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments(given)
    assert ended.value.code == 2
    assert given[-1] in capsys.readouterr().err or "--repeat" in given


def test_names_are_taken_from_the_registry() -> None:
    assert arguments([*SUBJECTS, "--quick"]).names == list(SUBJECTS)
