"""`lockstep run`, `lockstep race` and `lockstep chaos`: the commands that train."""

import json
import statistics
import sys
import time
from collections import Counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from course_lib.chaos import episodes, play
from course_lib.cluster.run import Run
from course_lib.commands.shared import Json, Timeout, show, strict, text, with_fields
from course_lib.errors import SpecError, Stalled
from course_lib.launch import start
from course_lib.racing.entrants import parse_entrant
from course_lib.racing.race import race as start_race
from course_lib.record import measures, memory
from course_lib.record.digest import Digest
from course_lib.record.trace import Trace
from course_lib.strategies import catalog


@with_fields
def run(
    strategy: Annotated[
        str, typer.Argument(help="The name of a strategy, see `lockstep strategies`.")
    ] = "multi_worker_mirrored",
    *,
    fields: dict[str, Any],
    timeout: Timeout = 600.0,
    as_json: Json = False,
) -> None:
    """Train with a strategy, in real processes on this machine."""
    known = catalog.STRATEGIES.get(strategy)
    # so that one command goes through all strategies
    if known and fields.get("workers", 1) > known.max_workers == 1:
        workers = fields.pop("workers")
        print(f"{strategy} has one worker: --workers {workers} is left out", file=sys.stderr)
    with start(strategy, **fields) as started:
        if not as_json:
            stderr = Console(stderr=True, highlight=False)
            for reason in started.plan.reasons:
                stderr.print(f"[bold]{reason.what}[/bold] {reason.choice}: {reason.why}")
        follow(started, timeout)
        result = started.result
    if as_json:
        print(json.dumps(strict(result)))
    else:
        report(result, started.trace)


def follow(run: Run, timeout: float) -> None:
    """Wait for a run to end and show its progress on stderr, if that is a terminal.

    Raises as `Run.wait` does.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        run.wait(timeout)
        return
    what, figures = TextColumn("{task.description}"), TextColumn("{task.fields[figures]}")
    columns = what, BarColumn(), MofNCompleteColumn(), figures, TimeElapsedColumn()
    deadline, digest = time.monotonic() + timeout, Digest(run.spec)
    name = f"{run.spec.strategy} ({run.spec.framework})"
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(name, total=run.spec.steps, figures="starting")
        while True:
            try:
                run.wait(0.25)
                return
            except Stalled as stalled:
                if stalled.standing:
                    raise
                if time.monotonic() >= deadline:
                    raise Stalled(stalled.does, timeout) from None
                digest.look(run.trace)
                said = so_far(digest) or run.state
                progress.update(bar, completed=digest.steps_done, figures=said)


def so_far(digest: Digest) -> str:
    """The last loss and the throughput so far, in words."""
    loss, rate = digest.losses.last, digest.losses.rate()
    speed = f", {rate:,.0f} examples/s" if rate else ""
    return "" if loss is None else f"loss {loss:.3f}{speed}"


def report(result: dict[str, Any], trace: Trace) -> None:
    """Print a finished run as tables."""
    apart = ("run_dir", "memory", "memory_formula")  # shown below
    known = {name: value for name, value in result.items() if value not in (None, {}, [])}
    values = [[name, text(value)] for name, value in known.items() if name not in apart]
    show(["result", "seconds are counted from the start of the command"], values)
    compiles = ", in which TensorFlow compiles" if result["framework"] == "tensorflow" else ""
    print(f"Where each task's time went, the first step included{compiles}:")
    print(measures.table(trace))
    if result["memory"]:
        print("What takes up each task's memory, in its first step (in brackets: by the formula):")
        print(memory.table(result["memory"], result["memory_formula"]))
    print(f"The record of this run: {result['run_dir']}")


@with_fields
def race(
    entrants: Annotated[
        list[str],
        typer.Argument(
            help="Two strategies or more. Settings for one strategy alone follow a comma: "
            "one_device,device_ms=80."
        ),
    ],
    *,
    fields: dict[str, Any],
    target_loss: Annotated[
        float | None,
        typer.Option(help="The loss they race for; if not given, the lowest that all reach."),
    ] = None,
    target_accuracy: Annotated[
        float | None,
        typer.Option(
            help="The test accuracy they race for, such as 0.9, measured every 10 steps or as "
            "--evaluate-every says."
        ),
    ] = None,
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
        started.wait(timeout)
    if as_json:
        print(json.dumps(strict(started.as_dict())))
    else:
        shown = started.comparison
        show(shown.headers(), shown.rows())
        print("\n".join(shown.words()))


def chaos(
    count: Annotated[int, typer.Option("--episodes", min=1, help="How many runs.")] = 200,
    seed: Annotated[int, typer.Option(help="Decides what happens in which run.")] = 1,
    strategies: Annotated[
        str, typer.Option(help="Names, separated by commas; all if none are given.")
    ] = "",
    framework: Annotated[str, typer.Option(help="tensorflow or torch; both if not given.")] = "",
    faults: Annotated[
        str, typer.Option(help="Kinds, such as slow,jitter,link; all if none are given.")
    ] = "",
    replay: Annotated[str, typer.Option(help="Play this one episode.")] = "",
) -> int:
    """Play short runs with a random fault in each, and look for hangs, leaks, errors that name
    nobody, false alarms, gradients that are lost and wrong models. The exit code is 1 if anything
    is found.
    """
    names, kinds = ([name for name in each.split(",") if name] for each in (strategies, faults))
    played = [replay] if replay else episodes(count, seed, names, framework, kinds)
    ended, problems, seconds = Counter[str](), Counter[str](), list[float]()
    for number, episode in enumerate(played, 1):
        outcome = play(episode)
        what = "no error" if outcome.seconds is None else "an error"
        ended[f"{outcome.fault.do}: {what}"] += 1
        problems.update(problem.partition(":")[0] for problem in outcome.problems)
        seconds += [outcome.seconds] if outcome.seconds is not None else []
        print(f"{number}: {episode}\n   {outcome.ended}", flush=True)
        for problem in outcome.problems:
            print(f"   FAILED, {problem}\n   lockstep chaos --replay {episode!r}", flush=True)
    rows = [[name, str(times)] for name, times in sorted(ended.items())]
    if seconds:
        middle, most = statistics.median(seconds), max(seconds)
        rows.append(["fault to error", f"median {middle:.2f} s, at most {most:.2f} s"])
    rows.append(["problems", ", ".join(f"{n} {what}" for what, n in problems.items()) or "none"])
    show(["episodes", str(ended.total())], rows)
    return int(bool(problems))
