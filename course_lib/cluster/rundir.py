"""The run directory: the record of a run, readable without a cluster and without this library."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from course_lib.cluster import nursery
from course_lib.cluster.process import temporary_dir
from course_lib.collectives.schedule import Schedule
from course_lib.errors import SpecError
from course_lib.hardware import Machine, Plan
from course_lib.spec import RunSpec

KEEP = 50  # runs kept in the default place; older ones make room


class RunDir:
    """`spec.json`, `machine.json`, `run.json` (plan, tasks, programs, origin of the clock),
    `tasks/worker-0/` and so on, `result.json` at the end.
    """

    def __init__(self, spec: RunSpec) -> None:
        try:
            self.path = _make(spec)
        except OSError as error:
            raise SpecError(
                "run_dir",
                str(spec.run_dir),
                f"cannot be written ({error.strerror}); name a directory that can",
            ) from None

    def describe(
        self,
        spec: RunSpec,
        plan: Plan,
        machine: Machine,
        origin: float,
        programs: Mapping[str, str] | Mapping[str, Callable[..., Any]],
        schedule: Schedule | None = None,
    ) -> None:
        """Write down all that the tasks need to know before they start."""
        if schedule:
            (self.path / "schedule.pickle").write_bytes(pickle.dumps(schedule))
        by_name = all(isinstance(program, str) for program in programs.values())
        if not by_name:
            (self.path / "programs.pickle").write_bytes(cloudpickle.dumps(dict(programs)))
        run = {
            "origin": origin,
            "started": time.time(),
            "reality": plan.reality,
            "network": plan.network,
            "rate": plan.rate,
            "delay": plan.delay,
            "backend": plan.backend,
            "start_method": plan.start_method,
            "reasons": [[r.what, r.choice, r.why] for r in plan.reasons],
            "programs": dict(programs) if by_name else None,
            # under a chief, which hands out the work, workers serve as well
            "services": ["ps", "worker"] if spec.chief else ["ps"],
            "tasks": {
                task: {"threads": plan.threads, "device": plan.devices[task]} for task in spec.tasks
            },
            "sys_path": sys.path,
            "cwd": str(Path.cwd()),
        }
        (self.path / "run.json").write_text(json.dumps(run, indent=1))
        (self.path / "machine.json").write_text(json.dumps(machine.as_dict(), indent=1))
        (self.path / "spec.json").write_text(spec.model_dump_json(indent=1))
        for task in spec.tasks:
            temporary_dir(self.path, task).mkdir(parents=True)


def _make(spec: RunSpec) -> Path:
    """An empty directory of this run's own."""
    if spec.run_dir is None:
        runs = nursery.home() / "runs"
        runs.mkdir(exist_ok=True, mode=0o700)
        _make_room(runs)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        return Path(tempfile.mkdtemp(prefix=f"{stamp}-{spec.strategy}-", dir=runs))
    path = spec.run_dir.expanduser().resolve()
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(path.iterdir()):
        raise SpecError(
            "run_dir",
            str(spec.run_dir),
            "is not empty; name a directory that is empty or does not exist",
        )
    if not os.access(path, os.W_OK):
        raise SpecError(
            "run_dir", str(spec.run_dir), "cannot be written; name a directory that can"
        )
    return path


def _make_room(runs: Path) -> None:
    """Remove the oldest runs, those of the last hour excepted: they may still go on."""
    old = sorted(
        (p for p in runs.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime, reverse=True
    )[KEEP:]
    for path in old:
        if time.time() - path.stat().st_mtime > 3600:
            shutil.rmtree(path, ignore_errors=True)
