"""Every row of the catalogue, by the command that the documentation shows: what runs here learns
and leaves nothing, what does not says why.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from course_lib import Trace, hardware
from course_lib.__main__ import main
from course_lib.record.events import Lifecycle, Metric, Update
from course_lib.strategies import catalog
from tests import own_models

ROWS = [
    (name, framework)
    for name, strategy in catalog.STRATEGIES.items()
    for framework in strategy.programs
]
FIELDS = (
    "staleness",
    "update_applied_by",
    "variables_on",
    "dropped_gradients",
    "idle_share",
    "parameter_digest",
    "seconds",
    "reality",
)


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ended:
    """The command line in this process, so that a framework is imported once for all rows."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return Ended(int(str(ended.value.code)), *capsys.readouterr())


def run(capsys: pytest.CaptureFixture[str], name: str, framework: str, *more: str) -> Ended:
    return command(
        capsys,
        "run",
        name,
        "--framework",
        framework,
        "--workers",
        "1" if name == "one_device" else "2",
        "--steps",
        "50",
        "--workload",
        "digits",
        "--json",
        *more,
    )


def learned(out: str) -> dict[str, Any]:
    """The JSON of a run that halved its loss and left neither a process nor a meeting place
    behind.
    """
    result: dict[str, Any] = json.loads(out)
    assert set(FIELDS) <= set(result)
    trace = Trace.of_run(Path(result["run_dir"]))
    first, *_ = sorted(trace.all(Metric, name="loss"), key=lambda m: m.samples)
    assert result["final_loss"] < first.value / 2
    assert result["test_accuracy"] > 0.8
    assert set(result["staleness"]["updates"]) == {str(u.staleness) for u in trace.all(Update)}
    assert (
        result["update_applied_by"]
        and sum(result["variables_on"].values()) >= 4 * result["parameters"]
    )
    as_foretold(result)
    gradients = result["ledger"]
    assert gradients["balanced"], gradients["wrong"]
    assert gradients["computed"] == gradients["applied"] + sum(gradients["dropped"].values()) > 0
    pids = [e.pid for e in trace.all(Lifecycle, state="starting")]
    assert pids and not any(map(psutil.pid_exists, pids))
    assert not (Path(result["run_dir"]) / "meetings").exists()
    return result


def as_foretold(result: dict[str, Any]) -> None:
    """Every task counted its memory, and all together hold what their strategy's formula says.

    It takes a pipeline's stages for equal, which these are not; of activations that are cut in
    pieces it says nothing.
    """
    counted, formula = result["memory"], result["memory_formula"]
    assert set(formula) <= set(counted)

    def total(memory: dict[str, Any], kind: str) -> int:
        return sum(memory[task].get(kind, 0) for task in formula)

    for kind in ("parameters", "gradients", "optimizer_state"):
        assert total(counted, kind) == pytest.approx(total(formula, kind), rel=0.01)
    if expected := total(formula, "activations"):
        most = {"pipeline_parallel": 2.0}.get(result["strategy"], 1.05)
        assert 0.95 < total(counted, "activations") / expected < most


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "framework"), ROWS)
def test_a_row_that_is_available_learns_and_one_that_is_not_ends_with_its_reason(
    name: str, framework: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = (
        r
        for r in catalog.rows(hardware.probe())
        if (r["strategy"], r["framework"]) == (name, framework)
    )
    done = run(capsys, name, framework)
    if row["reality"] == "unavailable":
        assert (done.code, done.out) == (2, "")
        assert row["why"] in done.err and row["cure"] in done.err
        assert len(done.err.strip().splitlines()) == 1
    else:
        assert done.code == 0, done.err
        assert learned(done.out)["reality"] == "measured"


@pytest.mark.parametrize(
    ("framework", "workload"),
    [("torch", "tiny_gpt"), ("tensorflow", f"{own_models.__file__}:convolutions")],
)
def test_a_race_takes_the_transformer_and_a_model_in_a_file(
    framework: str, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = ["--framework", framework, "--workers", "2", "--steps", "20", "--workload", workload]
    if workload == "tiny_gpt":
        fields += ["--sizes", "layers=1,width=32,context=16"]
    done = command(capsys, "race", "mirrored", "sync_parameter_server", *fields, "--json")
    assert done.code == 0, done.err
    for figures in json.loads(done.out)["entrants"].values():
        losses = figures["curve"]["loss"]
        assert len(losses) == 20 and losses[-1] < losses[0] and not figures["diverged"]


def test_a_tpu_that_is_not_there_is_emulated_when_that_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = run(capsys, "tpu", "tensorflow", "--emulate")
    assert done.code == 0, done.err
    assert learned(done.out)["reality"] == "emulated"


@pytest.mark.skipif(len(hardware.probe().gpus) > 1, reason="NCCL can work here")
@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        ("mirrored --all-reduce nccl", "Take hierarchical_copy or reduction_to_one_device"),
        ("mirrored --framework torch --all-reduce nccl", "Leave it out for gloo."),
    ],
)
def test_whoever_asks_for_nccl_without_gpus_is_told_why_not_and_what_instead(
    arguments: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = command(capsys, "run", *arguments.split())
    assert (done.code, done.out) == (2, "")
    assert "nccl is unavailable" in done.err and " 4 of them" in done.err and instead in done.err
    assert len(done.err.strip().splitlines()) == 1
