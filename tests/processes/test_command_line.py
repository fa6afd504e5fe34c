"""The command line, as a person or a script uses it: exit codes, one-line errors, JSON."""

import contextlib
import csv
import dataclasses
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import patch

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbformat.v4 import new_code_cell, new_notebook

from course_lib import hardware, workloads
from course_lib.__main__ import main
from course_lib.collectives import ALGORITHMS, ring
from course_lib.commands import terminal as screen
from course_lib.course.answers import ROOT
from course_lib.record.events import to_line
from course_lib.record.rundir import RunDir, RunFacts
from course_lib.spec.run_spec import RunSpec
from tests import made_up
from tests.conftest import HOME, processes_of
from tests.helpers import ALL_REDUCE, lockstep, until
from tests.screens import says

FIELDS = {
    *(
        "strategy",
        "framework",
        "workers",
        "steps",
        "final_loss",
        "test_accuracy",
        "parameter_digest",
    ),
    *(
        "seconds",
        "examples_per_second",
        "flops_per_step",
        "mfu",
        "mfu_why",
        "reality",
        "network",
        "network_why",
        "wire_bytes_per_step",
        "run_dir",
    ),
}


@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_a_run_ends_with_one_json_object(framework: str) -> None:
    done = lockstep(
        "run",
        "multi_worker_mirrored",
        "--framework",
        framework,
        "--workers",
        "4",
        "--steps",
        "200",
        "--seed",
        "0",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) >= FIELDS
    assert result["test_accuracy"] >= 0.93
    assert list(result["parameter_digest"]) == ["worker:0", "worker:1", "worker:2", "worker:3"]
    assert len(set(result["parameter_digest"].values())) == 1
    assert (
        0
        < result["seconds"]["start"]
        < result["seconds"]["first_step"]
        < result["seconds"]["total"]
    )
    assert (result["reality"], result["network"]) == (
        "measured",
        "private" if hardware.probe().private_network.ok else "loopback",
    )
    assert json.loads((Path(result["run_dir"]) / "result.json").read_text()) == result


def test_an_imposed_straggler_makes_a_run_emulated() -> None:
    done = lockstep(
        "run",
        "--framework",
        "torch",
        "--workers",
        "2",
        "--steps",
        "10",
        "--slow",
        "worker:1=3",
        "--json",
    )
    assert json.loads(done.stdout)["reality"] == "emulated"


def test_without_json_the_plan_gives_its_reasons_and_the_result_is_a_table() -> None:
    done = lockstep("run", "one_device", "--framework", "torch", "--steps", "5")
    assert done.returncode == 0, done.stderr
    assert "reality: measured" in done.stderr
    assert "test_accuracy" in done.stdout
    counted = """
worker:0          18.8 KiB   18.8 KiB              0 B       70 KiB      0 B
by the formula    18.8 KiB   18.8 KiB              0 B       69 KiB        -
"""
    assert counted in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        "run multi_worker_miror",
        "run --framework tenserflow",
        "run --workload digts",
        "run --workers 0",
        "run --workers=-1",
        "run --workers 10000",
        "run --workers 3 --global-batch 100",
        "run --slow worker:9=2",
        "run --slow worker:1=0.1",
        "run --slow fast",
        "run --run-dir /proc/nowhere",
        "run --sizes parameters=10 --workload wide",
        "picture /nowhere --out /tmp/x.svg",
        "run --all-reduce rign",
        "run --hosts 9",
        "run --hosts 0",
        "run one_device --all-reduce ring",
        "allreduce rign",
        "allreduce --workers 0",
        "allreduce --workers 300",
        "allreduce --hosts 9",
        "allreduce --all --hosts 9 --simulate",
        "allreduce --bytes much",
        "allreduce --bytes 6",
        "allreduce --bytes 4000TiB",
        "allreduce --bytes 4000000GiB",
        "allreduce --dtype float31",
        "allreduce --dtype str",
        "allreduce --dtype object",
        "run fully_sharded --framework tensorflow",
        "run tpu --framework torch",
        "run one_device --backups 1",
        "run mirrored --pipeline 1f1b",
        "run --sizes parameters=1000000",
        "run --evaluate-every 5 --no-trace",
        "run tensor_parallel --workers 3",
        "run mirrored --workers 3 --global-batch 128",
        "run --workload mnist",
        "run --steps -5",
        "run --slow worker:1=-2",
        "run --link 100",
        "run --link 0=50",
        "run --hosts 2 --link 7=50",
        "run --hosts 2 --link 1=fast",
        "run --hosts 2 --link 1=-50",
        "run mirrored --hosts 2",
        "run central_storage --framework torch --link 5",
        "race mirrored",
        "race mirrored mirorred",
        "race mirrored,wrkers=3 one_device",
        "race mirrored one_device --target-accuracy 90",
        "race mirrored one_device --hosts 9",
        "allreduce --bytes -4",
        "allreduce --hosts 2 --link=-3",
        "stage rng",
        "stage --round 3 --out x.html",
        "stage --link 100 --hosts 1 --out x.html",
        "race mirrored,seed=1 one_device",
        "check notebooks",
        "stage --out x.png",
        "watch /proc",
        "check README.md",
        "strategies mirored",
    ],
)
def test_bad_input_is_told_in_one_line_before_any_process_with_what_would_be_right(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # without the workloads that other tests have made
    with patch.dict(workloads.OWN, clear=True), pytest.raises(SystemExit) as ended:
        main(arguments.split())
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    says("command_line", arguments, re.sub(r"[\d.]+ GB are free", "# GB are free", err))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("run --nonsense", "--nonsense"),
        ("nonsense", "nonsense"),
        ("allreduce --workers many", "--workers"),
        ("run multi_worker_mirrored mirrored", "mirrored"),
    ],
)
def test_what_the_command_line_cannot_read_is_named_in_one_line(
    arguments: str, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert names in err and len(err.strip().splitlines()) == 1


def test_bad_input_ends_the_process_with_exit_code_2() -> None:
    done = lockstep("run", "--workers", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("lockstep: workers=0: ")


def test_the_command_line_passes_on_what_was_typed_and_nothing_else() -> None:
    nothing = dict.fromkeys(("workers", "backups", "slow", "link"))
    typed = screen.with_fields(*nothing)(lambda *, fields: fields)
    assert typed(**nothing) == {}
    for given in ({"link": ["9"]}, {"backups": 1, "slow": ["worker:1=3"]}):
        assert typed(**nothing | given) == given


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["tensor_parallel", "pipeline_parallel", "fully_sharded"])
def test_a_model_in_parts_trains_over_hosts_with_a_link_between_them(name: str) -> None:
    options = "--framework torch --workers 2 --hosts 2 --link 500 --steps 3 --json"
    done = lockstep("run", name, *options.split())
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["hosts"], result["reality"]) == (2, "emulated")
    assert result["final_loss"] > 0


def test_a_run_that_takes_too_long_is_ended_with_exit_code_1() -> None:
    before = {p.pid for p in processes_of(HOME)}
    done = lockstep(
        "run", "--framework", "torch", "--steps", "100000", "--device-ms", "50", "--timeout", "6"
    )
    assert done.returncode == 1
    # on a busy machine some of them are still starting, and come first
    assert re.search(r"--timeout.*: worker:", done.stderr)
    until(lambda: {p.pid for p in processes_of(HOME)} <= before, "its processes to be gone")


def test_an_all_reduce_is_measured_and_printed_as_a_table_or_one_json_object() -> None:
    table, as_json = (
        lockstep("allreduce"),
        lockstep("allreduce", "tree", "--workers", "3", "--hosts", "2", "--bytes", "6KB", "--json"),
    )
    assert table.returncode == as_json.returncode == 0, table.stderr + as_json.stderr
    for name in ALL_REDUCE:
        assert name in table.stdout
    assert "measured" in table.stdout
    result = json.loads(as_json.stdout)
    assert list(result) == ALL_REDUCE
    figures = [result[name] for name in ALL_REDUCE[:7]]
    # rank 0 sends twice; rank 2, alone on its host, sends its part and gets the sum
    assert figures == ["tree", 3, 2, 6000, 4, 12000, 6000]
    assert (result["exact"], result["reality"]) == (True, "measured")
    assert all(result[name] > 0 for name in ("seconds", "predicted_seconds", "bus_bandwidth"))
    error = result["predicted_seconds"] / result["seconds"] - 1
    assert result["prediction_error"] == pytest.approx(error)


def test_all_all_reduces_come_side_by_side() -> None:
    table, as_json = (
        lockstep("allreduce", "--all", "--simulate"),
        lockstep("allreduce", "--all", "--workers", "2", "--bytes", "4KiB", "--json"),
    )
    assert table.returncode == as_json.returncode == 0, table.stderr + as_json.stderr
    found = json.loads(as_json.stdout)
    assert [result["algorithm"] for result in found] == list(ALGORITHMS)
    for result in found:
        assert list(result) == ALL_REDUCE
        assert (result["workers"], result["exact"], result["reality"]) == (2, True, "measured")
    lines = table.stdout.splitlines()
    rows = [line for line in lines if any(f" {name} " in line for name in ALGORITHMS)]
    assert len(rows) == len(ALGORITHMS)
    assert all("yes" in row for row in rows)


def test_a_simulated_all_reduce_starts_no_process_and_says_so() -> None:
    runs = set(Path(HOME, "runs").glob("*"))
    options = "--workers 500 --hosts 5 --bytes 1GiB --simulate --json"
    done = lockstep("allreduce", "hierarchical", *options.split())
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert list(result) == ALL_REDUCE
    assert (result["workers"], result["hosts"], result["bytes"], result["rounds"]) == (
        500,
        5,
        2**30,
        2 * 99 + 2 * 4,
    )
    assert (result["exact"], result["reality"]) == (True, "simulated")
    assert set(Path(HOME, "runs").glob("*")) == runs


def test_a_run_trains_with_an_all_reduce_of_ours() -> None:
    options = ["--workers", "2", "--steps", "5", "--all-reduce", "direct", "--hosts", "2"]
    done = lockstep("run", "--framework", "torch", *options, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["all_reduce"], result["hosts"]) == ("direct", 2)
    assert len(set(result["parameter_digest"].values())) == 1


@pytest.mark.parametrize("command", ["doctor", "strategies"])
def test_doctor_and_strategies_print_tables_and_json(command: str) -> None:
    table, as_json = lockstep(command), lockstep(command, "--json")
    assert table.returncode == as_json.returncode == 0
    assert (
        "multi_worker_mirrored" in table.stdout
        if command == "strategies"
        else "cores" in table.stdout
    )
    found = json.loads(as_json.stdout)
    if command == "doctor":
        assert found["machine"]["cores"] >= 1
        assert all(reason["why"].endswith(".") and reason["choice"] for reason in found["plan"])
    else:
        assert {(row["strategy"], row["framework"]) for row in found} >= {
            ("one_device", "torch"),
            ("multi_worker_mirrored", "tensorflow"),
        }
        assert all(row["reality"] in ("measured", "emulated", "unavailable") for row in found)


def test_an_algorithm_that_is_wrong_is_told_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = dataclasses.replace(ring(4), rounds=ring(4).rounds[:-1])
    monkeypatch.setitem(ALGORITHMS, "ring", lambda workers: short)
    with pytest.raises(SystemExit) as ended:
        main(["allreduce", "ring", "tree", "--simulate"])
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith("ring is wrong: ") and "chunk 1 of rank 0" in " ".join(told.split())


def test_a_command_that_is_told_to_end_clears_up(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--episodes", "50"]
    with subprocess.Popen(
        [*command, "--framework", "torch"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    ) as chaos:
        until(lambda: list(tmp_path.glob("lockstep-chaos-*/run/*")), "a run in a temporary folder")
        chaos.terminate()
        assert "interrupted" in chaos.communicate(timeout=30)[1]
    assert chaos.returncode == 130
    assert not list(tmp_path.glob("lockstep-*"))


def test_an_interrupted_run_says_on_a_terminal_how_far_it_was(tmp_path: Path) -> None:
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "course_lib", "run", "one_device", "--framework", "torch"]
    shown = b""
    with subprocess.Popen(
        [*command, "--steps", "100000", "--device-ms", "5", "--run-dir", str(tmp_path / "run")],
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as run:
        os.close(theirs)
        bound = threading.Timer(120, run.kill)
        bound.start()
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(terminal, 65536):
                shown += part
                if b", loss" in shown and b"interrupted once" not in shown:
                    run.send_signal(signal.SIGINT)
                    shown += b"interrupted once, "
        bound.cancel()
        os.close(terminal)
    assert run.returncode == 130
    _, _, after = shown.decode().replace("\r\n", "\n").partition("interrupted once, ")
    assert re.search(r"one_device: \d+ of 100000 ", after)
    assert f"{tmp_path / 'run'}\n" in after
    assert after.splitlines()[-1].startswith("lockstep: interrupted")


def test_a_terminal_that_knows_ascii_only_gets_other_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunDir(tmp_path)
    files.describe(RunSpec(workers=2), RunFacts(origin=0.0), {}, {})
    files.events("worker:0").write_bytes(b"".join(map(to_line, made_up.lockstep())))
    files.clear()  # the run is over
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = lockstep("watch", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "? compute" in done.stdout


def asked_of_jupyter(
    monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[list[str], dict[str, str]]:
    """What `lockstep lab` would start, and with which environment."""
    commands: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda _, *given: commands.append(given))
    with pytest.raises(SystemExit):
        main(["lab", *arguments])
    return commands[0]


def test_jupyterlab_opens_the_first_lesson_and_does_not_ask_about_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command, environment = asked_of_jupyter(monkeypatch)
    settings = Path(environment["JUPYTER_CONFIG_PATH"].split(os.pathsep)[0], "labconfig")
    assert "fetchNews" in (settings / "default_setting_overrides.json").read_text()
    (first,) = [word for word in command if "default_url" in word]
    assert (Path(__file__).parents[2] / first.partition("=/lab/tree/")[2]).is_file()


def test_a_kernel_that_has_run_no_cell_says_where_a_missing_name_is_defined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text("mine = 3")
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "own.py"))
    _, environment = asked_of_jupyter(monkeypatch)
    nbformat.write(new_notebook(cells=[new_code_cell("ring = 4")]), tmp_path / "book.ipynb")
    environment["JPY_SESSION_NAME"] = str(tmp_path / "book.ipynb")
    manager, client = start_new_kernel(env=environment)
    said: list[str] = []
    hear = {"output_hook": lambda message: said.append(message["content"].get("text", ""))}
    try:
        client.execute_interactive("print(ring)", timeout=60, **hear)
        assert "    ring = 4\n\n" in "".join(said)
        names = "import os; print([mine, '_begin' in dir(), *os.environ])"
        client.execute_interactive(names, timeout=60, **hear)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    (names,) = [text for text in said if text.startswith("[")]
    assert names.startswith("[3, False, ") and "LOCKSTEP_PYTHONSTARTUP" not in names


@pytest.mark.parametrize(("user", "told"), [(0, ["--allow-root"]), (1000, [])])
def test_the_course_opens_for_root_as_well_as_in_a_container(
    user: int, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    command, _ = asked_of_jupyter(monkeypatch, "--port=8890")
    assert [word for word in command if "allow-root" in word] == told
    assert command[-1] == "--port=8890"


@pytest.mark.parametrize("option", ["--ServerApp.root_dir=here", "--notebook-dir=here"])
def test_a_folder_for_jupyterlab_takes_the_place_of_the_course_s(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, _ = asked_of_jupyter(monkeypatch, option)
    assert [word for word in command if "dir" in word or "tree" in word] == [option]


def test_a_copy_of_the_course_is_what_jupyterlab_opens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, _ = asked_of_jupyter(monkeypatch, "--copy-to", str(tmp_path))
    assert f"--ServerApp.root_dir={tmp_path.resolve()}" in command
    assert "copy" in capsys.readouterr().out
    names = {path.name for path in tmp_path.rglob("*.ipynb")}
    assert {"03_synchronous_training.ipynb", "04_allreduce_from_scratch.ipynb"} <= names


def test_the_answers_of_a_class_come_as_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exercise = ROOT / "exercises" / "04_allreduce_from_scratch.ipynb"
    for learner in ("ada", "grace"):
        (tmp_path / learner).mkdir()
        shutil.copy(exercise, tmp_path / learner)
    (tmp_path / "notes.ipynb").write_text("no notebook")
    with pytest.raises(SystemExit) as ended:
        main(["check", str(tmp_path), "--csv"])
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert ended.value.code == 1 and len(rows) == 2 * 5
    assert {row["state"] for row in rows} == {"to do"}
    assert {Path(row["notebook"]).parent.name for row in rows} == {"ada", "grace"}
