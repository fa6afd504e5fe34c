"""What is wrong with a schedule is found, and said in words: which rank, which chunk, which
round.
"""

import pytest

from course_lib.collectives import Schedule, Transfer, ring, tree, verify
from course_lib.collectives.verify import members, ranks_text
from tests.screens import says

from .cases import mine, ring_lists


def without(schedule: Schedule, number: int, index: int) -> Schedule:
    rounds = [list(r) for r in schedule.rounds]
    del rounds[number][index]
    return mine(schedule.workers, schedule.chunks, rounds)


def test_a_right_schedule_says_so():
    proof = verify(ring(4))
    assert proof and proof.ok and not proof.problems and "is right" in str(proof)


def test_dropped_in_the_gather_names_both_ends_and_all_who_suffer():
    (problem,) = verify(without(ring(4), 4, 2)).problems
    assert (problem.kind, problem.rank, problem.chunk) == ("missing", 3, 1)
    assert (problem.ranks, problem.contributions) == ((0, 3), (0, 1))
    says("verify", "dropped in the gather", problem.text)


def test_never_received():
    (problem,) = verify(without(tree(4), 3, 1)).problems
    says("verify", "never received", problem.text)


def test_dropped_in_the_reduction_names_where_it_was_lost():
    (problem,) = verify(without(ring(4), 1, 1)).problems
    assert problem.ranks == (0, 1, 2, 3) and problem.contributions == (0, 1)
    says("verify", "dropped in the reduction", problem.text)


def test_reduce_where_copy_belongs_counts_twice():
    proof = verify(ring_lists(3, gather="reduce"))
    assert {p.kind for p in proof.problems} == {"twice"}
    first = proof.problems[0]
    assert first.round == 2 and first.contributions
    says("verify", "counted twice", first.text)


def test_copy_where_reduce_belongs_wipes_out():
    rounds = [[Transfer(1, 0, 0, "copy")], [Transfer(0, 1, 0, "copy")]]
    (problem,) = verify(mine(2, 1, rounds)).problems
    says("verify", "wiped out", problem.text)


def test_nothing_is_sent_at_all():
    says("verify", "nothing sent", verify(mine(2, 1, [])))
    rounds = [[Transfer(1, 0, 0, "reduce")], [Transfer(0, 1, 0, "copy")]]
    says("verify", "nothing sent to rank 2", verify(mine(3, 1, rounds)))


def test_first_problem_first():
    rounds = [[Transfer(0, 2, 0, "reduce")], [Transfer(0, 1, 5, "copy")]]
    proof = verify(mine(2, 1, rounds))
    assert [p.kind for p in proof.problems[:2]] == ["rank", "chunk"]
    says("verify", "no such rank", proof.problems[0].text)


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        ("rank", [[Transfer(-1, 0, 0, "reduce")]]),
        ("chunk", [[Transfer(0, 1, 1, "reduce")]]),
        ("self", [[Transfer(1, 1, 0, "reduce")]]),
        ("conflict", [[Transfer(0, 2, 0, "copy"), Transfer(1, 2, 0, "copy")]]),
        ("conflict", [[Transfer(0, 2, 0, "reduce"), Transfer(1, 2, 0, "copy")]]),
        ("conflict", [[Transfer(0, 2, 0, "copy"), Transfer(1, 2, 0, "reduce")]]),
        ("overwrite", [[Transfer(0, 1, 0, "copy"), Transfer(1, 2, 0, "copy")]]),
    ],
)
def test_kinds_of_problems_of_a_round(kind, rounds):
    problem = verify(mine(3, 1, rounds)).problems[0]
    assert problem.kind == kind and problem.text.startswith("round 0: ") and problem.round == 0


def test_a_server_has_nothing_until_it_is_sent_something():
    proof = verify(mine(1, 1, [[Transfer(1, 0, 0, "reduce")]], servers=1))
    says("verify", "an empty server", proof.problems[0].text)


def test_words_of_the_other_kinds_speak_of_data():
    proof = verify(mine(3, 1, [[Transfer(0, 1, 0, "copy")]], kind="broadcast", owners=(0,)))
    says("verify", "data", proof)


def test_reduce_scatter_judges_owners_only():
    rounds = [[Transfer(0, 1, 1, "reduce"), Transfer(1, 0, 0, "reduce")]]
    assert verify(mine(2, 2, rounds, kind="reduce_scatter")).ok
    assert not verify(mine(2, 2, rounds, kind="reduce_scatter", owners=(1, 0))).ok
    assert not verify(mine(2, 2, rounds)).ok


def test_state_after_each_round():
    proof = verify(ring(3))
    assert proof.state(0).ranks(0, 1) == (0,)
    assert proof.state(1).ranks(1, 2) == (0, 1)
    assert proof.state(2).ranks(2, 2) == (0, 1, 2)
    assert all(
        proof.state().ranks(rank, chunk) == (0, 1, 2) for rank in range(3) for chunk in range(3)
    )
    doubled = verify(ring_lists(3, gather="reduce")).state()
    assert members(doubled.twice[0][1]) == (0, 2)


@pytest.mark.parametrize(
    ("kind", "rounds", "index"),
    [
        ("self", [[Transfer(0, 1, 0, "reduce"), Transfer(1, 1, 0, "copy")]], (0, 1)),
        ("rank", [[Transfer(0, 9, 0, "reduce")]], (0, 0)),
        ("chunk", [[Transfer(0, 1, 9, "reduce")]], (0, 0)),
        ("conflict", [[Transfer(0, 2, 0, "copy"), Transfer(1, 2, 0, "reduce")]], (0, 1)),
        ("overwrite", [[Transfer(0, 1, 0, "copy"), Transfer(1, 2, 0, "reduce")]], (0, 0)),
        ("twice", [[Transfer(0, 1, 0, "reduce")], [Transfer(0, 1, 0, "reduce")]], (1, 0)),
        ("missing", [[Transfer(0, 1, 0, "copy")]], (0, 0)),  # what rank 1 had is wiped out
        ("missing", [[Transfer(0, 1, 0, "reduce")]], None),
    ],
)
def test_a_problem_names_the_transfer_that_is_wrong_unless_one_is_missing(kind, rounds, index):
    of_kind = [p for p in verify(mine(3, 1, rounds)).problems if p.kind == kind]
    blamed = rounds[index[0]][index[1]] if index else None
    assert blamed in [p.transfer for p in of_kind]
    assert index is None or all(p.round == index[0] for p in of_kind if p.transfer)


def test_problems_are_kept_within_bounds():
    proof = verify(mine(40, 40, []))
    assert len(proof.problems) == 20 and proof.left_out and "more" in str(proof)


def test_ranks_in_words():
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([0, 2]) == "ranks 0 and 2"
    assert ranks_text([0, 1, 2, 5]) == "ranks 0, 1, 2 and 5"
    assert ranks_text(range(7)) == "ranks 0 to 6"
