"""`lockstep run` and `lockstep race`: the commands that train."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast

import typer

from course_lib.cluster.run import Run
from course_lib.commands.terminal import Json, Timeout, dump, progress, say, show, text, with_fields
from course_lib.errors import SpecError, Stalled
from course_lib.launch import start
from course_lib.racing import promises
from course_lib.racing.entrants import parse_entrant
from course_lib.racing.race import race as start_race
from course_lib.record import measures
from course_lib.record.life import Mark
from course_lib.record.progress import how_far
from course_lib.record.trace import Trace
from course_lib.strategies import pages
from course_lib.strategies.catalog import StrategyName

StrategyArgument = Annotated[
    str, typer.Argument(help="A strategy, see `lockstep strategies`, or FILE.py:NAME of your own.")
]
Entrants = Annotated[
    list[str],
    typer.Argument(
        help="Two strategies or more. Settings for one strategy alone follow a comma: "
        "multi_worker_mirrored,all_reduce=tree."
    ),
]
Target = Annotated[
    float | None,
    typer.Option(help="The loss they race for; if not given, the lowest that all reach."),
]
Accuracy = Annotated[
    float | None, typer.Option(help="The test accuracy they race for, such as 0.9, in its place.")
]

EXAMPLES = {
    "run": """\
lockstep run multi_worker_mirrored --framework torch --workers 4
lockstep run --hosts 2 --link 200,0.5 --all-reduce hierarchical
lockstep run --device-ms 20 --fault "pause worker:1 at step 40 for 2s\"""",
    "race": """\
lockstep race multi_worker_mirrored parameter_server --workers 4 --slow worker:3=4
lockstep race multi_worker_mirrored parameter_server --framework torch --target-accuracy 0.9
lockstep race multi_worker_mirrored,all_reduce=ring multi_worker_mirrored,all_reduce=tree""",
    "check_strategy": """\
lockstep check-strategy multi_worker_mirrored --framework torch
lockstep check-strategy fully_sharded --framework torch --precision bfloat16
lockstep check-strategy notebooks/strategies/local_sgd.py:local_sgd""",
}
"""The examples at the end of each command's help."""


@with_fields()
def run(
    strategy: StrategyArgument = "multi_worker_mirrored",
    *,
    fields: dict[str, Any],
    timeout: Timeout = 600.0,
    as_json: Json = False,
) -> None:
    """Train with a strategy, in real processes."""
    what = cast(StrategyName, pages.named(strategy))  # `start` refuses other names
    with start(what, **fields) as started:
        if not as_json:
            for reason in started.plan.reasons:
                say(f"{reason.what}: {reason.choice}. {reason.why}", stderr=True)
            say(f"record: {started.run_dir}", stderr=True)
        follow(started.wait, {started.spec.strategy: started}, timeout)
        result = started.result
    if as_json:
        dump(result)
    else:
        report(result, started.trace)


def follow(wait: Callable[[float], object], runs: Mapping[str, Run], timeout: float) -> None:
    """Wait with `wait(seconds)` for the end, and show meanwhile on a terminal how far each of these
    `runs` is; after an interrupt, how far it was. Raises as `wait` does.
    """
    deadline = time.monotonic() + timeout
    with progress() as shown:
        bars = {name: shown.add_task(name, total=run.spec.steps) for name, run in runs.items()}
        happened: dict[str, list[Mark]] = {name: [] for name in runs}
        while True:
            left = deadline - time.monotonic()
            try:
                wait(timeout if shown.disable else max(0.0, min(0.25, left)))
                return
            except KeyboardInterrupt:
                shown.stop()
                for name, run in runs.items():
                    done = f"{run.digest.steps_done} of {run.spec.steps} steps"
                    say(f"{name}: {done} were done. The record of this run:", stderr=True)
                    print(run.run_dir, file=sys.stderr)  # in one piece, to be copied
                raise
            except Stalled as stalled:
                if stalled.standing or left <= 0 or shown.disable:
                    raise
            for name, run in runs.items():
                marks = run.digest.life.marks()
                for mark in marks[len(happened[name]) :]:
                    shown.console.print(
                        f"{name}: {mark.word} {', '.join(mark.who)}, {mark.at:.1f} s"
                    )
                happened[name] = marks
                words = how_far(run, name)
                shown.update(bars[name], completed=run.digest.steps_done, description=words)


def report(result: dict[str, Any], trace: Trace) -> None:
    """Print a finished run as tables."""
    apart = ("run_dir", "memory", "memory_formula")  # shown below
    known = {name: value for name, value in result.items() if value not in (None, {}, [])}
    values = [[name, text(value, name)] for name, value in known.items() if name not in apart]
    show(["result", "seconds are counted from the start of the command"], values)
    say("Where each task's time went, the first step included (TensorFlow compiles in it):")
    say(measures.table(trace))
    if result["memory"]:
        say("\nWhat takes up each task's memory in its first step, counted and by the formula:")
        say(measures.memory_table(result["memory"], result["memory_formula"]))
    learned = {name: value for name, value in known.items() if name.startswith("test_")}
    figures = {"seconds": result["seconds"].get("total"), "loss": result["final_loss"], **learned}
    outcome = f"{result['strategy']} {'was stopped' if result['stopped'] else 'is done'}"
    parts = [f"{name.replace('_', ' ')} {text(v)}" for name, v in figures.items() if v is not None]
    say("", ", ".join([f"{outcome}: {result['steps_done']:,} steps", *parts]) + ".")
    print(f"\nThe record of this run:\n{result['run_dir']}")  # in one piece, to be copied


@with_fields()
def race(
    entrants: Entrants,
    *,
    fields: dict[str, Any],
    target_loss: Target = None,
    target_accuracy: Accuracy = None,
    timeout: Timeout = 600.0,
    as_json: Json = False,
) -> None:
    """Run strategies at the same time, each in its own processes with an equal share of this
    machine, and compare them.
    """
    if len(entrants) < 2:
        example = "lockstep race one_device multi_worker_mirrored"
        raise SpecError("race", entrants[0], f"two strategies or more, such as: {example}")
    targets = {"target_loss": target_loss, "target_accuracy": target_accuracy}
    with start_race(*map(parse_entrant, entrants), **targets, **fields) as started:
        follow(started.wait, started.runs, timeout)
    if as_json:
        dump(started.as_dict())
    else:
        shown = started.comparison
        show(shown.headers(), shown.rows())
        say(*shown.words())


@with_fields("framework", "workload", "sizes", "optimizer", "learning_rate", "precision", "engine")
def check_strategy(
    strategy: StrategyArgument, *, fields: dict[str, Any], as_json: Json = False
) -> int:
    """Check whether a strategy is what it promises to be.

    The exit code is 0 if no promise is broken, else 1.
    """
    findings = promises.check_strategy(pages.named(strategy), **fields)
    if as_json:
        dump([vars(each) for each in findings.findings])
    else:
        show([findings.strategy, "", ""], findings.rows())
    return 0 if findings else 1
