"""Odd inputs of every kind: always an error of ours that names the field, option or file, never a
traceback, and never a process. `LOCKSTEP_FUZZ=10000 pytest tests/unit/test_fuzz.py
tests/unit/test_damaged_runs.py` tries that many of each.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib import launch
from course_lib.__main__ import app, main
from course_lib.cluster import nursery
from course_lib.cluster.node import Node
from course_lib.cluster.pipes import LONGEST, pair
from course_lib.cluster.roster import Agenda, Roster
from course_lib.cluster.supervisor import Supervisor
from course_lib.collectives import ring
from course_lib.course.grading import read
from course_lib.course.handed_in import plain, rebuilt
from course_lib.course.instructors import exercise_text
from course_lib.errors import LockstepError, SpecError, Unavailable
from course_lib.record.rundir import create
from course_lib.spec.faults import Fault
from course_lib.spec.fields import Jitter, Link
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import catalog
from tests.helpers import JSON, fuzzed

ROOT = Path(__file__).parents[2]
EXERCISE = ROOT / "exercises" / "04_allreduce_from_scratch.ipynb"


class Began(LockstepError):
    """Raised where a run would begin."""


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Where processes would be started, `Began` is raised; files go to a place of their own."""

    def begin(*_: Any, **__: Any) -> Any:
        raise Began("a run")

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a process was started")

    monkeypatch.setattr(launch, "Run", begin)
    for place in ("racing.race.Run", "strategies.trial.Run", "course.grading.Run"):
        monkeypatch.setattr(f"course_lib.{place}", begin)
    monkeypatch.setattr("course_lib.reduction.measure.start", begin)
    monkeypatch.setattr(nursery, "popen", never)
    monkeypatch.setattr(os, "execve", begin)
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXERCISE, "mine.ipynb")
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    yield


class Odd:
    """An object that nobody expects."""

    def __repr__(self) -> str:
        return "an odd\nobject"


STATES = st.sampled_from(["running", "done", "failed", "starting", "killed", 3, -1, 2**80])
TASKS = st.sampled_from(
    ["worker:0", "worker:1", "worker:99", "ps:0", "chief:0", "worker", "", "host:1"]
)
ODD = st.one_of(
    JSON,
    st.sampled_from(
        [
            *(Odd(), Odd, len, Link(mbit=5), ring(4), RunSpec(), Path("x"), b"x", np.int64(3)),
            *(np.float32(2.5), np.ones(3), {1, 2}, (1, 2), 1j, range(3), ..., 10**400),
        ]
    ),
    st.dictionaries(st.integers(-2, 3) | TASKS, JSON | st.just(Link(mbit=5)), max_size=3),
)
USUAL: dict[str, list[Any]] = {
    "strategy": [*catalog.STRATEGIES, "work()"],
    "framework": ["tensorflow", "torch", "python"],
    "workers": [1, 2, 3, 8, 200, 256],
    "replicas": [1, 2, 64],
    "accumulate": [1, 2, 1024],
    "global_batch": [1, 64, 96, 4096],
    "hosts": [1, 2, 3],
    "link": [
        *(Link(mbit=5), {"mbit": 5}, {1: Link(mbit=5)}, {"mbit": -1}, {"*": 3, 1: Link(mbit=5)}),
        *({1: {2: 3}}, {"1": {"mbit": 5}}, {-1: Link()}, {}),
    ],
    "placement": [{"worker:0": 0, "worker:1": 1}, {"worker:0": 300}],
    "slow": [4, {"worker:1": 4}, {"worker:1": 0.5}, {"ps:0": 2}],
    "jitter": ["exponential:20ms", "lognormal:0.5", "=", "worker:1=one_in:3:5ms", {"worker:0": 3}],
    "workload": ["digits", "wide", "tiny_gpt", "x.py:y", "a" * 300 + ".py:x", "\0.py:x", ".py"],
    "sizes": [{"parameters": 2000}, {"layers": 1}, {"heads": 5}, "width=32", "=", {"layers": "x"}],
    "all_reduce": ["native", "ring", "rnig", ring, lambda workers: ring(workers), lambda: 3],
    "steps": [1, 60],
    "warmup_steps": [0, 70],
    "run_dir": ["\0", "a" * 300, "/dev/null", "/dev/null/below"],
    "precision": ["bfloat16", "float16"],
    "loss_scale": ["dynamic", 128],
    "optimizer": ["adamw", "sgd"],
    "faults": ["kill worker:1 at step 3", ["pause worker:0 at 2s for 1s", 3], "cut host:1 at 1s"],
    "resume": ["\0", "a" * 300, ".", "/dev/null"],
}
NAMES = [*RunSpec.model_fields, "wrkers", "", "self", "what"]


def one_field(name: str) -> st.SearchStrategy[tuple[str, Any]]:
    usual = st.sampled_from(USUAL[name]) if name in USUAL else st.integers(0, 10)
    return st.tuples(st.just(name), usual | usual | ODD)


FIELDS = st.lists(st.sampled_from(NAMES).flatmap(one_field), max_size=6).map(dict)


@fuzzed(400)
@given(FIELDS)
def test_a_spec_is_made_or_refused_by_a_field_and_can_be_read_back(fields: dict[str, Any]) -> None:
    try:
        spec = RunSpec(**{name: value for name, value in fields.items() if name != "self"})
    except SpecError as error:
        assert_named(error)
    else:
        again = RunSpec.model_validate_json(spec.model_dump_json())
        assert again.model_dump_json() == spec.model_dump_json()
        complete = spec.complete()
        assert RunSpec.model_validate_json(complete.model_dump_json()) == complete


def assert_named(error: LockstepError) -> None:
    """An error of one line that names what is wrong."""
    assert "\n" not in str(error), str(error)
    assert len(str(error)) < 2000
    if isinstance(error, SpecError):
        assert error.field and error.allowed


WHATS = st.one_of(
    st.sampled_from([*catalog.STRATEGIES, *catalog.STRATEGIES, "nonesuch", RunSpec(), len]),
    st.sampled_from([{"worker": len}, {"worker": len, "ps": len}, {"other": len}, {}, [], None]),
    ODD,
)


@fuzzed(400)
@given(WHATS, FIELDS)
def test_a_run_is_refused_by_a_field_before_anything_starts(
    what: Any, fields: dict[str, Any]
) -> None:
    fields.pop("what", None)
    try:
        launch.start(what, **fields)
    except (SpecError, Unavailable) as error:
        assert_named(error)
    except Began:
        pass


@pytest.mark.parametrize(
    ("what", "fields", "field"),
    [
        ("multi_worker_mirrored", {"slow": 4}, "slow"),
        ("multi_worker_mirrored", {"hosts": 2, "link": {7: Link(mbit=5)}}, "link"),
        ("multi_worker_mirrored", {"hosts": 2, "link": {0: {1: 5}}}, "link"),
        ("multi_worker_mirrored", {"framework": ["torch"]}, "framework"),
        ("multi_worker_mirrored", {"strategy": "one_device"}, "strategy"),
        (len, {"strategy": "one_device"}, "strategy"),
        (len, {"workers": 256, "replicas": 64}, "workers"),
    ],
)
def test_a_field_that_cannot_be_is_named(what: Any, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        launch.start(what, **fields)
    assert caught.value.field == field
    assert_named(caught.value)


@pytest.mark.parametrize("run_dir", ["\0", "a" * 300, "/dev/null", "/dev/null/below", "", "."])
def test_a_directory_that_cannot_be_is_refused_by_name(run_dir: str) -> None:
    with pytest.raises(SpecError) as caught:
        create(RunSpec(run_dir=Path(run_dir)))
    assert caught.value.field == "run_dir"


TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "=", "0", "-1", "1e999", "nan", "worker:1=4", "1=50", "ring", "\udcff"]),
    st.sampled_from(["one_device", "multi_worker_mirrored", "parameter_server,workers=2", "x,y=z"]),
    st.sampled_from(["4MiB", "digits", "torch", "tensorflow", "exponential:20ms", "here.html"]),
    st.sampled_from(["mine.ipynb", ".", "/dev/null", "a" * 300]),
)


def options() -> dict[str, list[str]]:
    """Each command -> its options."""
    from typer.main import get_command

    commands: Any = get_command(app)
    return {
        name: [o for p in command.params for o in p.opts if o.startswith("-") and o != "--help"]
        for name, command in commands.commands.items()
    }


@st.composite
def command_lines(draw: Any) -> list[str]:
    command, known = draw(st.sampled_from(sorted(options().items())))
    given = [command]
    for _ in range(draw(st.integers(0, 4))):
        if known and draw(st.booleans()):
            given.append(draw(st.sampled_from([*known, "--nonesuch"])))
        given.append(draw(TEXTS))
    return given


@fuzzed(200)
@given(command_lines())
def test_a_command_ends_with_one_line_that_says_what_is_wrong(arguments: list[str]) -> None:
    # what is written must not leave this folder
    arguments = [a if a == "/dev/null" else a.lstrip("/") for a in arguments]
    arguments += ["--out", "."] if arguments[0] == "exercises" else []
    out, problems = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(problems):
        try:
            main(arguments)
        except SystemExit as ended:
            code = ended.code or 0
    said = problems.getvalue()
    assert code in (0, 1, 2), said
    if code == 2:
        assert said.startswith("lockstep: ") and said.count("\n") == 1, said
    elif code == 1:
        assert said in ("", "lockstep: a run\n") or "of" in said


@fuzzed(300)
@given(
    st.lists(
        st.binary(max_size=50) | JSON.map(lambda v: json.dumps(v).encode() + b"\n"), max_size=9
    )
)
def test_a_channel_gives_messages_and_nothing_else(pieces: list[bytes]) -> None:
    channel, theirs = pair()
    with theirs, contextlib.closing(channel):
        channel.sock.settimeout(0.01)
        for piece in pieces:
            theirs.sendall(piece)
        theirs.shutdown(socket.SHUT_WR)
        heard: list[Any] = []
        while (messages := channel.receive()) is not None:
            heard += messages
    assert all(isinstance(message, dict) for message in heard)


def test_a_channel_keeps_no_more_of_a_line_than_the_longest_message() -> None:
    channel, theirs = pair()
    with theirs, contextlib.closing(channel):
        sent, most = 0, 0
        while sent < LONGEST + (1 << 20):
            sent += theirs.send(b"x" * 65536)
            assert channel.receive() == []
            most = max(most, len(channel._rest))
        assert most <= LONGEST
        theirs.sendall(b'\n{"state": "done"}\n')
        heard: list[Any] = []
        while not heard:
            heard = channel.receive() or []
        assert heard == [{"state": "done"}]


SAYS = st.dictionaries(st.sampled_from(["state", "step", "other"]), JSON | STATES, max_size=3)


@fuzzed(200)
@given(st.lists(SAYS.map(lambda m: json.dumps(m).encode() + b"\n") | st.binary(max_size=9)))
def test_a_supervisor_hears_states_and_steps_and_nothing_else(said: list[bytes]) -> None:
    spec = RunSpec(
        strategy="work()", framework="python", workers=2, faults=["kill worker:1 at step 3"]
    )
    channel, theirs = pair()
    heard: list[str] = []
    node: Any = Node.__new__(Node)
    node.channels, node.selector = {"worker:0": channel}, mock.Mock()
    supervisor: Any = Supervisor.__new__(Supervisor)
    node.report = supervisor.hear
    supervisor.roster, supervisor.agenda = Roster(spec.tasks), Agenda(spec)
    supervisor.nodes, supervisor._happen = {"worker:0": node}, lambda faults: None
    supervisor.note = lambda task, state: heard.append(state)
    with theirs, contextlib.closing(channel):
        theirs.sendall(b"".join(said))
        theirs.shutdown(socket.SHUT_WR)
        while node.channels:
            node._hear("worker:0")
    assert set(heard) <= {"running", "done", "failed"}


def places(tree: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values in a tree of JSON."""
    keys = (
        list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else []
    )
    return [here, *(place for key in keys for place in places(tree[key], (*here, key)))]


NOTEBOOK = json.loads((EXERCISE).read_text())
NOTEBOOK["cells"] = NOTEBOOK["cells"][:6]


@fuzzed(150)
@given(
    st.lists(st.tuples(st.sampled_from(places(NOTEBOOK)), JSON), max_size=3), st.binary(max_size=3)
)
def test_a_notebook_is_read_or_refused(changes: list[tuple[Any, Any]], junk: bytes) -> None:
    logging.disable(logging.ERROR)  # nbformat says what is wrong, and goes on
    tree: Any = copy.deepcopy(NOTEBOOK)
    for place, value in changes:
        with contextlib.suppress(LookupError, TypeError):  # an earlier change was above it
            inner = tree
            for key in place[:-1]:
                inner = inner[key]
            if place:
                inner[place[-1]] = value
            else:
                tree = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mine.ipynb")
        path.write_bytes(json.dumps(tree).encode() + junk)
        for look in (read, exercise_text):
            try:
                look(path)
            except SpecError as error:
                assert error.field in ("notebook", "marker")
    logging.disable(logging.NOTSET)


@fuzzed(300)
@given(st.one_of(JSON, st.lists(JSON, max_size=8).map(lambda rest: ["schedule", "x", *rest])))
def test_plain_data_is_data_again_or_refused(data: Any) -> None:
    with contextlib.suppress(Exception):
        value = rebuilt(data)
        assert plain(value) == plain(rebuilt(plain(value)))


@fuzzed(300)
@given(TEXTS | st.text(alphabet="lognmaexpti_ce:0123456789.s", max_size=20))
def test_a_jitter_is_read_or_refused(text: str) -> None:
    try:
        assert isinstance(Jitter.of(text), Jitter)
    except SpecError as error:
        assert error.field == "jitter"


WORDS = st.sampled_from(
    [
        *("kill", "pause", "raise", "slow", "jitter", "cut", "link", "oom", "worker:1", "ps:0"),
        *("host:1", "worker:1=4", "host:1=50,2.5", "=", "at", "step", "3", "2.5s", "500ms", "for"),
        *("0s", "1e9s", "worker:99999999999", "slow=", "host:1=-5", "worker:1=nan"),
        "worker:1=lognormal:9",
    ]
)


@fuzzed(400)
@given(ODD | TEXTS | st.lists(WORDS | st.text(max_size=4), max_size=8).map(" ".join))
def test_a_fault_is_read_and_written_again_or_refused(text: Any) -> None:
    try:
        fault = Fault.of(text)
        assert Fault.of(str(fault)) == fault
        RunSpec(hosts=2, ps=1).check_fault(fault)
    except SpecError as error:
        assert error.field == "faults"
        assert_named(error)
