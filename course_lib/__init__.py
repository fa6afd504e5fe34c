"""Lockstep: learn distributed training by running it.

    from course_lib import start
    run = start("multi_worker_mirrored", workers=4)   # four TensorFlow processes, in the background
    run.wait().result

Importing this package loads neither TensorFlow nor PyTorch: they live in the processes it starts.
If this process imports TensorFlow later, that is quiet.
"""

import sys
from typing import TYPE_CHECKING

from course_lib.notebook import lazy, shell
from course_lib.notebook.output import QuietTensorFlow

if TYPE_CHECKING:  # these are the public names, for `lazy` as well
    from course_lib.cards import machine_card as machine_card
    from course_lib.cards import strategy_table as strategy_table
    from course_lib.cluster.nursery import warm as warm
    from course_lib.cluster.run import Run as Run
    from course_lib.course.answers import check as check
    from course_lib.course.answers import hint as hint
    from course_lib.course.answers import progress as progress
    from course_lib.errors import SpecError as SpecError
    from course_lib.errors import Stalled as Stalled
    from course_lib.errors import TaskFailed as TaskFailed
    from course_lib.errors import Unavailable as Unavailable
    from course_lib.hardware import probe as machine
    from course_lib.launch import start as start
    from course_lib.racing.promises import check_strategy as check_strategy
    from course_lib.racing.race import Race as Race
    from course_lib.racing.race import race as race
    from course_lib.record.measures import median_step as median_step
    from course_lib.record.measures import step_times as step_times
    from course_lib.record.saved import SavedRun as SavedRun
    from course_lib.record.trace import Trace as Trace
    from course_lib.reduction.allreduce import allreduce as allreduce
    from course_lib.reduction.allreduce import compare as compare
    from course_lib.reduction.allreduce import stage as stage
    from course_lib.spec.fields import Link as Link
    from course_lib.spec.run_spec import RunSpec as RunSpec
    from course_lib.strategies.pages import strategy as strategy
    from course_lib.widgets.cards.runs import runs as runs
    from course_lib.workloads.workload import Workload as Workload

sys.meta_path.insert(0, QuietTensorFlow)
shell.explain_missing_names()
__getattr__, __dir__ = lazy.names(__name__)
