"""`lockstep doctor`, `lockstep strategies` and `lockstep lab`: what there is here."""

import contextlib
import json
import os
import sys
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from course_lib import engines, hardware
from course_lib.commands.screen import say, show
from course_lib.commands.shared import Json
from course_lib.errors import SpecError, Unavailable
from course_lib.spec.run_spec import FRAMEWORKS, RunSpec
from course_lib.strategies import catalog
from course_lib.text import count

# JupyterLab would ask whether it may fetch news, over the page, and look for a newer version of
# itself: the course stays on this machine. A question is a setting, of which `labconfig/` here has
# another default; a learner's own setting still counts.
NO_UPDATES = "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"
ROOTS = ("--notebook-dir", "--ServerApp.root_dir", "--ServerApp.notebook_dir")
SILENT = ("--LabApp.news_url=None", NO_UPDATES)
FIRST = "/lab/tree/notebooks/00_start_here.ipynb"  # in front of what was open before


def doctor(as_json: Json = False) -> None:
    """Show what this machine offers, what is not available, and why."""
    machine = hardware.probe()
    try:
        planned = [(r.what, r.choice, r.why) for r in hardware.plan(RunSpec(), machine).reasons]
    except (SpecError, Unavailable) as refused:
        planned = [("start", "refused", str(refused))]
    if as_json:
        cluster = None
        with contextlib.suppress(Unavailable):
            cluster = engines.load("ray.raylets").current()
        facts = {
            "machine": asdict(machine),
            "versions": hardware.versions(),
            "plan": [dict(zip(("what", "choice", "why"), row, strict=True)) for row in planned],
            "ray_cluster": asdict(cluster) if cluster else None,
        }
        print(json.dumps(facts))
        return
    show(["this machine", "", "what it means"], [*hardware.machine_rows(machine), _ray()])
    show(["four workers here", "", "why"], planned)
    show(["package", "version"], hardware.versions().items())


def _ray() -> tuple[str, str, str]:
    """The row on Ray clusters: if runs can go on one, and which one is up."""
    try:
        cluster = engines.load("ray.raylets").current()
    except Unavailable as missing:
        return "Ray", "not installed", missing.cure
    if cluster:
        nodes = f"{count(len(cluster.nodes), 'node')} up"
        return "Ray", nodes, f"With engine='ray' runs go on this cluster, at {cluster.address}."
    means = "With engine='ray' runs go on a cluster; lockstep cluster up makes one here."
    return "Ray", "no cluster here", means


def strategies(
    name: Annotated[
        str | None, typer.Argument(help="Only this one, with all that there is to know.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the strategies, and which of them run here."""
    rows = catalog.rows(hardware.probe())
    if name is not None:
        rows = [row for row in rows if row["strategy"] == catalog.find(name).name]
    if as_json:
        print(json.dumps(rows))
    elif name is not None:
        frameworks = [FRAMEWORKS[row["framework"]] for row in rows]
        show(["", *frameworks], [[fact, *(row[fact] for row in rows)] for fact in rows[0]])
    else:
        show(["strategy", *FRAMEWORKS.values(), "who updates", "who waits"], overview(rows), True)
        for row in rows:
            if row["reality"] == "unavailable":
                framework = FRAMEWORKS[row["framework"]]
                say(f"{row['strategy']}, {framework}: {row['why']}. {row['cure']}")


def overview(rows: list[dict[str, str]]) -> list[list[str]]:
    """A line for each strategy; a dash for a framework in which it is not built."""
    lines = []
    for name, group in groupby(rows, itemgetter("strategy")):
        built = {row["framework"]: row for row in group}
        first = next(iter(built.values()))
        here = [built.get(framework, {"reality": "-"})["reality"] for framework in FRAMEWORKS]
        lines.append([name, *here, first["update"], first["waits"]])
    return lines


def lab(
    context: typer.Context,
    copy_to: Annotated[
        Path | None,
        typer.Option(
            help="Work on a copy of the course in this directory. A later version of the course is "
            "brought into it, and what you have written there stays."
        ),
    ] = None,
) -> NoReturn:
    """Open the course in JupyterLab; further arguments go to `jupyter lab`."""
    course = Path(__file__).parents[2]
    if not (course / "notebooks").is_dir():
        why = "the notebooks are not beside this package"
        raise Unavailable("the course", why, "Clone the repository and use `make lab` there.")
    if copy_to is not None:
        # nbformat takes seconds to import: only where it is needed
        from course_lib.course.copies import deliver

        say(*deliver(course, copy_to), f"Your copy of the course: {copy_to.resolve()}")
    command = [sys.executable, "-m", "jupyterlab", *SILENT]
    if not any(argument.startswith(ROOTS) for argument in context.args):
        command.append(f"--ServerApp.root_dir={(copy_to or course).resolve()}")
        if not any("default_url" in argument for argument in context.args):
            command.append(f"--LabApp.default_url={FIRST}")
    if os.geteuid() == 0:  # as in a container; JupyterLab wants it said
        command.append("--allow-root")
    os.execve(sys.executable, [*command, *context.args], _environment())


def _environment() -> dict[str, str]:
    """That of JupyterLab and its kernels: with our settings, and with `kernel.py`."""
    here, given = Path(__file__).parent, os.environ
    places = str(here), given.get("JUPYTER_CONFIG_PATH", "")
    return {
        "LOCKSTEP_PYTHONSTARTUP": given.get("PYTHONSTARTUP", ""),  # kept in a lab within a lab
        **given,
        "PYTHONSTARTUP": str(here / "kernel.py"),
        "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, places)),
    }
