"""The equal shares of a machine on which the entrants of a race run."""

import os
from collections.abc import Sequence
from dataclasses import replace

from course_lib.cluster import nursery
from course_lib.cluster.run import Prepared
from course_lib.errors import SpecError
from course_lib.hardware import Machine
from course_lib.launch import prepare
from course_lib.racing.entrants import Entrant
from course_lib.text import count


def divide(machine: Machine, entrants: int) -> tuple[Machine, list[tuple[int, ...]]]:
    """An equal share of a machine, itself a `Machine` for which a run can be planned, and the cores
    to which each entrant is pinned.

    No entrant is pinned if there are fewer cores than entrants, or if a quota lets us use fewer
    cores than we see: other programs might run on the cores that we chose.
    """
    cores = max(1, machine.cores // entrants)
    share = replace(machine, cores=cores, memory=machine.memory // entrants)
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if machine.cores != len(mine) or len(mine) < entrants:
        return share, [()] * entrants
    return share, [tuple(mine[i * cores : (i + 1) * cores]) for i in range(entrants)]


def prepared(entrants: Sequence[Entrant], share: Machine) -> list[Prepared]:
    """Prepare each entrant to start on its share. Raises `SpecError` if the share has too little
    memory.
    """
    found, warm = [], set[str]()
    for entrant in entrants:
        framework = entrant.spec.framework
        loaded = framework in warm or nursery.is_warm(framework)
        warm.add(framework)
        try:
            found.append(prepare(entrant.request, share, warm=loaded))
        except BaseException as error:
            for each in found:
                each.engine.release()
            if not isinstance(error, SpecError):
                raise
            who = f"(for {entrant.label}, one of {len(entrants)} entrants)"
            raise SpecError(error.field, error.value, f"{error.allowed} {who}") from None
    return found


def cores_note(cores: Sequence[Sequence[int]], share: Machine, machine: Machine) -> str:
    each = count(share.cores, "core")
    if cores[0]:
        return f"Each entrant has {each} of this machine to itself."
    planned = f"each plans its threads for {each}: one can take time from the other"
    return f"The entrants share {machine.cores} cores, and {planned}."
