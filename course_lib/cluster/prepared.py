"""All that is decided before a run starts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib import engines, workloads
from course_lib.collectives.schedule import Schedule
from course_lib.hardware import Machine, Plan
from course_lib.hardware.limits import version
from course_lib.record.rundir import RunDir, RunFacts
from course_lib.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from course_lib.cluster.run import Run


@dataclass(frozen=True)
class Prepared:
    """A run that can start. `programs`: by job, `module:function` or a function of the learner's
    own; `schedule`: its all-reduce, if that is not the framework's own; `summarize` makes the
    result of a run that is over; without it, that is what each task returned. `recovers`: see
    `Strategy`; `temporary`: see `RunFacts`.
    """

    spec: RunSpec
    machine: Machine
    plan: Plan
    programs: Mapping[str, Any]
    schedule: Schedule | None = None
    summarize: Callable[[Run], Any] | None = None
    recovers: str = ""
    temporary: bool = False
    engine: engines.Engine = engines.LOCAL

    def describe(self, files: RunDir, origin: float) -> None:
        """Write all that the tasks need to know into the run's directory. `origin`: see `Run`."""
        facts = RunFacts(
            **dict(self.plan),
            origin=origin,
            started=time.time(),
            # under a chief, which hands out the work, workers serve as well
            services=("ps", "worker") if self.spec.chief else ("ps",),
            recovers=self.recovers,
            temporary=self.temporary,
            sys_path=sys.path,
            cwd=str(Path.cwd()),
            version=version("lockstep-course"),
        )
        if own := workloads.OWN.get(self.spec.workload):
            own.leave(files.workload)
        files.describe(self.spec, facts, self.machine.as_dict(), self.programs, self.schedule)
