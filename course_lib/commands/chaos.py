"""`lockstep chaos`."""

import statistics
from collections import Counter
from typing import Annotated

import typer

from course_lib.chaos import episodes, play
from course_lib.commands.shared import show


def chaos(
    count: Annotated[int, typer.Option("--episodes", min=1, help="How many runs.")] = 200,
    seed: Annotated[int, typer.Option(help="Decides what happens in which run.")] = 1,
    strategies: Annotated[
        str, typer.Option(help="Names, separated by commas; all if none are given.")
    ] = "",
    framework: Annotated[str, typer.Option(help="tensorflow or torch; both if not given.")] = "",
    replay: Annotated[str, typer.Option(help="Play this one episode.")] = "",
) -> int:
    """Play short runs with a random fault in each, and look for hangs, leaks, errors that name
    nobody, gradients that are lost and wrong models. The exit code is 1 if anything is found.
    """
    names = [name for name in strategies.split(",") if name]
    played = [replay] if replay else episodes(count, seed, names, framework)
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
