"""`lockstep cluster`: a Ray cluster on this machine."""

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from course_lib import engines
from course_lib.commands.screen import progress, say, show
from course_lib.commands.shared import Json
from course_lib.errors import Unavailable
from course_lib.text import count

if TYPE_CHECKING:
    from course_lib.engines.ray.raylets import Cluster

cluster = typer.Typer(
    help="A Ray cluster on this machine: see how runs go on several nodes without having them.",
    short_help="A Ray cluster on this machine.",
    rich_markup_mode=None,
)


@cluster.command()
def up(
    nodes: Annotated[int, typer.Option(min=1, max=16, help="How many nodes.")] = 3,
    cpus: Annotated[int, typer.Option(min=1, help="CPUs that each node has to give.")] = 2,
    mbit: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Megabits a second: each node gets a network namespace of its own, and a link of "
            "this speed. Use the cluster from `lockstep cluster shell` then.",
        ),
    ] = None,
) -> None:
    """Start a Ray cluster, which ends with this shell."""
    raylets = engines.load("ray.raylets")
    with progress() as shown:
        bar = shown.add_task("Starting", total=nodes, said="")

        def began(node: int) -> None:
            shown.update(bar, completed=node, said=f"node {node + 1} of {nodes}")

        there = raylets.up(nodes, cpus, mbit, os.getppid(), began=began)
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
    if as_json:
        said = {"address": there.address, "nodes": nodes, "free": free, "links": there.links}
        print(json.dumps(said))
        return
    show(["node", "address", "CPUs"], [[name, at, f"{cpus:g}"] for name, at, cpus in nodes])
    all_cpus = sum(cpus for _, _, cpus in nodes)
    say(f"{free:g} of {all_cpus:g} CPUs are free. Links between nodes: {there.links}.")
    say(f"Address: {there.address}")


@cluster.command()
def down() -> None:
    """End the cluster."""
    _there().end()
    say("The cluster is gone.")


@cluster.command(context_settings={"ignore_unknown_options": True})
def shell(
    command: Annotated[
        list[str] | None, typer.Argument(help="Run this, in place of your shell.")
    ] = None,
) -> NoReturn:
    """Open a shell on the cluster's first node, or run a command there."""
    _there().enter(command or [os.environ.get("SHELL", "sh")])


def _there() -> "Cluster":
    there: Cluster | None = engines.load("ray.raylets").current()
    if not there:
        cure = "Start one: lockstep cluster up."
        raise Unavailable("the Ray cluster", "none of yours is up", cure)
    return there
