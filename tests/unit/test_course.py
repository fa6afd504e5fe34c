"""Checks of exercises: wrong answers that people give, and whether each is told by its name; hints;
exercises made from solutions.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from course_lib.collectives import (
    Schedule,
    Transfer,
    direct,
    halving_doubling,
    reduce_to_one,
    ring,
    tree,
)
from course_lib.course import check, hint
from course_lib.course.generate import PLACE, STUB, exercise_text, generate, without_answers
from course_lib.course.limits import TookTooLong, bounded
from course_lib.course.notebook import read
from course_lib.course.sets import sets
from course_lib.errors import SpecError, Unavailable

ROOT = Path(__file__).parents[2]
EXERCISES = sets()
TASKS = [task.name for tasks in EXERCISES.values() for task in tasks]
T = Transfer
Answer = Callable[..., Any]
WRONG: list[tuple[str, Answer, str]] = []


def wrong(task: str, says: str) -> Callable[[Answer], Answer]:
    """A wrong answer to a task, with what its verdict must say; its name is what somebody did."""

    def add(answer: Answer) -> Answer:
        WRONG.append((task, answer, says))
        return answer

    return add


def star(workers: int, up: Any, down: Any, **fields: Any) -> Schedule:
    return Schedule("mine", workers, **{"chunks": 1, "rounds": [up, down], **fields})


def gather(workers: int) -> list[Transfer]:
    return [T(r, 0, 0, "reduce") for r in range(1, workers)]


def spread(workers: int) -> list[Transfer]:
    return [T(0, r, 0, "copy") for r in range(1, workers)]


# --- reduce_to_one ---


@wrong(
    "reduce_to_one",
    "The answer is never sent back. After 1 round the sums are complete (chunk 0 on rank 0)",
)
def one_way(workers: int) -> Schedule:
    return star(workers, gather(workers), [])


@wrong("reduce_to_one", "Round 1 adds where it should copy: rank 0 sends rank 1 a finished sum")
def adds_back(workers: int) -> Schedule:
    return star(workers, gather(workers), [t._replace(op="reduce") for t in spread(workers)])


@wrong(
    "reduce_to_one",
    "Round 0 copies where it should add: what rank 1 sends takes the place of rank 0's own"
    " gradient",
)
def copies_first(workers: int) -> Schedule:
    return star(workers, [t._replace(op="copy") for t in gather(workers)], spread(workers))


@wrong("reduce_to_one", "A rank sends to itself")
def with_rank_0(workers: int) -> Schedule:
    return star(
        workers,
        [T(r, 0, 0, "reduce") for r in range(workers)],
        [T(0, r, 0, "copy") for r in range(workers)],
    )


@wrong("reduce_to_one", "Adding and copying stand in one round")
def one_round(workers: int) -> Schedule:
    return Schedule("mine", workers, 1, [gather(workers) + spread(workers)])


@wrong(
    "reduce_to_one",
    "It works for 4 workers and for no others: is a 4 (or 3) written where `workers` should stand?",
)
def four_only(workers: int) -> Schedule:
    return star(workers, gather(4), spread(4))


@wrong("reduce_to_one", "It works for 4 workers and for no others")
def always_four(workers: int) -> Schedule:
    return star(4, gather(4), spread(4))


@wrong(
    "reduce_to_one",
    "For 3 workers rank 2 takes part in no transfer. range(1, workers) ends with workers - 1",
)
def without_the_last(workers: int) -> Schedule:
    return star(workers, gather(workers - 1), spread(workers - 1))


@wrong("reduce_to_one", "Sender and receiver are exchanged on the way back")
def back_to_front(workers: int) -> Schedule:
    return star(workers, gather(workers), [T(r, 0, 0, "copy") for r in range(1, workers)])


@wrong("reduce_to_one", "is `return` missing?")
def no_return(workers: int) -> None:
    star(workers, gather(workers), spread(workers))


@wrong("reduce_to_one", "These are the rounds alone. Wrap them")
def rounds_only(workers: int) -> Any:
    return [gather(workers), spread(workers)]


@wrong("reduce_to_one", "It takes 8 rounds where 2 are enough")
def chain(workers: int) -> Schedule:
    up = [[T(r, r - 1, 0, "reduce")] for r in reversed(range(1, workers))]
    return Schedule("mine", workers, 1, up + [[T(r, r + 1, 0, "copy")] for r in range(workers - 1)])


@wrong("reduce_to_one", "It takes 40 messages where 8 are enough")
def everyone_to_everyone(workers: int) -> Schedule:
    return direct(workers)


# --- ring ---


def around(
    p: int,
    first: Any,
    second: Any,
    hops: tuple[int, int] | None = None,
    ops: Any = ("reduce", "copy"),
    n: int | None = None,
) -> Any:
    """A ring to the right: `first(r, i)` and `second(r, i)` are the chunks of its halves, before %
    P.
    """
    before, after = hops or (p - 1, p - 1)
    n = n or p
    half = [[T(r, (r + 1) % n, first(r, i) % n, ops[0]) for r in range(n)] for i in range(before)]
    return half + [
        [T(r, (r + 1) % n, second(r, i) % n, ops[1]) for r in range(n)] for i in range(after)
    ]


def falls(r: int, i: int) -> int:
    return r - i


def falls_later(r: int, i: int) -> int:
    return r + 1 - i


@wrong(
    "ring",
    "Whole buffers are passed: a rank sends all S bytes in a round instead of S/P (here S/3)",
)
def whole_buffers(workers: int) -> Schedule:
    return Schedule("mine", workers, 1, around(workers, lambda r, i: 0, lambda r, i: 0))


@wrong("ring", "Whole buffers are passed")
def chain_there_and_around(workers: int) -> Schedule:
    """Right sums, but one rank at a time with everything."""
    up = [[T(r, r + 1, 0, "reduce")] for r in range(workers - 1)]
    return Schedule(
        "mine", workers, 1, up + [[T((r - 1) % workers, r, 0, "copy")] for r in range(workers - 1)]
    )


@wrong("ring", "The all-gather is missing: 1 round of 2")
def half_a_ring(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, falls, falls, (workers - 1, 0)))


@wrong("ring", "Round 1 adds where it should copy")
def adds_all_the_way(workers: int) -> Schedule:
    return Schedule(
        "mine", workers, workers, around(workers, falls, falls_later, ops=("reduce", "reduce"))
    )


@wrong("ring", "Round 0 copies where it should add")
def copies_all_the_way(workers: int) -> Schedule:
    return Schedule(
        "mine", workers, workers, around(workers, falls, falls_later, ops=("copy", "copy"))
    )


@wrong(
    "ring",
    "The second half begins with the wrong chunk (off by one): in round 1 rank 0 sends chunk 0,"
    " which it has not finished",
)
def off_by_one(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, falls, falls))


@wrong(
    "ring",
    "The chunks go the wrong way round: in round 1 rank 0 sends chunk 1, but what it received in"
    " round 0 is chunk 2",
)
def wrong_way_round(workers: int) -> Schedule:
    return Schedule(
        "mine", workers, workers, around(workers, lambda r, i: r + i, lambda r, i: r + 1 + i)
    )


@wrong("ring", "A number runs over the end")
def without_modulo(workers: int) -> Schedule:
    rounds = [
        [T(r, r + 1, (r - i) % workers, "reduce") for r in range(workers)]
        for i in range(workers - 1)
    ]
    rounds += [
        [T(r, r + 1, (r + 1 - i) % workers, "copy") for r in range(workers)]
        for i in range(workers - 1)
    ]
    return Schedule("mine", workers, workers, rounds)


@wrong("ring", "It works for 4 workers and for no others")
def ring_of_four(workers: int) -> Schedule:
    return Schedule("mine", workers, max(4, workers), around(4, falls, falls_later))


@wrong("ring", "The half that adds has 2 rounds for 2 workers; it takes P-1 = 1")
def one_hop_too_many(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, falls, falls, (workers, workers - 1)))


@wrong("ring", "The half that copies has 1 round for 3 workers; it takes P-1 = 2")
def one_hop_too_few(workers: int) -> Schedule:
    return Schedule(
        "mine",
        workers,
        workers,
        around(workers, falls, falls_later, (workers - 1, min(1, workers - 1))),
    )


@wrong("ring", "set chunks=workers")
def one_chunk_declared(workers: int) -> Schedule:
    return Schedule("mine", workers, 1, around(workers, falls, falls_later))


@wrong("ring", "It takes 40 rounds, with one transfer each; 8 are enough")
def one_transfer_a_round(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, [[t] for t in itertools.chain(*ring(workers).rounds)])


@wrong("ring", "This is no ring: a rank talks to 4 others")
def all_to_all(workers: int) -> Schedule:
    return direct(workers)


@wrong("ring", "This is no ring: a rank talks to")
def another_that_sends_as_little(workers: int) -> Schedule:
    return halving_doubling(workers)


@wrong(
    "ring",
    "never_ends(2) had not come back after 5 seconds of computing. Does a loop in it never end?",
)
def never_ends(workers: int) -> Schedule:
    while workers > 1:
        pass
    return ring(workers)


@wrong(
    "ring",
    "another schedule when it is called a second time. Is there a list that outlives the call?",
)
def grows(workers: int, rounds: list[Any] = []) -> Schedule:  # noqa: B006  # the mistake
    rounds += around(workers, falls, falls_later)
    return Schedule("mine", workers, workers, rounds)


@wrong("ring", "wants_hosts_too must take the number of workers and nothing else")
def wants_hosts_too(workers: int, hosts: Any) -> Schedule:
    return ring(workers)


@wrong("ring", "it raises ZeroDivisionError: integer modulo by zero (line")
def divides_by_one_less(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, [[T(0, 1 % (workers - 1), 0, "reduce")]])


@wrong("ring", "a whole number (divide with //, not /)")
def halves_with_a_slash(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, [[T(0, workers / 2, 0, "reduce")]])  # type: ignore[arg-type]


# --- tree ---


def binomial(
    workers: int, up: Any, down: Any, op: Any = "copy", count: int | None = None
) -> Schedule:
    """The tree of the exercise; `up` and `down` put the gaps in order."""
    gaps = [2**k for k in range((workers - 1).bit_length() if count is None else count)]
    rounds = [
        [T(r, r - gap, 0, "reduce") for r in range(gap, workers, 2 * gap)] for gap in up(gaps)
    ]
    rounds += [[T(r - gap, r, 0, op) for r in range(gap, workers, 2 * gap)] for gap in down(gaps)]
    return Schedule("mine", workers, 1, rounds)


def back(gaps: list[int]) -> list[int]:
    return gaps[::-1]


@wrong("tree", "The way down runs in the same order as the way up")
def unchanged(workers: int) -> Schedule:
    return binomial(workers, list, list)


@wrong("tree", "Both ways run in the wrong order")
def turned_the_way_up(workers: int) -> Schedule:
    return binomial(workers, back, list)


@wrong("tree", "The way up runs in the wrong order")
def turned_both(workers: int) -> Schedule:
    return binomial(workers, back, back)


@wrong("tree", "The answer is never sent back")
def no_way_down(workers: int) -> Schedule:
    return binomial(workers, list, lambda gaps: [])


@wrong("tree", "Round 1 adds where it should copy")
def adds_on_the_way_down(workers: int) -> Schedule:
    return binomial(workers, list, back, op="reduce")


@wrong("tree", "Only powers of two come out right")
def powers_of_two_only(workers: int) -> Schedule:
    return binomial(workers, list, back, count=workers.bit_length() - 1)


@wrong("tree", "In one round a rank has 4 messages")
def star_down(workers: int) -> Schedule:
    up = binomial(workers, list, lambda gaps: []).rounds
    return Schedule("mine", workers, 1, [*up, spread(workers)])  # type: ignore[list-item]


@wrong("tree", "It is right for 1, 2, 3, 4, 5, 6, 7 workers")
def down_twice(workers: int) -> Schedule:
    """The same way down once more: that helps up to seven workers."""
    return binomial(workers, list, lambda gaps: gaps * 2)


@wrong("tree", "It takes 12 rounds; the tree takes 2⌈lg P⌉ = 6")
def down_until_it_is_right(workers: int) -> Schedule:
    return binomial(workers, list, lambda gaps: gaps * 3)


@wrong("tree", "it is not complete yet")
def two_farthest_first(workers: int) -> Schedule:
    """Turns the way down by its first and last round only, which does for up to eight workers."""
    return binomial(
        workers, list, lambda gaps: [gaps[-1], *gaps[1:-1], gaps[0]] if len(gaps) > 1 else gaps
    )


@wrong("tree", "In one round a rank has 2 messages")
def another_all_reduce(workers: int) -> Schedule:
    return ring(workers)


@wrong("tree", "It takes 7 rounds; the tree takes 2⌈lg P⌉ = 6")
def one_after_the_other_down(workers: int) -> Schedule:
    up = binomial(workers, list, lambda gaps: []).rounds
    return Schedule("mine", workers, 1, [*up, *([t] for t in spread(workers))])  # type: ignore[list-item]


# --- what is said ---


@pytest.mark.parametrize(
    ("task", "answer", "says"),
    WRONG,
    ids=[f"{task}-{answer.__name__}" for task, answer, _ in WRONG],
)
def test_a_wrong_answer_is_rejected_in_words_that_name_its_mistake(
    task: str, answer: Answer, says: str
) -> None:
    verdict = check(task, answer)
    assert (verdict.state, bool(verdict)) == ("not yet", False)
    assert says in repr(verdict), repr(verdict)


@pytest.mark.parametrize("task", [name for name in TASKS if name != "train"])
def test_each_task_has_at_least_six_different_wrong_answers_here_that_are_told_apart(
    task: str,
) -> None:
    assert len({says for name, _, says in WRONG if name == task}) >= 6


def test_a_wrong_answer_is_shown_in_the_smallest_case_that_fails_with_its_rounds() -> None:
    text = check("tree", unchanged).text
    assert text.startswith(
        "unchanged is wrong for 4 workers:\nrank 3 receives chunk 0 for the last time in round 2,"
        " from rank 2"
    )
    assert "It is right for 1, 2, 3 workers." in text
    assert text.endswith(
        "(+ adds, = replaces):\n  0: 1→0 +c0, 3→2 +c0\n  1: 2→0 +c0\n  2: 0→1 =c0, 2→3 =c0\n  3:"
        " 0→2 =c0"
    )


def broken_once(
    algorithm: Answer, workers: int, number: int, index: int, instead: list[Transfer]
) -> Answer:
    """An algorithm in which, for one number of workers, one transfer is replaced by others."""

    def broken(n: int) -> Schedule:
        schedule: Schedule = algorithm(n)
        rounds = [list(r) for r in schedule.rounds]
        if n == workers:
            rounds[number][index : index + 1] = instead
        return Schedule("broken", n, schedule.chunks, rounds)  # type: ignore[arg-type]

    return broken


@pytest.mark.parametrize(
    ("task", "algorithm"), [("reduce_to_one", reduce_to_one), ("ring", ring), ("tree", tree)]
)
def test_one_wrong_transfer_for_one_number_of_workers_is_always_found_and_told(
    task: str, algorithm: Answer
) -> None:
    """Dropped, doubled, with the other op, to a rank or with a chunk that is not there: every
    fourth transfer for six workers.
    """
    listed = [
        (number, index, t)
        for number, r in enumerate(algorithm(6).rounds)
        for index, t in enumerate(r)
    ][::4]
    for number, index, t in listed:
        flipped = t._replace(op="copy" if t.op == "reduce" else "reduce")
        for instead in (
            [],
            [t, t],
            [flipped],
            [t._replace(dst=6)],
            [t._replace(chunk=6)],
            [t._replace(dst=-1)],
        ):
            verdict = check(task, broken_once(algorithm, 6, number, index, instead))
            assert verdict.state == "not yet"
            assert verdict.text.startswith("broken is wrong for 6 workers:"), (t, instead)


@pytest.mark.parametrize(
    ("answer", "says"), [(ring(4), "This is of type Schedule."), (None, "This is None.")], ids=str
)
@pytest.mark.parametrize("task", TASKS)
def test_what_is_no_function_is_told_how_to_ask(task: str, answer: Any, says: str) -> None:
    verdict = check(task, answer)
    assert verdict.state == "not yet"
    assert f"{says} Give the function itself" in verdict.text


@pytest.mark.parametrize("task", TASKS)
def test_a_stub_is_no_mistake_but_still_to_do(task: str) -> None:
    def stub(_: Any) -> Any:
        raise NotImplementedError("your turn")

    verdict = check(task, stub)
    assert (verdict.state, bool(verdict)) == ("to do", False)


def test_an_unknown_task_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(SpecError, match="did you mean 'ring'"):
        check("rign", ring)
    with pytest.raises(SpecError, match="did you mean 'tree'"):
        hint("treee")


@pytest.mark.parametrize("task", TASKS)
def test_there_are_three_hints_and_each_call_gives_the_next_one(task: str) -> None:
    given = [repr(hint(task)) for _ in range(4)]
    assert [text[:11] for text in given] == [
        "Hint 1 of 3",
        "Hint 2 of 3",
        "Hint 3 of 3",
        "Hint 3 of 3",
    ]
    assert len(set(given)) == 3
    assert given[1] == hint(task, level=2)
    with pytest.raises(SpecError, match="1 to 3"):
        hint(task, level=4)


# --- where the checks are ---

TOY = """
from course_lib.course.task import Task, Verdict

def judge(task, answer):
    return Verdict(task, "passed" if answer() == 7 else "not yet", "It returns 7.")

TASKS = (Task("seven", "seven", ("a", "b", "c"), judge),)
"""


@pytest.fixture
def other_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place of its own for the checks of exercises; there is nothing yet."""
    monkeypatch.setattr("course_lib.course.sets.CHECKS", tmp_path / "checks")
    sets.cache_clear()
    yield tmp_path / "checks"
    sets.cache_clear()


def test_a_new_set_is_found_by_its_file_alone(other_checks: Path) -> None:
    other_checks.mkdir()
    (other_checks / "__init__.py").touch()
    (other_checks / "99_toy.py").write_text(TOY)
    assert check("seven", lambda: 7)
    assert not check("seven", lambda: 8)
    assert [(name, [t.name for t in tasks]) for name, tasks in sets().items()] == [
        ("99_toy", ["seven"])
    ]


def test_without_the_checks_the_cure_is_said(other_checks: Path) -> None:
    with pytest.raises(Unavailable, match=r"no folder .*checks.*pip install -e \."):
        check("ring", ring)


def test_no_two_tasks_have_one_name() -> None:
    assert len(TASKS) == len(set(TASKS))


# --- bounds on computing ---


def compute(seconds: float) -> None:
    """Use up processor time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_block_that_computes_too_long_is_ended_and_one_that_does_not_is_left_alone() -> None:
    with pytest.raises(TookTooLong, match=r"0\.05 seconds"), bounded(0.05):
        compute(5)
    with bounded(5):
        compute(0.05)
    compute(0.1)  # nothing rings afterwards


@pytest.mark.parametrize("inner", [0.02, 5.0])
def test_the_bound_of_an_outer_block_holds_after_an_inner_one(inner: float) -> None:
    with pytest.raises(TookTooLong, match=r"0\.1 seconds"), bounded(0.1):
        with contextlib.suppress(TookTooLong), bounded(inner):
            compute(0.05)
        compute(5)


@pytest.mark.parametrize("inner", [0.3, 5.0])
def test_the_bound_of_an_outer_block_holds_inside_an_inner_one(inner: float) -> None:
    with pytest.raises(TookTooLong, match=r"0\.1 seconds"), bounded(0.1), bounded(inner):
        compute(5)


def test_a_bound_that_is_swallowed_is_raised_again() -> None:
    with pytest.raises(TookTooLong), bounded(0.05):
        with contextlib.suppress(TookTooLong):
            compute(5)
        compute(5)


# --- exercises from solutions ---


@pytest.mark.parametrize(
    "solution", sorted((ROOT / "solutions").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_the_exercise_is_what_its_solution_gives(solution: Path) -> None:
    """Else: `lockstep exercises` makes it anew."""
    assert (ROOT / "exercises" / solution.name).read_text(encoding="utf-8") == exercise_text(
        solution
    )


def test_every_exercise_has_a_solution_and_tasks() -> None:
    names = {path.stem for path in (ROOT / "exercises").glob("*.ipynb")}
    assert names == {path.stem for path in (ROOT / "solutions").glob("*.ipynb")} == set(EXERCISES)


@pytest.mark.parametrize("name", EXERCISES)
def test_an_exercise_holds_no_answer_no_hidden_test_and_no_output(name: str) -> None:
    made = nbformat.read(ROOT / "exercises" / f"{name}.ipynb", as_version=4)
    nbformat.validate(made)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert not any(
        word in cell.source for cell in code for word in ("### BEGIN", "### END", "assert verdict")
    )
    assert sum(STUB in cell.source for cell in code) == len(EXERCISES[name])


@pytest.mark.parametrize("name", EXERCISES)
def test_a_check_runs_the_cells_that_define_answers_and_none_that_only_look(name: str) -> None:
    for directory in ("exercises", "solutions"):
        notebook = read(ROOT / directory / f"{name}.ipynb")
        defined = "\n".join(source for _, source in notebook.cells)
        assert notebook.tasks == EXERCISES[name]
        assert all(f"def {task.answer}(" in defined for task in notebook.tasks)
        assert "check(" not in defined


def test_an_answer_becomes_a_stub_and_a_hidden_test_nothing() -> None:
    source = """def f(x):
    y = 2 * x
    ### BEGIN SOLUTION
    if y:
        return y
    ### END SOLUTION


### BEGIN SOLUTION
z = f(1)
### END SOLUTION
print(z)
### BEGIN HIDDEN TESTS
assert z == 2
### END HIDDEN TESTS"""
    assert (
        without_answers(source, "here")
        == f"def f(x):\n    y = 2 * x\n    {STUB}\n\n\n{PLACE}\nprint(z)"
    )


@pytest.mark.parametrize(
    "source",
    [
        "### BEGIN SOLUTION\nx = 1",
        "### END SOLUTION",
        "### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION",
        "### BEGIN SOLUTION\n### END HIDDEN TESTS",
    ],
)
def test_markers_that_do_not_match_are_refused_with_their_cell(source: str) -> None:
    with pytest.raises(SpecError, match=r"\(lesson.ipynb, cell 7\)"):
        without_answers(source, "lesson.ipynb, cell 7")


def test_a_cell_with_nothing_but_hidden_tests_is_left_out_and_the_others_keep_their_ids(
    tmp_path: Path,
) -> None:
    cell = nbformat.v4.new_code_cell
    hidden = cell("### BEGIN HIDDEN TESTS\nassert True\n### END HIDDEN TESTS", id="hidden")
    plain = cell(
        "1 + 1", id="plain", execution_count=3, outputs=[nbformat.v4.new_output("stream", text="2")]
    )
    (tmp_path / "out").mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=[plain, hidden]), tmp_path / "x.ipynb")
    (written,) = generate(tmp_path, tmp_path / "out")
    made = nbformat.read(written, as_version=4)
    assert [(c.id, c.outputs, c.execution_count) for c in made.cells] == [("plain", [], None)]
    with pytest.raises(SpecError, match="a directory with notebooks"):
        generate(tmp_path / "out" / "none", tmp_path)


def test_what_is_no_exercise_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        read(tmp_path / "none.ipynb")
    (tmp_path / "text.ipynb").write_text("no notebook")
    with pytest.raises(SpecError, match="cannot be read as a notebook"):
        read(tmp_path / "text.ipynb")
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "other.ipynb")
    with pytest.raises(
        SpecError, match="is no exercise of this course; there are 04_allreduce_from_scratch"
    ):
        read(tmp_path / "other.ipynb")
