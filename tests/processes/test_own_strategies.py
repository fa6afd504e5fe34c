"""Strategies of a learner's own: functions that are run, raced and tabled like those of the
library, and facts that are read from the trace.
"""

import ast
import re
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course_lib import Run, SavedRun, SpecError, Workload, race, start
from course_lib.__main__ import main
from course_lib.record.observed import ALONE, Observed
from course_lib.strategies import catalog, pages
from tests import own_loops, own_models, wrong_pages
from tests.helpers import compares_times, losses, of_times

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "notebooks" / "strategies"
averaged: Any = wrong_pages.RIGHT["all_in_one"]
local_sgd: Any = pages.named(f"{PAGES}/local_sgd.py:local_sgd")
TWO: dict[str, Any] = {"workers": 2, "steps": 12}


def blocks(page: str) -> list[str]:
    text = (ROOT / "notebooks" / "reference" / page).read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_what_the_reference_shows_runs_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    values: dict[str, Any] = {}
    shown = []
    for block in blocks("your_strategy.md"):
        *lines, last = ast.parse(block).body
        if isinstance(last, ast.Expr):  # a cell shows it
            exec(compile(ast.Module(lines, []), "<page>", "exec"), values)
            shown.append(eval(compile(ast.Expression(last.value), "<page>", "eval"), values))
        else:
            exec(block, values)
    assert len(shown) == 3 and all("exam" in repr(each) for each in shown)
    wide = shown[1].entrants
    sent = [max(its.bytes_sent.values()) for its in wide.values()]
    assert sent[0] / sent[1] == pytest.approx(8, rel=0.1)
    run = start(values["averaged_in_tensorflow"], **TWO).wait(60)
    alone = start("one_device", steps=12, global_batch=128).wait(60)
    np.testing.assert_allclose(losses(run.trace), losses(alone.trace), rtol=1e-4)


def test_a_function_races_a_name_with_a_label_and_fields_of_its_own() -> None:
    every = [averaged, ("rare", local_sgd, {"slow": {"worker:1": 2}}), {"worker": local_sgd}]
    with race("multi_worker_mirrored", *every, framework="torch", device_ms=4, **TWO) as four:
        shown = four.wait(60).comparison
    labels = ["multi_worker_mirrored", "<lambda>()", "rare", "local_sgd()"]
    assert list(shown.entrants) == labels
    mine = shown.entrants["<lambda>()"]
    theirs = shown.entrants["multi_worker_mirrored"]
    assert mine.examples == theirs.examples == 12 * 128
    assert mine.loss == pytest.approx(theirs.loss, rel=1e-4)
    assert mine.observed["update"] == theirs.observed["update"]
    table = dict((row[0], row[1:]) for row in shown.rows())
    assert table["strategy"] == [labels[0], labels[1], "local_sgd()", "local_sgd()"]
    assert {"gradients", "update", "variables", "waits", "memory"} <= table.keys()
    assert "one worker's gradients" in table["update"][3]


def test_arguments_that_are_bound_keep_the_name_of_the_function() -> None:
    def every(task: Any, steps: int) -> Any:
        return local_sgd(task)

    run = start(partial(every, steps=3), framework="torch", **TWO).wait(60)
    assert run.spec.strategy == "every()" and run.result["strategy"] == "every()"


@compares_times()
def test_the_fields_of_a_run_hold_for_a_strategy_of_ones_own(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))  # of this try: a run wants an empty one
    fields = TWO | {"device_ms": 8, "slow": {"worker:1": 3}, "evaluate_every": 4, "hosts": 2}
    fields |= {"checkpoint_every": 5, "run_dir": folder / "run", "optimizer": "momentum"}
    run = start(averaged, workload=own_models.mlp, **fields).wait(60)
    result = run.result
    with of_times():
        assert result["idle_share"]["worker:0"] > 0.3
    assert result["reality"] == "emulated"
    assert len(run.digest.accuracies.values) == 3
    assert [each.steps for each in run.checkpoints()] == [10, 12]  # the last two
    assert result["wire_bytes_per_step"]["worker:0"]["sent"] > 0
    assert result["ledger"]["balanced"] and run.model() is not None
    assert SavedRun(run.run_dir).spec.strategy == run.spec.strategy
    again = fields | {"steps": 16, "resume": folder / "run", "run_dir": folder / "more"}
    more = start(averaged, workload=own_models.mlp, **again).wait(60)
    assert more.plan.resumed_from == 12


def test_replicas_apart_and_their_optimizers_come_back_from_a_checkpoint() -> None:
    fields = TWO | {"checkpoint_every": 5, "optimizer": "adamw"}
    whole = start(local_sgd, **fields).wait(60).result["parameter_digest"]
    assert len({*whole.values()}) == 2  # they are apart
    killed = start(local_sgd, max_restarts=1, faults="kill worker:1 at step 8", **fields)
    assert killed.wait(60).result["parameter_digest"] == whole


def test_a_schedule_of_ours_carries_out_what_a_page_in_tensorflow_averages() -> None:
    values: dict[str, Any] = {}
    exec(blocks("your_strategy.md")[-1], values)
    run = start(values["averaged_in_tensorflow"], all_reduce="hierarchical", workers=4, hosts=2)
    assert run.wait(60).result["observed"]["lead"] <= 1


def test_loops_of_ones_own_race_by_the_losses_that_they_record() -> None:
    fields: dict[str, Any] = {"framework": "torch", "workers": 2}
    with race(own_loops.torch_ddp, own_loops.torch_by_hand, **fields) as both:
        shown = both.wait(60).comparison
    assert [its.state for its in shown.entrants.values()] == ["finished", "finished"]
    assert all(its.examples for its in shown.entrants.values())


def test_the_command_line_takes_a_function_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    page = f"{PAGES}/local_sgd.py:local_sgd"

    def said(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        out = capsys.readouterr()
        return int(str(ended.value.code)), re.sub(r"\s+", " ", out.out + out.err)

    small = ["--workers", "2", "--steps", "8"]
    code, text = said("run", page, *small)
    assert code == 0 and "local_sgd() is done: 8 steps" in text
    code, text = said(
        "race", "multi_worker_mirrored,framework=torch", f"{page},device_ms=2", *small
    )
    assert code == 0 and "local_sgd()" in text
    code, text = said("run", page.replace(":local_sgd", ":global_sgd"))
    assert code == 2 and "has no function called global_sgd; it has local_sgd" in text
    code, text = said("race", "one_device", "nowhere.py:f")
    assert code == 2 and "there is no file nowhere.py" in text


def test_what_cannot_race_is_refused_in_words() -> None:
    with pytest.raises(SpecError, match="a strategy's name, a function"):
        race("one_device", 3)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(SpecError, match="each entrant has one of its own"):
        race(("a", averaged, {}), ("a", local_sgd, {}))
    keras = Workload("keras_alone", **own_models.LARGEST, tensorflow=own_models.keras_mlp)
    with pytest.raises(SpecError, match="has no model for it"):
        start(averaged, workload=keras)


# --- the facts of the library's strategies ---

ROWS = [
    (name, framework)
    for name, each in catalog.STRATEGIES.items()
    for framework, jobs in each.jobs.items()
    if jobs
]


def run_with_straggler(name: str, framework: str) -> Run:
    its, fields = catalog.find(name), dict[str, Any]()
    if its.default_workers > 1:
        fields["workers"] = 2 if its.model_parallel else 3
        if framework not in its.one_process:
            fields["slow"] = {"worker:1": 3}
    fields |= {"emulate": True} if name == "tpu" else {}
    return start(name, framework=framework, steps=16, device_ms=10, **fields).wait(120)  # type: ignore[arg-type]  # by name


def contradictions(seen: Observed, facts: Mapping[str, str]) -> list[str]:
    """The stated `facts` of a strategy, by name, that the trace of a run contradicts, each with
    what it shows; of a run with a straggler among several workers.
    """
    shown = seen._asdict()
    wrong = [
        f"{name}: {facts[name]!r} is stated, and the trace shows {shown[name]!r}"
        for name in ("gradients", "update", "variables")
        if (places := places_in(shown[name].partition(",")[0]))
        and not places & places_in(facts[name].partition(";")[0])
    ]
    free = re.search("nobody|no step|ahead|first", facts["waits"])
    # where the exchange is not at the end of a step, one may be there before another
    if seen.waits != ALONE and (seen.lead < 2 if free else seen.lead > 1):
        wrong.append(f"waits: {facts['waits']!r} is stated, and the trace shows {seen.waits!r}")
    return wrong


def places_in(text: str) -> set[str]:
    """The kinds of places that a text names."""
    words = {"ps": r"\bps\b|server", "worker": "worker|device|replica|stage|host|core"}
    return {kind for kind, word in words.items() if re.search(word, text)}


@pytest.mark.sample(3)
@compares_times()
@pytest.mark.parametrize(("name", "framework"), ROWS)
def test_the_trace_contradicts_no_fact_that_a_strategy_states(name: str, framework: str) -> None:
    seen = Observed(**run_with_straggler(name, framework).result["observed"])
    with of_times():
        assert contradictions(seen, catalog.find(name).facts) == []


@compares_times()
def test_the_trace_contradicts_facts_of_another_strategy() -> None:
    seen = {
        name: Observed(**run_with_straggler(name, "torch").result["observed"])
        for name in ("multi_worker_mirrored", "parameter_server")
    }
    synchronous, asynchronous = (catalog.find(name).facts for name in seen)
    wrong = " ".join(contradictions(seen["multi_worker_mirrored"], asynchronous))
    assert all(f"{fact}: " in wrong for fact in ("update", "variables", "waits"))
    wrong = " ".join(contradictions(seen["parameter_server"], synchronous))
    assert all(f"{fact}: " in wrong for fact in ("update", "variables", "waits"))
