"""`lockstep doctor`."""

from __future__ import annotations

import json

from rich.console import Console

from course_lib import hardware
from course_lib.commands.options import Json
from course_lib.commands.tables import table
from course_lib.errors import SpecError
from course_lib.spec import RunSpec


def doctor(as_json: Json = False) -> None:
    """Show what this machine offers, what is not available, and why."""
    machine = hardware.probe()
    try:
        planned = [(r.what, r.choice, r.why) for r in hardware.plan(RunSpec(), machine).reasons]
    except SpecError as too_small:
        planned = [("memory", "too little", str(too_small))]
    if as_json:
        reasons = [{"what": what, "choice": choice, "why": why} for what, choice, why in planned]
        print(
            json.dumps(
                {"machine": machine.as_dict(), "versions": hardware.versions(), "plan": reasons}
            )
        )
        return
    console = Console()
    console.print(table(["this machine", "", "what it means"], hardware.machine_rows(machine)))
    console.print(table(["four workers here", "", "why"], planned))
    console.print(table(["package", "version"], hardware.versions().items()))
