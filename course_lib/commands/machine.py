"""`lockstep doctor`, `lockstep strategies` and `lockstep cluster`: what there is here, and a Ray
cluster on this machine.
"""

import os
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from course_lib import engines, hardware
from course_lib.commands.terminal import Json, dump, progress, say, show
from course_lib.errors import SpecError, Unavailable
from course_lib.spec.run_spec import FRAMEWORKS, RunSpec
from course_lib.strategies import catalog
from course_lib.text import count


def doctor(as_json: Json = False) -> None:
    """Show what this machine offers, what is not available, and why."""
    machine, cluster = hardware.probe(), None
    try:
        planned = [(r.what, r.choice, r.why) for r in hardware.plan(RunSpec(), machine).reasons]
    except (SpecError, Unavailable) as refused:
        planned = [("start", "refused", str(refused))]
    try:
        cluster = engines.load("ray.raylets").current()
        nodes = f"{count(len(cluster.nodes), 'node')} up" if cluster else "no cluster here"
        where = "on a cluster; lockstep cluster up makes one here."
        if cluster:
            where = f"on this cluster, at {cluster.address}."
        ray = ("Ray", nodes, f"With engine='ray' runs go {where}")
    except Unavailable as missing:
        ray = ("Ray", "not installed", missing.cure)
    if as_json:
        facts = {
            "machine": asdict(machine),
            "versions": hardware.versions(),
            "plan": [dict(zip(("what", "choice", "why"), row, strict=True)) for row in planned],
            "ray_cluster": asdict(cluster) if cluster else None,
        }
        dump(facts)
        return
    show(["this machine", "", "what it means"], [*hardware.machine_rows(machine), ray])
    show(["four workers here", "", "why"], planned)
    show(["package", "version"], hardware.versions().items())


Name = Annotated[str | None, typer.Argument(help="Only this one, with all that is to know.")]


def strategies(name: Name = None, as_json: Json = False) -> None:
    """List the strategies, and which of them run here."""
    rows = catalog.rows(hardware.probe())
    if name is not None:
        rows = [row for row in rows if row["strategy"] == catalog.find(name).name]
    if as_json:
        dump(rows)
    elif name is not None:
        frameworks = [FRAMEWORKS[row["framework"]] for row in rows]
        show(["", *frameworks], [[fact, *(row[fact] for row in rows)] for fact in rows[0]])
    else:
        known = {(row["strategy"], row["framework"]): row for row in rows}
        lines: dict[str, list[str]] = {}
        for row in rows:
            here = (known.get((row["strategy"], each), {}) for each in FRAMEWORKS)
            built = [each.get("reality", "-") for each in here]
            lines[row["strategy"]] = [row["strategy"], *built, row["update"], row["waits"]]
        headers = ["strategy", *FRAMEWORKS.values(), "who updates", "who waits"]
        show(headers, lines.values(), lines=True)
        for row in rows:
            if row["reality"] == "unavailable":
                framework = FRAMEWORKS[row["framework"]]
                say(f"{row['strategy']}, {framework}: {row['why']}. {row['cure']}")


# --- a Ray cluster ---

cluster = typer.Typer(
    help="A Ray cluster on this machine: see how runs go on several nodes without having them.",
    short_help="A Ray cluster on this machine.",
    rich_markup_mode=None,
)
Nodes = Annotated[int, typer.Option(min=1, max=16, help="How many nodes.")]
Cpus = Annotated[int, typer.Option(min=1, help="CPUs that each node has to give.")]
Mbit = Annotated[
    float | None,
    typer.Option(
        min=1,
        help="Megabits a second: nodes get namespaces and links of their own, to be used from "
        "`lockstep cluster shell`.",
    ),
]
Command = Annotated[list[str] | None, typer.Argument(help="Run this, in place of your shell.")]


@cluster.command()
def up(nodes: Nodes = 3, cpus: Cpus = 2, mbit: Mbit = None) -> None:
    """Start a Ray cluster, which ends with this shell."""
    raylets = engines.load("ray.raylets")
    with progress() as shown:
        bar = shown.add_task("Starting", total=nodes)
        there = raylets.up(nodes, cpus, mbit, os.getppid(), began=lambda _: shown.advance(bar))
    say(f"{count(nodes, 'node')}, {count(cpus, 'CPU')} each. Links between nodes: {there.links}.")
    how = 'engine="ray" (`--engine ray`)' if there.reached else "`lockstep cluster shell`"
    say(f"Run on it with {how}, until this shell ends or `lockstep cluster down`.")


@cluster.command()
def status(as_json: Json = False) -> None:
    """Say which nodes the cluster has, and how many CPUs are free."""
    there = _there()
    if not there.reached:
        there.enter([sys.executable, "-m", "course_lib", *sys.argv[1:]])
    engines.load("ray.raylets").meant(there.address)  # before Ray is loaded
    nodes, free = engines.load("ray.cluster").state(there.address)
    facts = {"address": there.address, "nodes": nodes, "free": free, "links": there.links}
    if as_json:
        dump(facts)
        return
    show(["node", "address", "CPUs"], [[name, at, f"{cpus:g}"] for name, at, cpus in nodes])
    say(f"{free:g} CPUs are free. Links between nodes: {there.links}.")
    say(f"Address: {there.address}")


@cluster.command()
def down() -> None:
    """End the cluster."""
    _there().end()
    say("The cluster is gone.")


@cluster.command(context_settings={"ignore_unknown_options": True})
def shell(command: Command = None) -> None:
    """Open a shell on the cluster's first node, or run a command there."""
    _there().enter(command or [os.environ.get("SHELL", "sh")])


def _there() -> Any:
    if there := engines.load("ray.raylets").current():
        return there
    raise Unavailable("the Ray cluster", "none of yours is up", "Start one: lockstep cluster up.")
