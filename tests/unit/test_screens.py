"""What commands print, at 80 and 120 columns, beside what they printed when somebody last looked:
`screens/NAME.WIDTH.txt`. After a change that is meant, `make screens`, and look at the difference.
"""

import re
import shlex
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main
from rich.console import Console

from course_lib import engines, hardware
from course_lib.__main__ import app, main
from course_lib.commands import allreduce, machine, training, watch
from course_lib.commands.terminal import FIELDS, NUMBER, progress, say, show
from course_lib.errors import Unavailable
from course_lib.reduction.allreduce import compare
from course_lib.spec.run_spec import RunSpec
from tests.benchmarks.boards import board as board_of_made_up_runs
from tests.made_up import LAPTOP, lockstep
from tests.screens import as_last_read
from tests.unit.test_racing import comparing, of

COMMANDS: Any = typer.main.get_command(app)
CODES = re.compile(r"\x1b\[[\d;]*m")
RESULT: dict[str, Any] = {
    "strategy": "multi_worker_mirrored",
    "framework": "tensorflow",
    "stopped": False,
    "steps_done": 1200,
    "examples": 153600,
    "resumed_from": {},
    "parameters": 4810,
    "flops_per_step": 3637248,
    "final_loss": float("nan"),
    "test_accuracy": 0.09722222,
    "diverged": "The loss of worker:0 became nan in step 7: lower learning_rate.",
    "parameter_digest": {"worker:0": "6ec9f530853602de", "worker:1": "6ec9f530853602de"},
    "variables_on": {"worker:0/cpu": 19240, "worker:1/cpu": 19240},
    "staleness": {"mean": 0.0, "max": 0, "updates": {"0": 1200}, "by_worker": {}},
    "exchange_ms": {"hidden": 0.25, "exposed": 2.98},
    "seconds": {"start": 0.31, "first_step": 1.2, "total": 71.04},
    "examples_per_second": 2162.4,
    "mfu_why": "Left out, as computing is emulated. Each step takes 20 ms on an emulated device.",
    "memory": {t: dict.fromkeys(("parameters", "gradients"), 19240) for t in ("worker:0",)},
    "memory_formula": {"worker:0": {"parameters": 19240}},
    "run_dir": "/home/learner/.cache/lockstep/runs/20260102-030405-multi_worker_mirrored-abcdefgh",
}
for kind in ("optimizer_state", "activations", "buffers"):
    RESULT["memory"]["worker:0"][kind] = 35852


def _race() -> None:
    shown = comparing(of(lockstep(), label="multi_worker_mirrored"), of(lockstep(), label="other"))
    show(shown.headers(), shown.rows())
    say(*shown.words())


def _allreduce() -> None:
    found = compare("4MiB", [], 8, 2, simulated=True)
    show(allreduce.HEADERS, [allreduce.cells(each.as_dict()) for each in found])


def _check() -> None:
    text = "With 4 workers, in round 2, rank 3 never receives chunk 1 from rank 2.\nRank 3 waits."
    show(["task", "", "what was found"], [["ring", "not yet", text], ["tree", "passed", "Proved."]])


def _watch() -> None:
    board = board_of_made_up_runs(40)
    board.draw()
    out = Console(highlight=False)
    out.print(watch.frame(board.view, out.width))
    board.close()


def _error() -> None:
    with pytest.raises(SystemExit):
        main(["run", "--workers", "3", "--global-batch", "100"])


def _help() -> None:
    with pytest.raises(SystemExit):
        main(["--help"])


def _options() -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])


def _have_ray(monkeypatch: pytest.MonkeyPatch, cluster: object) -> None:
    """Ray is there, and this cluster is up."""
    raylets = SimpleNamespace(current=lambda: cluster)
    monkeypatch.setattr(engines, "load", {"ray.raylets": raylets}.__getitem__)


def _missing(module: str) -> None:
    raise Unavailable("a Ray cluster", "Ray is not installed here", "pip install it")


SHOWN: dict[str, Callable[[], Any]] = {
    "doctor": machine.doctor,
    "strategies": machine.strategies,
    "strategy": lambda: machine.strategies("parameter_server"),
    "run": lambda: training.report(RESULT, lockstep()),
    "race": _race,
    "allreduce": _allreduce,
    "check": _check,
    "watch": _watch,
    "error": _error,
    "help": _help,
    "options": _options,
}


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What is printed on a terminal that is as wide as asked for, without its colours."""
    monkeypatch.setattr(sys, "argv", ["lockstep"])
    # `python -m pytest` would be taken for the program
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None, raising=False)
    monkeypatch.setattr(hardware, "probe", lambda: LAPTOP)
    _have_ray(monkeypatch, cluster=None)
    monkeypatch.setattr(hardware, "versions", lambda: {"tensorflow": "2.21.0", "torch": "2.13.0"})

    def printed(name: str, width: int) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        SHOWN[name]()
        lines = CODES.sub("", "".join(capsys.readouterr())).splitlines()
        return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"

    return printed


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", SHOWN)
def test_a_screen_is_as_it_was_when_somebody_looked(screen: Any, name: str, width: int) -> None:
    shown = screen(name, width)
    assert max(len(line) for line in shown.splitlines() if " " in line) <= width
    as_last_read(f"{name}.{width}", shown)


@pytest.mark.parametrize("name", [name for name in SHOWN if name != "watch"])
def test_no_word_is_broken_at_80_columns(screen: Any, name: str) -> None:
    wide, narrow = (re.sub(r"[─━]+", "", screen(name, each)).split() for each in (240, 80))
    long = {word for word in wide if len(word) > 78}  # such as the path of a run
    assert set(wide) - long <= set(narrow)


def test_the_doctor_tells_whether_ray_is_there_and_which_cluster(
    screen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _have_ray(monkeypatch, SimpleNamespace(nodes=["a", "b"], address="here:1"))
    assert re.search(r"Ray +2 nodes up +.*at here:1\.", screen("doctor", 240))
    monkeypatch.setattr(engines, "load", _missing)
    assert re.search(r"Ray +not installed +.*pip install", screen("doctor", 240))


@pytest.mark.parametrize("command", ["run", "race", "check-strategy"])
def test_help_has_its_options_in_groups_and_ends_with_three_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    sections = re.findall(r"^(\w+):\n((?:  .*\n)+)", capsys.readouterr().out, flags=re.M)
    short = ["Cluster", "Training"]
    groups = short if command == "check-strategy" else ["Cluster", "Network", "Training", "Faults"]
    record = ["Record"] * (groups != short)
    assert [name for name, _ in sections] == ["Arguments", *groups, *record, "Options", "Examples"]
    options = dict(sections)["Options"].split()
    assert not {f"--{name.replace('_', '-')}" for name in FIELDS} & set(options)
    examples = [shlex.split(line) for line in sections[-1][1].splitlines()]
    assert [each[:2] for each in examples] == [["lockstep", command]] * 3
    for _, name, *arguments in examples:
        params = COMMANDS.commands[name].make_context(name, arguments).params
        RunSpec(**{name: params[name] for name in FIELDS if params.get(name)})


def test_a_table_that_does_not_fit_becomes_a_block_of_lines_for_each_row(screen: Any) -> None:
    lines = screen("allreduce", 40).splitlines()
    assert "hierarchical" in lines and "  GB/s: 0.2" in lines
    assert max(map(len, lines)) <= 40


def test_numbers_stand_at_the_right_edge_of_their_column(screen: Any) -> None:
    lines = screen("allreduce", 80).splitlines()
    ends = {len(line[: line.index(" yes")]) for line in lines if line.endswith(" yes")}
    assert len(ends) == 1
    assert NUMBER.fullmatch("1,234.5 MB") and NUMBER.fullmatch("12") and not NUMBER.fullmatch("ab")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_readable_on_a_terminal_and_absent_elsewhere(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(terminal)))
    with progress() as shown:
        shown.add_task("loss 1.234", total=40, completed=10)
        print("a result")
    out, err = capsys.readouterr()
    assert out == "a result\n"
    assert ("loss 1.234" in err) == bool(err) == terminal
    yellow, faint = "\x1b[33m", "\x1b[2m"
    assert yellow not in err and faint not in err
