"""Chaos: many short runs, each with a fault that is drawn at random, and whether all is well after.

    python -m tests.chaos --episodes 20
    python -m tests.chaos --episodes 500 --faults slow,jitter,link

An episode is written as an entrant of a race, `parameter_server,framework=torch,...,fault=...`, so
that it can be played again. It has failed if

    hung        nothing ended it or was raised in time, or it could not be stopped
    leaked      a process, a descriptor or a temporary file of it is left
    wrong       a fault that ends nothing ended it, or the error names somebody else or nobody
    alarm       it was only slow, and was said to stand still
    unbalanced  the ledger of its gradients does not add up
    other model it finished with other weights than a run without the fault, where these are always
                the same
"""

from __future__ import annotations

import contextlib
import functools
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import psutil
import typer

from course_lib.__main__ import app, main
from course_lib.cluster.run import Run
from course_lib.commands.terminal import progress, say, show
from course_lib.errors import LockstepError, SpecError, Stalled, TaskFailed, Unavailable
from course_lib.hardware import probe
from course_lib.launch import start
from course_lib.racing.entrants import parse_entrant
from course_lib.record.events import Lifecycle, clock
from course_lib.record.ledger import ledger
from course_lib.record.rundir import RunDir
from course_lib.spec.faults import Fault
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import catalog
from tests.helpers import spec_for

STEPS, DEVICE_MS = 8, 30
BOUND = 30.0  # seconds that an episode may take once it runs
SOON = 2.0  # seconds in which what belonged to it has to be gone
DRAWS = 1000  # so often one is drawn anew that is impossible, such as hosts in one process
FATAL = ("kill", "raise", "exit", "oom")
SLOWING = ("slow", "jitter", "link")
FAULTS = {  # by kind; {} is the task
    "kill": ("kill {}", "kill host:1"),
    "pause": ("pause {}", "pause {} for 300ms"),
    "raise": ("raise {}",),
    "exit": ("exit {}",),
    "oom": ("oom {}",),
    "slow": ("slow {}=4", "slow {}=6 for 200ms"),
    "jitter": ("jitter {}=exponential:50ms", "jitter {}=one_in:8:1200ms"),
    "link": ("link host:1=20", "link host:1=100,0,0.05"),
    "cut": ("cut host:1", "cut host:1 for 300ms"),
}


class Outcome(NamedTuple):
    """What came of an episode: how it `ended`, in a line, the `problems`, and how many `seconds`
    after the fault the error came, if one did.
    """

    fault: Fault
    ended: str
    problems: tuple[str, ...]
    seconds: float | None


def episodes(
    count: int,
    seed: int,
    strategies: Sequence[str] = (),
    framework: str = "",
    faults: Sequence[str] = (),
) -> Iterator[str]:
    """So many episodes, always the same ones for a seed; of all strategies and kinds of `faults` if
    none are named.
    """
    if unknown := [name for name in faults if name not in FAULTS]:
        raise SpecError.unknown("faults", unknown[0], FAULTS)
    allowed = [FAULTS[name] for name in faults or FAULTS]
    rows = [
        (row["strategy"], row["framework"])
        for row in catalog.rows(probe())
        if row["strategy"] in [catalog.find(name).name for name in strategies or [row["strategy"]]]
        and row["framework"] == (framework or row["framework"])
        and (row["reality"] != "unavailable" or "emulate" in catalog.find(row["strategy"]).takes)
    ]
    if not rows:
        raise SpecError("framework", framework, "none of these strategies runs in it")
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        for _ in range(DRAWS):
            text = _drawn(rng, *rng.choice(rows), rng.choice(allowed))
            with contextlib.suppress(SpecError, Unavailable):
                spec_of(text)
                break
        else:
            raise SpecError("faults", ",".join(faults), "none can happen under these strategies")
        yield text


def _drawn(rng: random.Random, strategy: str, framework: str, forms: Sequence[str]) -> str:
    """A random episode with a fault of one of these forms, which may be impossible."""
    fault, found = rng.choice(forms), catalog.find(strategy)
    workers = min(rng.choice((2, 3)), found.max_workers)
    fields = [f"framework={framework}", f"workers={workers}"]
    fields += [f"steps={STEPS}", f"device_ms={DEVICE_MS}"]
    fields += ["hosts=2"] * ("host" in fault)
    fields += ["emulate=true"] * ("emulate" in found.takes)
    if fault.split()[0] in FATAL and rng.random() < 0.5:
        fields += ["max_restarts=1", *["checkpoint_every=3"] * rng.choice((0, 1))]
    task = rng.choice(("worker:0", "worker:1", "worker:2", "ps:0", "chief:0"))
    moment = rng.choice((f"step {rng.randrange(STEPS)}", f"{rng.randrange(500)}ms"))
    what, _, lasts = fault.format(task).partition(" for ")
    fault = f"{what} at {moment}" + (f" for {lasts}" if lasts else "")
    return ",".join([strategy, *fields, f"fault={fault}"])


def spec_of(text: str, **without: Any) -> RunSpec:
    """The run of an episode, `without` some of its fields."""
    fields = parse_entrant(text)
    return spec_for(fields.pop("strategy"), **(fields | without))


def play(text: str) -> Outcome:
    """Play an episode."""
    spec = spec_of(text)
    # without its fault; this also starts the zygote, which is to stay
    usual = spec_of(text, faults=(), max_restarts=0, checkpoint_every=0).model_dump_json()
    weights = _weights(usual)
    before = psutil.Process().num_fds()
    with tempfile.TemporaryDirectory(prefix="lockstep-chaos-") as folder:
        problems: list[str] = []
        raised: LockstepError | None = None
        alarm = ""
        run = start(spec.model_copy(update={"run_dir": Path(folder, "run")}))
        try:
            alarm = _standing(run.wait_running(BOUND))
            run.wait(BOUND)
        except LockstepError as error:
            raised = error
        at = clock() - run.files.facts.origin
        try:
            run.stop(timeout=BOUND)
        except Stalled as stalled:
            problems.append(f"hung: {stalled}")
        done = [e for e in run.trace.all(Lifecycle) if e.fault and e.state != "refused"]
        problems += _judged(run, spec.faults[0], bool(done), raised, alarm)
        problems += [f"leaked: {what}" for what in _left(run, before)]
        problems += [f"unbalanced: {wrong}" for wrong in ledger(run.trace).wrong[:3]]
        together = catalog.find(spec.strategy).recovers == "together"
        if together and run.state == "finished" and run.result["parameter_digest"] != weights:
            # no problem where two runs without a fault differ as well
            problems += ["other model"] * (weights == _weights(usual, again=1))
        ended = str(raised).splitlines()[0] if raised else run.state
        seconds = at - done[0].at if raised and done else None
        return Outcome(spec.faults[0], ended, tuple(problems), seconds)


@functools.cache
def _weights(spec: str, again: int = 0) -> Any:
    """What a run ends with, as digests."""
    with start(RunSpec.model_validate_json(spec)) as run:
        return run.wait(4 * BOUND).result["parameter_digest"]


def _standing(run: Run) -> str:
    """Wait until a run is over, "", or is said to stand still: what is said."""
    deadline = clock() + BOUND
    while run.state == "running" and clock() < deadline:
        if still := run.standstill():
            return still.words
        time.sleep(0.02)
    return ""


def _judged(
    run: Run, fault: Fault, happened: bool, raised: LockstepError | None, alarm: str = ""
) -> list[str]:
    """What is wrong with how a run ended, or with an `alarm` before."""
    if raised is None:
        return [f"alarm: {alarm}"] if alarm and fault.do in SLOWING else []
    said = str(raised).splitlines()[0]
    endless = fault.do in ("pause", "cut") and fault.lasts is None
    fatal = fault.do in FATAL and not run.spec.max_restarts
    if not (happened and (endless or fatal)):
        kind = "hung" if isinstance(raised, Stalled) else "wrong"
        return [f"{kind}: nothing was to end it, but: {said}"]
    hit = [t for t, host in run.spec.places.items() if host == fault.host] or [fault.who]
    named = any(name in said for name in [*hit, fault.who])
    if isinstance(raised, TaskFailed) and fatal:
        named = raised.task in hit
    if isinstance(raised, Stalled) and not (endless and named):
        return [f"hung: {said}"]
    return [] if named else [f"wrong: {fault.who} is not named: {said}"]


def _left(run: Run, before: int) -> list[str]:
    """What is left of a run a moment after it, which began with so many open descriptors."""
    pids = {e.pid for e in run.trace.all(Lifecycle, state="starting")}
    deadline = clock() + SOON
    while True:
        # the children of this process are zygotes, theirs belong to runs
        zygotes = psutil.Process().children()
        left = {p.pid for zygote in zygotes for p in zygote.children(recursive=True)}
        found = [f"process {pid}" for pid in left | set(filter(psutil.pid_exists, pids))]
        found += map(str, RunDir(run.run_dir).passing())
        named = (p for p in Path("/dev/shm").glob("*") for pid in pids if f"_{pid}_" in p.name)
        found += map(str, named)
        if (more := psutil.Process().num_fds() - before) > 0:
            found.append(f"{more} open descriptors")
        if not found or clock() > deadline:
            return found
        time.sleep(0.02)


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
    count = 1 if replay else count
    ended, problems, seconds = Counter[str](), Counter[str](), list[float]()
    for number, episode in enumerate(played, 1):
        with progress() as shown:
            words = f"{number} of {count} {episode.partition(',')[0]}"
            shown.add_task(words, total=count, completed=number - 1)
            outcome = play(episode)
        what = "no error" if outcome.seconds is None else "an error"
        ended[f"{outcome.fault.do}: {what}"] += 1
        problems.update(problem.partition(":")[0] for problem in outcome.problems)
        seconds += [outcome.seconds] if outcome.seconds is not None else []
        say(f"{number}: {episode.replace(',', ', ')}", f"   {outcome.ended}")
        for problem in outcome.problems:
            say(f"   FAILED, {problem}")
            print(f"   python -m tests.chaos --replay {episode!r}")  # in one piece, to be copied
    rows = [[name, str(times)] for name, times in sorted(ended.items())]
    if seconds:
        middle, most = statistics.median(seconds), max(seconds)
        rows.append(["fault to error", f"median {middle:.2f} s, at most {most:.2f} s"])
    rows.append(["problems", ", ".join(f"{n} {what}" for what, n in problems.items()) or "none"])
    show(["episodes", str(ended.total())], rows)
    return int(bool(problems))


if __name__ == "__main__":
    app.command()(chaos)
    main(["chaos", *sys.argv[1:]])
