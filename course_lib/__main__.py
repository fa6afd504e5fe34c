"""The command line: `lockstep` or `python -m course_lib`. A thin shell over the same functions that notebooks call.

Exit codes: 0 fine, 1 a run that failed, 2 bad input or something this machine cannot do, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from course_lib import hardware, measures, start
from course_lib.collectives import ALGORITHMS
from course_lib.errors import LockstepError, SpecError, Stalled, Unavailable
from course_lib.progress import follow
from course_lib.racing.call import race
from course_lib.racing.entrants import parse_entrant
from course_lib.reduction.call import compare
from course_lib.spec import RunSpec, parse_slow
from course_lib.strategies import catalog
from course_lib.trace import Trace
from course_lib.widgets.still import lanes_svg

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Learn distributed training by running it.", rich_markup_mode=None)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def about(field: str) -> str:
    """Help for an option, from the spec that also checks it."""
    text = RunSpec.model_fields[field].description or ""
    return text[0].upper() + text[1:] + "."


# Options of several commands.
Framework = Annotated[str | None, typer.Option(help="tensorflow or torch.")]
Workload = Annotated[str | None, typer.Option(help="digits, digits_cnn or wide.")]
Slow = Annotated[list[str] | None, typer.Option(help="A straggler: task=factor, such as worker:1=3. May be repeated.")]
Workers = Annotated[int | None, typer.Option(help=about("workers"))]
Ps = Annotated[int | None, typer.Option(help=about("ps"))]
AllReduce = Annotated[str | None, typer.Option(help=about("all_reduce"))]
Parameters = Annotated[int | None, typer.Option(help=about("parameters"))]
GlobalBatch = Annotated[int | None, typer.Option(help=about("global_batch"))]
Steps = Annotated[int | None, typer.Option(help=about("steps"))]
Seed = Annotated[int | None, typer.Option(help=about("seed"))]
LearningRate = Annotated[float | None, typer.Option(help=about("learning_rate"))]
DeviceMs = Annotated[float | None, typer.Option(help=about("device_ms"))]


@app.command()
def run(
    strategy: Annotated[str, typer.Argument(help=about("strategy"))] = "multi_worker_mirrored",
    framework: Framework = None,
    workers: Workers = None,
    ps: Ps = None,
    all_reduce: AllReduce = None,
    cross_device_ops: Annotated[str | None, typer.Option(help=about("cross_device_ops"))] = None,
    staleness_bound: Annotated[int | None, typer.Option(help=about("staleness_bound"))] = None,
    backups: Annotated[int | None, typer.Option(help=about("backups"))] = None,
    microbatches: Annotated[int | None, typer.Option(help=about("microbatches"))] = None,
    pipeline: Annotated[str | None, typer.Option(help=about("pipeline"))] = None,
    emulate: Annotated[bool | None, typer.Option("--emulate", help=about("emulate"))] = None,
    hosts: Annotated[int | None, typer.Option(help=about("hosts"))] = None,
    workload: Workload = None,
    parameters: Parameters = None,
    global_batch: GlobalBatch = None,
    steps: Steps = None,
    seed: Seed = None,
    learning_rate: LearningRate = None,
    device_ms: DeviceMs = None,
    slow: Slow = None,
    run_dir: Annotated[Path | None, typer.Option(help=about("run_dir"))] = None,
    no_trace: Annotated[bool, typer.Option("--no-trace", help="Record no events.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, max=86400, help="Seconds to wait for the end of the run.")] = 600.0,
    as_json: Json = False,
) -> None:
    """Train with a strategy, in real processes on this machine."""
    given: dict[str, Any] = dict(
        framework=framework,
        workers=workers,
        ps=ps,
        all_reduce=all_reduce,
        cross_device_ops=cross_device_ops,
        staleness_bound=staleness_bound,
        backups=backups,
        microbatches=microbatches,
        pipeline=pipeline,
        emulate=emulate,
        hosts=hosts,
        workload=workload,
        parameters=parameters,
        global_batch=global_batch,
        steps=steps,
        seed=seed,
        learning_rate=learning_rate,
        device_ms=device_ms,
        run_dir=run_dir,
    )
    fields = {name: value for name, value in given.items() if value is not None}
    with start(strategy, slow=dict(map(parse_slow, slow or [])), trace=not no_trace, **fields) as started:
        if not as_json:
            for reason in started.plan.reasons:
                Console(stderr=True).print(f"[bold]{reason.what}[/bold] {reason.choice}: {reason.why}", highlight=False)
        follow(started, timeout)
        result = started.result
    if as_json:
        print(json.dumps(result))
    else:
        Console().print(_table(["result", "seconds are counted from the call"], [[name, _show(value)] for name, value in result.items()]))
        print(measures.table(started.trace))


@app.command("race")
def run_race(
    entrants: Annotated[
        list[str], typer.Argument(help="Two strategies or more. Fields of its own follow a comma: one_device,device_ms=80.")
    ],
    framework: Framework = None,
    workers: Workers = None,
    all_reduce: AllReduce = None,
    ps: Ps = None,
    workload: Workload = None,
    parameters: Parameters = None,
    global_batch: GlobalBatch = None,
    steps: Steps = None,
    seed: Seed = None,
    learning_rate: LearningRate = None,
    device_ms: DeviceMs = None,
    slow: Slow = None,
    target_loss: Annotated[float | None, typer.Option(help="The loss they race for; if not given, the lowest that all reach.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="A directory for the entrants' run directories.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=86400, help="Seconds to wait for the end of the race.")] = 600.0,
    as_json: Json = False,
) -> None:
    """Run strategies at the same time, each in its own processes with an equal share of this machine, and compare them."""
    fields: dict[str, Any] = dict(
        framework=framework,
        workers=workers,
        all_reduce=all_reduce,
        ps=ps,
        workload=workload,
        parameters=parameters,
        global_batch=global_batch,
        steps=steps,
        seed=seed,
        learning_rate=learning_rate,
        device_ms=device_ms,
        run_dir=run_dir,
    )  # those that are None are left out by race
    with race(*map(parse_entrant, entrants), target_loss=target_loss, slow=dict(map(parse_slow, slow or [])), **fields) as started:
        started.wait(timeout)
    if as_json:
        print(json.dumps(started.as_dict()))
    else:
        shown = started.comparison
        Console().print(_table(shown.headers(), shown.rows()))
        print("\n".join(shown.words()))


@app.command()
def allreduce(
    algorithm: Annotated[str, typer.Argument(help="Its name, see --all.")] = "ring",
    workers: Annotated[int, typer.Option(help="How many workers.")] = 4,
    hosts: Annotated[int, typer.Option(help="How many hosts they are on: memory is shared on a host, TCP goes between hosts.")] = 1,
    size: Annotated[str, typer.Option("--bytes", help="What each worker brings, such as 4MiB.")] = "1MiB",
    dtype: Annotated[str, typer.Option(help="The numpy dtype of its elements.")] = "float32",
    simulated: Annotated[bool, typer.Option("--simulate", help="Start no process: the model's time.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All algorithms side by side.")] = False,
    as_json: Json = False,
) -> None:
    """Sum an array over workers, by an algorithm of the course, in real processes on this machine."""
    names = list(ALGORITHMS) if everything else [algorithm]
    found = [result.as_dict() for result in compare(size, names, workers, hosts, dtype, simulated=simulated)]
    if as_json:
        print(json.dumps(found if everything else found[0]))
    elif everything:
        headers = ["algorithm", "rounds", "sends", "on a link", "ms", "predicted", "GB/s", "exact"]
        Console().print(_table(headers, [_figures(row) for row in found]))
    else:
        Console().print(_table(["result", ""], [[name, _show(value)] for name, value in found[0].items()]))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Show what this machine offers, what is not available, and why."""
    machine = hardware.probe()
    try:
        planned = [(r.what, r.choice, r.why) for r in hardware.plan(RunSpec(), machine).reasons]
    except SpecError as too_small:
        planned = [("memory", "too little", str(too_small))]
    if as_json:
        reasons = [{"what": what, "choice": choice, "why": why} for what, choice, why in planned]
        print(json.dumps({"machine": machine.as_dict(), "versions": hardware.versions(), "plan": reasons}))
        return
    console = Console()
    console.print(_table(["this machine", "", "what it means"], hardware.machine_rows(machine)))
    console.print(_table(["four workers here", "", "why"], planned))
    console.print(_table(["package", "version"], hardware.versions().items()))


@app.command()
def strategies(as_json: Json = False) -> None:
    """List the strategies, and which of them run here."""
    rows = catalog.rows(hardware.probe())
    if as_json:
        print(json.dumps(rows))
        return
    shown = ("strategy", "framework", "reality", "update", "waits")
    Console().print(_table(list(shown), [[_show(row[name]) for name in shown] for row in rows]))


@app.command()
def picture(
    run_dir: Annotated[Path, typer.Argument(help="The directory of a run, as `run` prints it.")],
    out: Annotated[Path, typer.Option(help="The SVG file to write.")],
    first: Annotated[int, typer.Option(min=0, help="The first step to show.")] = 20,
    steps: Annotated[int, typer.Option(min=1, max=100, help="How many steps to show.")] = 6,
    title: Annotated[str, typer.Option(help="The title; the strategy's name if not given.")] = "",
) -> None:
    """Draw what each worker of a run did, from its trace, as an SVG file."""
    try:
        trace = Trace.of_run(run_dir)
        spec = RunSpec.model_validate_json((run_dir / "spec.json").read_text())
        out.write_text(lanes_svg(trace, title or f"{spec.strategy}, {spec.framework}, {spec.workers} workers", first, steps))
    except (OSError, ValueError) as error:
        raise SpecError("picture", str(run_dir), f"cannot be drawn: {error}") from None
    print(out)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(context: typer.Context) -> NoReturn:
    """Open the course in JupyterLab; further arguments go to `jupyter lab`."""
    notebooks = Path(__file__).parent.parent / "notebooks"
    if not notebooks.is_dir():
        raise Unavailable("the course", "the notebooks are not beside this package", "Clone the repository and use `make lab` there.")
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", f"--notebook-dir={notebooks.parent}", *context.args])


def _table(headers: list[str], rows: Any) -> Table:
    first, *others = headers
    table = Table(collapse_padding=True)
    table.add_column(first, no_wrap=True, min_width=18)  # the names that people must type
    for header in others:
        table.add_column(header)
    for row in rows:
        table.add_row(*row)
    return table


def _figures(row: dict[str, Any]) -> list[str]:
    """A line of the table of all-reduces."""
    amounts = [decimal(row[name]) for name in ("bytes_sent_per_worker", "busiest_link_bytes")]
    times = [f"{row[name] * 1e3:.3g}" for name in ("seconds", "predicted_seconds")]
    return [row["algorithm"], str(row["rounds"]), *amounts, *times, f"{row['bus_bandwidth'] / 1e9:.2f}", "yes" if row["exact"] else "NO"]


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    if isinstance(value, dict):
        return "\n".join(f"{name} {_show(inner)}" for name, inner in value.items())
    return str(value)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; every error is one readable text on stderr."""
    try:
        sys.exit(app(arguments, standalone_mode=False) or 0)
    except (SpecError, Unavailable) as error:
        _fail(error, 2)
    except Stalled as stalled:
        waited = "; ".join(f"{task} {last}" for task, last in stalled.waiting_for.items())
        _fail(f"not over after {stalled.seconds:g} s (--timeout), so it was stopped. Still waiting for: {waited}", 1)
    except LockstepError as error:
        _fail(error, 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted; the run was stopped", 130)
    except Exception as error:
        if not hasattr(error, "format_message"):  # what the option parser raises has one
            raise
        _fail(error.format_message(), 2)


def _fail(error: object, code: int) -> NoReturn:
    print(f"lockstep: {error}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
