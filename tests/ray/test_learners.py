"""What learners call, with engine="ray": races, all-reduces, the command line, and code of their
own.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course_lib import Link, allreduce, compare, race, start
from course_lib.__main__ import main
from course_lib.errors import SpecError, Unavailable
from course_lib.racing.race import RESERVED


def test_a_race_on_a_cluster_says_what_is_known_of_its_fairness(cluster: str) -> None:
    fields: dict[str, Any] = {"framework": "torch", "steps": 20, "workers": 2}
    fields |= {"engine": f"ray:{cluster}"}
    names = "multi_worker_mirrored", "sync_parameter_server"
    paced = race(*names, device_ms=60, **fields).wait(120).comparison
    assert paced.fairness.fair is not None
    assert paced.fairness.busy is None  # the cores are not this machine's
    assert RESERVED in paced.notes
    bare = race(*names, **{**fields, "steps": 150}).wait(120).comparison
    assert bare.fairness.fair is None
    assert "cannot be told" in bare.fairness.why


def test_the_entrants_of_a_race_run_on_the_same_engine() -> None:
    with pytest.raises(SpecError, match=r"engine='local'.*must be the same for all"):
        race({"strategy": "multi_worker_mirrored", "engine": "ray"}, "parameter_server", workers=2)


def test_an_entrant_for_which_there_is_no_room_gives_back_the_room_of_the_others(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("course_lib.engines.ray.cluster.ROOM", 1)
    fields: dict[str, Any] = {"engine": f"ray:{cluster}", "workers": 3}
    with pytest.raises(Unavailable, match="the cluster has"):
        race(
            "multi_worker_mirrored",
            {"strategy": "multi_worker_mirrored", "label": "greedy", "workers": 100},
            **fields,
        )
    import ray
    from ray.util import placement_group_table

    assert all(group["state"] == "REMOVED" for group in placement_group_table().values())
    assert ray.is_initialized()


def test_an_all_reduce_between_nodes_is_measured_and_exact(cluster: str) -> None:
    on: dict[str, Any] = {"engine": f"ray:{cluster}"}
    results = compare("256KiB", ["ring", "hierarchical"], 4, hosts=2, repeats=3, **on)
    for result in results:
        assert result.exact
        assert result.reality == "measured"
        assert result.busiest_link_bytes > 0
        assert result.predicted_seconds > 0
    arrays = [np.arange(10.0) * i for i in range(3)]
    total = allreduce(arrays, "ring", hosts=3, repeats=1, **on)
    assert all(np.array_equal(array, sum(arrays)) for array in total.arrays)


def test_the_command_line_runs_on_a_cluster(
    cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    on = ["--engine", f"ray:{cluster}", "--json"]
    train = ["--framework", "torch", "--workers", "2", "--steps", "5"]
    names = ["multi_worker_mirrored", "sync_parameter_server"]
    for command in ["run", *train], ["race", *names, *train], ["allreduce", "--workers", "3"]:
        with pytest.raises(SystemExit) as ended:
            main([*command, *on])
        out, err = capsys.readouterr()
        assert not ended.value.code, err
        assert err == ""
        assert json.loads(out)
    with pytest.raises(SystemExit):
        main(["doctor", "--json"])
    assert json.loads(capsys.readouterr().out)["ray_cluster"]["address"] == cluster


LOSES_A_NODE = """
import os, signal, sys, time
from course_lib import start
from course_lib.errors import TaskFailed

def work(task):
    import psutil, time
    if task.index == 1:
        above = psutil.Process().parents()
        next(p for p in above if p.cmdline()[0].startswith("ray::RayNode")).kill()
    time.sleep(60)

run = start(work, workers=2, engine="ray:" + sys.argv[1])
try:
    run.wait(60)
except TaskFailed as failed:
    print(failed.task, "failed", flush=True)
time.sleep(2)  # what Ray says of it would come a moment later
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_only_what_we_say_is_printed_even_if_a_node_is_lost(cluster: str) -> None:
    command = [sys.executable, "-c", LOSES_A_NODE, cluster]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert (done.stdout, done.stderr) == ("worker:1 failed\n", "")
    assert done.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"link": Link(mbit=50)}, "link"),
        ({"link": {1: Link(mbit=50)}}, "link"),
        ({"faults": "cut host:1 at step 3"}, "faults"),
        ({"faults": "link host:1=50,0,0.01 at step 3"}, "faults"),
    ],
)
def test_links_are_imposed_on_this_machine_only(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError, match="with engine='local'") as refused:
        start("multi_worker_mirrored", workers=2, hosts=2, engine="ray", **fields)
    assert refused.value.field == field


def test_orders_to_links_are_refused_at_once(cluster: str) -> None:
    def work(task: Any) -> None:
        import time

        time.sleep(0.5)

    run = start(work, workers=2, hosts=2, engine=f"ray:{cluster}")
    for order in (lambda: run.link(0, Link(mbit=5)), lambda: run.partition(0), lambda: run.heal(0)):
        with pytest.raises(SpecError, match="with engine='local'"):
            order()
    run.wait(60)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A learner's folder, in which the notebook runs."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").write_text("")
    (tmp_path / "mine/sums.py").write_text(
        "import beside\ndef three():\n    return beside.TWO + 1\n"
    )
    (tmp_path / "beside.py").write_text("TWO = 2\n")
    (tmp_path / "data.csv").write_text("not code")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    return tmp_path


def test_modules_beside_the_notebook_come_along_to_nodes_that_have_not_its_folder(
    cluster: str, folder: Path
) -> None:
    def work(task: Any) -> Any:
        import sys
        from pathlib import Path

        from mine.sums import three

        place = Path(three.__code__.co_filename).parents[1]
        return three(), str(place), sys.path, sorted(p.name for p in place.rglob("*.*"))

    found = start(work, workers=3, engine=f"ray:{cluster}").wait(60).result
    for value, place, paths, names in found.values():
        assert value == 3
        assert place != str(folder)
        assert str(folder) not in paths
        assert [name for name in names if not name.endswith(".pyc")] == [
            "__init__.py",
            "beside.py",
            "sums.py",
        ]
    # it is changed, and so it is on the nodes
    (folder / "beside.py").write_text("TWO = 20\n")
    again = start(work, workers=2, engine=f"ray:{cluster}").wait(60).result
    assert {value[0] for value in again.values()} == {21}


OWN = """
import numpy as np
from course_lib import Workload
from beside import TWO


def network():
    import torch
    import beside  # where the tasks are

    return torch.nn.Linear(4, beside.TWO)


rng = np.random.default_rng(0)
x = rng.normal(size=(300, 4)).astype(np.float32)
y = (x.sum(axis=1) > 0).astype(np.int64)
mine = Workload("mine", train=(x, y), test=(x, y), torch=network, learning_rate=0.5)
"""


def test_an_own_workload_in_a_file_trains_on_the_nodes(cluster: str, folder: Path) -> None:
    (folder / "own.py").write_text(OWN)
    fields: dict[str, Any] = {"workload": "own.py:mine", "framework": "torch", "workers": 3}
    fields |= {"steps": 20, "global_batch": 30}
    here, there = (
        start("multi_worker_mirrored", **fields, **more).wait(90)
        for more in ({}, {"engine": f"ray:{cluster}"})
    )
    assert here.result["parameter_digest"] == there.result["parameter_digest"]
