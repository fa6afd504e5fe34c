"""Collectives that can never end, told from the beats of the ranks."""

import random
from collections.abc import Sequence

import pytest

from course_lib.record.beats import BACKWARD, KEPT, Beat, endless
from tests.screens import says

ALL = 0b1111
OUTSIDE = Beat(2, "", 1.0)


def call(
    rank: int,
    what: str = "all_reduce",
    number: int = 7,
    shape: tuple[int, ...] = (10, 5),
    line: int = 17,
    group: str = "0",
    needs: int = ALL,
    members: int = ALL,
) -> Beat:
    size = 4
    for length in shape:
        size *= length
    about = f"{shape} float32" if shape else ""
    size = size if shape else 0
    told = group, about, f"train.py:{line}"
    return Beat(2, what, 1.0, number, rank, members | needs, needs, size, *told)


def found(*ranks: Sequence[Beat], over: Sequence[str] = ()) -> dict[str, str]:
    """Of what each rank has called, the last thing is what it is in."""
    tasks = [f"worker:{n}" for n in range(len(ranks))]
    now = dict(zip(tasks, (made[-1] for made in ranks), strict=True))
    kept = {t: [c for c in made if c.number] for t, made in zip(tasks, ranks, strict=True)}
    return {task: str(doing) for task, doing in endless(now, kept, over).items()}


def kept(key: str, words: dict[str, str]) -> None:
    says("calls", key, "\n".join(f"{task} {doing}" for task, doing in words.items()))


def test_ranks_in_the_same_call_may_only_be_slow() -> None:
    assert found(*([call(rank)] for rank in range(4))) == {}
    # one still computes, one has gone on already
    assert found([call(0)], [call(1)], [OUTSIDE], [call(3), call(3, number=8)]) == {}


def test_another_shape_is_named_with_rank_and_line() -> None:
    mine = [[call(rank)] for rank in range(4)]
    mine[2] = [call(2, shape=(10, 4), line=19)]
    words = found(*mine)
    assert [*words] == ["worker:2", "worker:0", "worker:1", "worker:3"]
    kept("another shape", words)


def test_the_same_number_of_bytes_in_another_shape_is_no_mistake() -> None:
    assert found([call(0, shape=(10, 4))], [call(1, shape=(40,))]) == {}


def test_another_collective_is_named_also_if_its_rank_has_left_it() -> None:
    barrier = call(1, "barrier", shape=(), line=20)
    words = found([call(0)], [barrier], [call(2)])
    assert next(iter(words)) == "worker:1"
    kept("another collective", words)
    assert found([call(0)], [barrier, OUTSIDE], [call(2)]) == words
    left = call(1, "broadcast from rank 1", line=9), call(1, number=8)
    kept("another collective that is left", found([call(0)], [*left], [call(2)]))


def test_of_two_that_disagree_the_lower_rank_is_not_the_cause() -> None:
    assert [*found([call(0)], [call(1, "barrier", shape=())])] == ["worker:1", "worker:0"]


def test_calls_in_other_groups_are_compared_with_their_own_kind_only() -> None:
    left, right = ({"group": "1", "needs": 0b0011}, {"group": "2", "needs": 0b1100})
    ranks = [[call(n, **left)] for n in (0, 1)]  # type: ignore[arg-type]
    ranks += [[call(n, "barrier", shape=(), **right)] for n in (2, 3)]  # type: ignore[arg-type]
    assert found(*ranks) == {}


def test_a_rank_that_has_returned_is_named() -> None:
    words = found([call(0)], [call(1)], [call(2, number=6), OUTSIDE], over=["worker:2"])
    assert [*words] == ["worker:2", "worker:0", "worker:1"]
    kept("one has returned", words)
    # what it sent before is on its way
    sent = [call(2, "broadcast from rank 2"), OUTSIDE]
    inside = call(0, "broadcast from rank 2", needs=0b0100)
    assert found([inside], [OUTSIDE], sent, over=["worker:2"]) == {}


def test_who_sends_to_a_rank_that_has_returned_waits_for_ever_if_that_is_in_the_group() -> None:
    root = call(0, "broadcast from rank 0", needs=0b0001)
    assert found([root], [OUTSIDE], [call(2, number=6), OUTSIDE]) == {}  # it may still come
    assert [*found([root], [call(1, number=6), OUTSIDE], over=["worker:1"])] == [
        "worker:1",
        "worker:0",
    ]
    never = found([root], [OUTSIDE], [OUTSIDE], over=["worker:1"])
    assert [*never] == ["worker:1", "worker:0"]  # though it has not called anything
    outside = root._replace(members=0b0101)
    assert found([outside], [OUTSIDE], [call(2, number=6), OUTSIDE], over=["worker:1"]) == {}
    # it may have come long ago: its latest calls are of another group
    elsewhere = [call(1, number=n, group="1") for n in range(1, KEPT + 1)]
    assert found([root], [*elsewhere, OUTSIDE], over=["worker:1"]) == {}


@pytest.mark.parametrize(
    "what", [BACKWARD, "DDP's broadcast from rank 1", "FSDP's all_gather_single", "barrier"]
)
def test_uneven_data_are_named_where_a_wrapper_of_the_model_waits(what: str) -> None:
    words = found([call(0, what)], [call(1, number=6), OUTSIDE], over=["worker:1"])
    kept(f"uneven data in {what}", words)


def test_two_that_receive_from_each_other_wait_for_ever() -> None:
    one = call(0, "recv from rank 1", 1, (), 3, "0:1>0", 0b10)
    other = call(1, "recv from rank 0", 1, (), 5, "0:0>1", 0b01)
    words = found([one], [other])
    assert [*words] == ["worker:0", "worker:1"]
    kept("two that receive", words)
    sent = call(0, "send to rank 1", 1, (), 2, "0:0>1", 0b10)
    assert found([sent, one], [other]) == {}  # it is on its way
    assert found([one], [OUTSIDE]) == {}  # it may still send


def test_a_message_from_any_rank_never_comes_once_all_others_have_returned_or_wait() -> None:
    way = "0:any rank>1:"
    waits = call(1, "recv from any rank", 1, (), 5, way, 0, 0b111)
    barrier = call(0, "barrier", 1, (), needs=0b111)
    both = ["worker:0", "worker:2"]
    assert [*found([OUTSIDE], [waits], [OUTSIDE], over=both)] == [*both, "worker:1"]
    assert [*found([barrier], [waits], [OUTSIDE], over=["worker:2"])] == [
        "worker:2",
        "worker:0",
        "worker:1",
    ]
    assert found([OUTSIDE], [waits], [OUTSIDE], over=["worker:2"]) == {}  # it may still come
    sent = call(0, "send to rank 1", 1, (), 2, "0:0>1:", 0b10, 0b11)
    assert found([sent], [waits], [OUTSIDE], over=["worker:2"]) == {}  # it is on its way
    assert found([sent, OUTSIDE], [waits], [OUTSIDE], over=both) == {}


def test_groups_entered_in_another_order_wait_for_ever_and_so_does_who_waits_for_them() -> None:
    ranks = [
        [call(0, group="1", needs=0b011, number=1)],
        [call(1, group="2", needs=0b011, number=1)],
        [call(2, needs=0b111, number=1)],
    ]
    assert [*found(*ranks)] == ["worker:0", "worker:1", "worker:2"]


def test_ranks_may_be_given_out_in_another_order_than_the_tasks() -> None:
    words = found([call(1, needs=0b11)], [OUTSIDE, call(0, number=6), OUTSIDE], over=["worker:1"])
    assert [*words] == ["worker:1", "worker:0"]


def played(seed: int) -> None:
    """A random program that ends, on four ranks any of which may be as slow as it likes: at no
    moment is one of its calls said to be endless.
    """
    rng, ranks = random.Random(seed), range(4)
    every, pairs = tuple(ranks), [(a, b) for a in ranks for b in ranks if a != b]
    kinds = ["all"] * 3 + ["from", "to"] + ["message"] * 2
    program = [
        (rng.choice(kinds), rng.choice([every, (0, 1), (1, 2, 3)]), *rng.choice(pairs))
        for _ in range(40)
    ]
    made: list[list[Beat]] = [[] for _ in ranks]
    now, at = [OUTSIDE for _ in ranks], [0 for _ in ranks]

    def enter(me: int) -> Beat | None:
        """The next call of a rank, as it would leave it; None if it is not part of it."""
        kind, group, one, other = program[at[me]]
        group = every if kind in ("from", "to") else (one, other) if kind == "message" else group
        if me not in group:
            return None
        name = f"0:{one}>{other}:" if kind == "message" else str(group)
        needed = {"from": {one}, "to": set(group) if me == one else set()}.get(kind, {*group})
        number = 1 + sum(call.group == name for call in made[me])
        bits = sum(1 << rank for rank in needed)
        what = kind if kind != "message" else "send" if me == one else "recv"
        every_rank = sum(1 << rank for rank in group)
        return call(me, what, number, group=name, needs=bits, members=every_rank)

    def may_leave(me: int) -> bool:
        """Whether all that the call of a rank needs have come to it."""
        mine = now[me]
        return all(
            any((c.group, c.number) == (mine.group, mine.number) for c in made[rank])
            for rank in ranks
            if mine.needs >> rank & 1
        )

    while going := [rank for rank in ranks if at[rank] < len(program) or now[rank].number]:
        me = rng.choice(going)
        if now[me].number:
            now[me] = OUTSIDE if may_leave(me) else now[me]
        else:
            begun = enter(me)
            at[me] += 1
            if begun:
                made[me].append(begun)
                now[me] = begun
        kept = {f"worker:{rank}": made[rank][-KEPT:] for rank in ranks}
        over = [f"worker:{rank}" for rank in ranks if rank not in going]
        assert endless(dict(zip(kept, now, strict=True)), kept, over) == {}


@pytest.mark.parametrize("seed", range(40))
def test_a_program_that_ends_is_never_said_to_be_endless_however_slow_its_ranks(seed: int) -> None:
    played(seed)
