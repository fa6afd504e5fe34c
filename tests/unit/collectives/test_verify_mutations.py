"""The proof against the numbers: schedules broken at random, and made up at random, are judged as
their sums come out.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.collectives import ALGORITHMS, COLLECTIVES, Schedule, Transfer, build, verify

from .numeric import contributions, is_right, run

# not safe, though the numbers may come out right
REFUSED_ANYWAY = {"nothing", "conflict", "overwrite"}


@st.composite
def broken(draw: st.DrawFn) -> Schedule:
    """A right schedule with one to three transfers dropped, doubled, sent elsewhere, flipped, or
    moved to another round.
    """
    right = build(draw(st.sampled_from([*ALGORITHMS, *COLLECTIVES])), draw(st.integers(2, 7)))
    rounds = [list(r) for r in right.rounds]
    for _ in range(draw(st.integers(1, 3))):
        number = draw(st.integers(0, len(rounds) - 1))
        if not rounds[number]:
            continue
        index = draw(st.integers(0, len(rounds[number]) - 1))
        t = rounds[number].pop(index)
        change = draw(st.sampled_from(["drop", "double", "src", "dst", "chunk", "op", "move"]))
        if change == "double":
            rounds[number] += [t, t]
        elif change == "op":
            rounds[number].append(t._replace(op="copy" if t.op == "reduce" else "reduce"))
        elif change == "move":
            rounds[draw(st.integers(0, len(rounds) - 1))].append(t)
        elif change == "chunk":
            rounds[number].append(t._replace(chunk=draw(st.integers(0, right.chunks - 1))))
        elif change != "drop":
            other = draw(
                st.sampled_from(
                    [r for r in range(right.ranks) if r not in (t.src, t.dst)]
                    or [t.src if change == "src" else t.dst]
                )
            )
            rounds[number].append(
                t._replace(src=other) if change == "src" else t._replace(dst=other)
            )
    return Schedule(
        "broken", right.workers, right.chunks, rounds, right.kind, right.owners, right.servers
    )


@st.composite
def made_up(draw: st.DrawFn) -> Schedule:
    """A few rounds of anything, for few ranks, where something right comes up now and then."""
    workers, chunks = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    ranks = st.integers(0, workers - 1)
    transfer = st.builds(
        Transfer, ranks, ranks, st.integers(0, chunks - 1), st.sampled_from(["reduce", "copy"])
    ).filter(lambda t: t.src != t.dst)
    rounds = draw(st.lists(st.lists(transfer, min_size=1, max_size=3), min_size=1, max_size=4))
    kind = draw(st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]))
    return Schedule("made_up", workers, chunks, rounds, kind)


def judge(schedule: Schedule) -> None:
    data = contributions(schedule, 2 * schedule.chunks)
    right = is_right(schedule, run(schedule, data), data)
    proof = verify(schedule)
    assert not (proof.ok and not right), "accepted, but the sums are wrong"
    kinds = {p.kind for p in proof.problems}
    assert proof.ok or not right or kinds & REFUSED_ANYWAY, (
        f"refused, but the sums are right: {proof}"
    )
    if not proof.left_out:
        assert right == (not kinds & {"missing", "twice"})
    for problem in proof.problems:
        assert 0 <= problem.round < max(len(schedule.rounds), 1) and problem.text


@settings(max_examples=300)
@given(broken())
def test_broken_schedules_are_judged_as_their_sums(schedule):
    judge(schedule)


@settings(max_examples=300)
@given(made_up())
def test_made_up_schedules_are_judged_as_their_sums(schedule):
    judge(schedule)


def test_every_single_drop_double_and_flip_is_found():
    for name in ALGORITHMS:
        right = build(name, 5)
        for number, transfers in enumerate(right.rounds):
            for index, t in enumerate(transfers):
                flipped = t._replace(op="copy" if t.op == "reduce" else "reduce")
                for instead in ([], [t, t], [flipped]):
                    rounds = [list(r) for r in right.rounds]
                    rounds[number][index : index + 1] = instead
                    schedule = Schedule("x", 5, right.chunks, rounds, servers=right.servers)
                    judge(schedule)
                    assert not verify(schedule).ok, (name, number, t, instead)
