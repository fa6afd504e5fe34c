"""Exercises, with real processes: right answers are accepted, trainings are judged by their traces,
and a learner's notebook is checked whole.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from course_lib import start
from course_lib.collectives import Round, Schedule, Transfer, ring
from course_lib.course import check
from course_lib.course.answers import Verdict
from course_lib.course.grading import Bounds, grade
from tests.answers import Answers
from tests.conftest import gone_within
from tests.helpers import lockstep, until

ROOT = Path(__file__).parents[2]
EXERCISE = ROOT / "exercises" / "04_allreduce_from_scratch.ipynb"
SOLUTION = ROOT / "solutions" / EXERCISE.name
TASKS = ("reduce_to_one", "ring", "tree", "train", "hierarchical")
T = Transfer
Answer = Callable[..., Any]


# --- right answers, written in other ways than ours ---


def through_the_last(workers: int) -> Schedule:
    """Through the last rank instead of rank 0, with loops and plain tuples."""
    rounds: list[list[Any]] = [[], []]
    for rank in range(workers - 1):
        rounds[0].append((rank, workers - 1, 0, "reduce"))
        rounds[1].append((workers - 1, rank, 0, "copy"))
    return Schedule("through the last", workers, 1, rounds)  # type: ignore[arg-type]


def in_two_pieces(workers: int) -> Schedule:
    """Two chunks in each message, rounds as arrays."""
    others = [r for r in range(workers) if r]
    if not others:
        return Schedule("pieces", 1, 2, [])
    return Schedule(
        "pieces",
        workers,
        2,
        [Round(others, 0, 0, "reduce", span=2), Round(0, others, 0, "copy", span=2)],
    )


def to_the_left(workers: int) -> Schedule:
    """A ring that runs the other way, and begins elsewhere."""
    rounds: list[Any] = []
    for step in range(2 * (workers - 1)):
        op = "reduce" if step < workers - 1 else "copy"
        rounds.append(
            [T(r, (r - 1) % workers, (r + step + 3) % workers, op) for r in range(workers)]
        )  # type: ignore[arg-type]
    return Schedule("left", workers, workers, rounds)


def both_ways(workers: int) -> Schedule:
    """Two rings at once, each with half of the buffer, in opposite directions."""
    left = to_the_left(workers)
    # the other way round: ranks and chunks mirrored
    right = [
        [t._replace(src=-t.src % workers, dst=-t.dst % workers) for t in r] for r in left.rounds
    ]
    rounds = [
        [*a, *(t._replace(chunk=t.chunk + workers) for t in b)]
        for a, b in zip(right, left.rounds, strict=True)
    ]
    return Schedule("both ways", workers, 2 * workers, rounds)  # type: ignore[arg-type]


def other_seats(workers: int) -> Schedule:
    """The ranks in another order around the ring, the same rounds in both halves."""
    seats = [*range(0, workers, 2), *range(1, workers, 2)]
    rounds = [
        [
            T(
                seats[s - 1],
                seats[s],
                (s - 1 - i) % workers,
                "reduce" if i < workers - 1 else "copy",
            )
            for s in range(workers)
        ]
        for i in range(2 * (workers - 1))
    ]
    return Schedule("seats", workers, workers, rounds)  # type: ignore[arg-type]


def played_backwards(workers: int) -> Schedule:
    """The way down made from the way up."""
    up, gap = [], 1
    while gap < workers:
        up.append([T(r + gap, r, 0, "reduce") for r in range(0, workers - gap, 2 * gap)])
        gap *= 2
    return Schedule(
        "tree", workers, 1, up + [[T(t.dst, t.src, 0, "copy") for t in r] for r in up[::-1]]
    )  # type: ignore[arg-type]


def by_halves(workers: int) -> Schedule:
    """Each time the upper half of those who are left hands in: another tree with as many rounds."""
    up, left = [], workers
    while left > 1:
        keep = (left + 1) // 2
        up.append([T(r, r - keep, 0, "reduce") for r in range(keep, left)])
        left = keep
    return Schedule(
        "halves", workers, 1, up + [[T(t.dst, t.src, 0, "copy") for t in r] for r in reversed(up)]
    )  # type: ignore[arg-type]


def as_the_library_does(workers: int) -> Schedule:
    """The very schedule of the library's own ring, but written out."""

    def half(behind: int, op: Any) -> list[Any]:
        return [
            [T(r, (r + 1) % workers, (r - behind - i) % workers, op) for r in range(workers)]
            for i in range(workers - 1)
        ]

    made = Schedule("ring", workers, workers, half(1, "reduce") + half(0, "copy"))
    return made


assert as_the_library_does(5).digest == ring(5).digest
ANSWERS = Answers(EXERCISE.stem, sample=4)
for each in (through_the_last, in_two_pieces):
    ANSWERS.right("reduce_to_one")(each)
for each in (to_the_left, both_ways, other_seats, as_the_library_does):
    ANSWERS.right("ring")(each)
for each in (played_backwards, by_halves):
    ANSWERS.right("tree")(each)
test_a_right_answer_that_is_written_in_another_way_is_accepted = ANSWERS.accepted()


# --- hosts ---


def inside(members: Any, first: int, second: int, op: Any) -> list[list[Any]]:
    """A half of a ring in each of several groups; the chunk of member i is `first` + i at first."""
    size = len(members[0])
    return [
        [
            (m[i], m[(i + 1) % size], c * size + (i - step + first) % size, op)
            for m in members
            for i in range(size)
            for c in range(second)
        ]
        for step in range(size - 1)
    ]


def in_three_stages(workers: int, hosts: int) -> Schedule:
    """Rings inside, rings across, rings inside: every rank carries its own part across."""
    size = workers // hosts
    home = [[h * size + i for i in range(size)] for h in range(hosts)]
    rounds = inside(home, 0, hosts, "reduce")  # rank i of a host ends with part i + 1
    for step in range(2 * (hosts - 1)):
        op = "reduce" if step < hosts - 1 else "copy"
        rounds.append(
            [
                (
                    home[h][i],
                    home[(h + 1) % hosts][i],
                    (h - step) % hosts * size + (i + 1) % size,
                    op,
                )
                for h in range(hosts)
                for i in range(size)
            ]
        )
    rounds += inside(home, 1, hosts, "copy")
    return Schedule("stages", workers, workers, rounds).placed(hosts)


def last_leads(workers: int, hosts: int) -> Schedule:
    """The last rank of each host is its leader, which sends each other one a chunk."""
    size, many = workers // hosts, range(hosts)
    lead = [(h + 1) * size - 1 for h in many]
    others = [(r, lead[r // size]) for r in range(workers) if r not in lead]
    return Schedule(
        "last",
        workers,
        hosts,
        [
            [T(r, to, c, "reduce") for r, to in others for c in many],
            [T(lead[a], lead[b], b, "reduce") for a in many for b in many if a != b],
            [T(lead[a], lead[b], a, "copy") for a in many for b in many if a != b],
            [T(to, r, c, "copy") for r, to in others for c in many],
        ],
    )


def four_rounds(workers: int, hosts: int) -> Schedule:
    """Rank i of each host adds up part i there; the ranks i of all hosts exchange it."""
    size, many = workers // hosts, range(hosts)
    parts = range(size)
    inside = [
        (h * size + j, h * size + i, i * hosts + k)
        for h in many
        for i in parts
        for j in parts
        for k in many
        if i != j
    ]
    across = [(i, h, k) for i in parts for h in many for k in many if h != k]
    rounds = [
        [T(j, i, c, "reduce") for j, i, c in inside],
        [T(h * size + i, k * size + i, i * hosts + k, "reduce") for i, h, k in across],
        [T(h * size + i, k * size + i, i * hosts + h, "copy") for i, h, k in across],
        [T(i, j, c, "copy") for j, i, c in inside],
    ]
    return Schedule("four_rounds", workers, workers, rounds)


@pytest.mark.sample(3)
@pytest.mark.parametrize("answer", [in_three_stages, last_leads, four_rounds])
def test_a_hierarchical_all_reduce_within_its_budget_must_win_over_links(answer: Answer) -> None:
    verdict = check("hierarchical", answer)
    assert verdict, repr(verdict)
    assert "100 Mbit/s" in verdict.text


@pytest.mark.nightly
def test_one_that_has_the_links_wait_for_each_other_does_not_win() -> None:
    def in_turn(workers: int, hosts: int) -> Schedule:
        whole = last_leads(workers, hosts)
        return Schedule("in turn", workers, hosts, [[t] for r in whole.rounds for t in r])

    verdict = check("hierarchical", in_turn)
    assert "does not win" in verdict.text
    assert "stand idle" in verdict.hint


# --- trainings ---

FIELDS: dict[str, Any] = {"framework": "torch", "workers": 4, "steps": 60}


def trains(**changes: Any) -> Answer:
    def train(all_reduce: Any) -> Any:
        return start(
            "multi_worker_mirrored", **{**FIELDS, "all_reduce": all_reduce, **changes}
        ).wait(60)

    return train


def with_a_block(all_reduce: Any) -> Any:
    with start("multi_worker_mirrored", framework="torch", steps=60, all_reduce=all_reduce) as run:
        run.wait_running(60)
        run.wait()
    return run


def by_another_name(all_reduce: Any) -> Any:
    def sum_up(workers: int) -> Schedule:
        schedule: Schedule = all_reduce(workers)
        return schedule

    return trains(all_reduce=sum_up)(None)


@pytest.mark.parametrize("answer", [trains(), with_a_block, by_another_name])
def test_a_training_with_the_given_all_reduce_is_accepted(answer: Answer) -> None:
    verdict = check("train", answer)
    assert verdict, repr(verdict)
    assert "PyTorch's own all-reduce" in verdict.text


def nothing(all_reduce: Any) -> None:
    trains()(all_reduce)


def nothing_from_tensorflow(all_reduce: Any) -> None:
    trains(framework="tensorflow")(all_reduce)


def the_result(all_reduce: Any) -> Any:
    return trains()(all_reduce).result


def without_waiting(all_reduce: Any) -> Any:
    return start("multi_worker_mirrored", **FIELDS, all_reduce=all_reduce)


def stopped(all_reduce: Any) -> Any:
    return start("multi_worker_mirrored", **FIELDS, all_reduce=all_reduce).stop()


def called(all_reduce: Any) -> Any:
    return trains()(all_reduce(4))


def named(all_reduce: Any) -> Any:
    return trains()(all_reduce.__name__)


def two_arguments(all_reduce: Any, workers: int) -> Any:
    return trains()(all_reduce)


BAD_TRAININGS: list[tuple[Answer, str]] = [
    (trains(all_reduce=None), "not handed on"),
    (trains(all_reduce="ring"), "name of an all-reduce"),
    (trains(workers=2), "workers=4"),
    (trains(framework=None), "Pass framework='torch'"),
    (trains(steps=5), "steps=60"),
    (nothing, "Is `return` missing?"),
    (nothing_from_tensorflow, "thing: Pass framework='torch'"),
    (the_result, "a Result, not"),
    (without_waiting, ": .wait(60)"),
    (stopped, "is stopped, not finished"),
    (called, "the function itself"),
    (named, "not its name"),
    (two_arguments, "with one thing"),
]


@pytest.mark.parametrize(("answer", "says"), BAD_TRAININGS, ids=[says for _, says in BAD_TRAININGS])
def test_a_training_that_is_not_what_was_asked_for_is_rejected_with_its_mistake(
    answer: Answer, says: str
) -> None:
    verdict = check("train", answer)
    assert verdict.state == "not yet"
    assert says in repr(verdict), repr(verdict)
    assert "raises" not in verdict.text, "the mistake comes before what Python says"


# --- a whole notebook ---


def answered(path: Path, answers: dict[str, str]) -> Path:
    """The exercise with the sources of some cells replaced, by their ids."""
    notebook = nbformat.read(EXERCISE, as_version=4)
    assert set(answers) <= {cell.id for cell in notebook.cells}
    for cell in notebook.cells:
        cell.source = answers.get(cell.id, cell.source)
    nbformat.write(notebook, path)
    return path


def solved(*ids: str) -> dict[str, str]:
    """The answers of the solution, by the ids of their cells."""
    cells = nbformat.read(SOLUTION, as_version=4).cells
    return {cell.id: cell.source for cell in cells if cell.id in ids}


def states(verdicts: list[Verdict]) -> list[str]:
    assert [v.task for v in verdicts] == list(TASKS)
    return [v.state for v in verdicts]


def test_a_notebook_with_half_of_the_answers_gives_half_and_leaves_nothing_behind(
    tmp_path: Path, home: Path
) -> None:
    """With helpers and magics of the learner's own, and a process that one of the cells starts."""
    helper = (
        "%timeit -n1 -r1 sum(range(3))\ndef right(rank, workers):\n    return (rank + 1) % workers"
    )
    process = (
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time;"
        " time.sleep(600)'])"
    )
    ring = solved("answer-ring")["answer-ring"].replace("(r + 1) % workers,", "right(r, workers),")
    assert "right(r, workers)" in ring
    mine = {
        "imports": solved("imports")["imports"] + "\n" + process,
        "answer-ring": f"{helper}\n{ring}",
        **solved("answer-reduce-to-one"),
    }
    done = lockstep(
        "check", str(answered(tmp_path / "mine.ipynb", mine)), "--json", home=home, seconds=170
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert {t["task"]: t["state"] for t in found} == dict(
        zip(TASKS, ("passed", "passed", "to do", "to do", "to do"), strict=True)
    )
    assert gone_within(str(home), 30.0) == []


def test_the_solution_passes_its_own_check(home: Path) -> None:
    done = lockstep("check", str(SOLUTION), home=home, seconds=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 of 5 passed" in done.stdout
    assert gone_within(str(home), 30.0) == []


def test_what_is_no_exercise_is_bad_input(home: Path) -> None:
    done = lockstep(
        "check", str(ROOT / "notebooks" / "03_synchronous_training.ipynb"), home=home, seconds=170
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("lockstep: notebook=")
    assert "no exercise" in done.stderr


def test_the_exercises_are_made_by_one_command(tmp_path: Path, home: Path) -> None:
    done = lockstep("exercises", "--out", str(tmp_path), home=home, seconds=170)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / EXERCISE.name).read_bytes() == EXERCISE.read_bytes()


def test_answers_that_go_wrong_in_any_way_cost_no_other_answer_its_check(tmp_path: Path) -> None:
    """One never ends and lets nothing interrupt it, one ends the process, one fills the memory; the
    one in between is right.
    """
    mute = "import signal\nsignal.signal(signal.SIGPROF, signal.SIG_IGN)\n"
    broken = {
        "answer-reduce-to-one": (
            f"def my_reduce_to_one(workers):\n    {mute.replace(chr(10), chr(10) + '    ')}while"
            " True: pass"
        ),
        "answer-tree": "import os\ndef my_tree(workers):\n    os._exit(3)",
        "answer-train": (
            "def train(all_reduce):\n    kept = []\n    while True:\n       "
            " kept.append(bytearray(1 << 20))"
        ),
    }
    path = answered(tmp_path / "mine.ipynb", {**solved("answer-ring"), **broken})
    verdicts = grade(path, Bounds(computing=10, memory=1 << 30))
    assert states(verdicts) == ["not yet", "passed", "not yet", "not yet", "to do"]
    texts = [v.text for v in verdicts]
    assert "reduce_to_one computed" in texts[0]
    assert "tree ended" in texts[2]
    assert "train took more" in texts[3]


def test_a_cell_that_fails_or_never_ends_is_named_with_the_answer_that_it_cost(
    tmp_path: Path,
) -> None:
    broken = {
        "answer-ring": "1 / 0\ndef my_ring(workers):\n    pass",
        "answer-tree": "while True:\n    pass",
        "answer-train": "def train(all_reduce)\n    pass",
    }
    path = answered(tmp_path / "mine.ipynb", {**solved("answer-reduce-to-one"), **broken})
    verdicts = grade(path)
    assert states(verdicts) == ["passed", "not yet", "not yet", "not yet", "to do"]
    texts = [v.text for v in verdicts]
    assert "no my_ring" in texts[1]
    assert "ZeroDivisionError" in texts[1]
    assert "computed for more than" in texts[2]
    assert "raises SyntaxError" in texts[3]


def test_cells_that_end_the_process_are_told_once_for_all_answers(tmp_path: Path) -> None:
    path = answered(tmp_path / "mine.ipynb", {"answer-ring": "import os\nos._exit(7)"})
    verdicts = grade(path)
    assert states(verdicts) == ["not yet"] * 5
    assert {v.text for v in verdicts} == {"Running the cells of the notebook ended its process."}


def test_a_check_that_is_killed_leaves_no_process_and_no_folder(tmp_path: Path, home: Path) -> None:
    sleeps = "import pathlib, time\npathlib.Path('runs').touch()\ntime.sleep(600)"
    path = answered(tmp_path / "mine.ipynb", {"answer-ring": sleeps})
    command = [sys.executable, "-m", "course_lib", "check", str(path)]
    with tempfile.TemporaryDirectory() as place:  # a socket in it must have a short name
        environment = {**os.environ, "LOCKSTEP_HOME": str(home), "TMPDIR": place}
        with subprocess.Popen(command, env=environment) as process:
            until((tmp_path / "runs").exists, "the cell to run, in the directory of the notebook")
            assert list(Path(place).iterdir())
            process.kill()
        assert gone_within(str(home), 30.0) == []
        assert list(Path(place).iterdir()) == []
