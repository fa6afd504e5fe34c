"""Faults: what is to happen to a run, and when. `RunSpec.faults`, `--fault` and `run.inject` take
such texts:

    kill worker:2 at step 40          SIGKILL, as a crash or a pulled plug
    kill host:1 at 2.5s               all tasks of a host
    pause worker:1 at step 5 for 2s   SIGSTOP, a machine that hangs; without `for` until resume()
    raise ps:0 at step 3              an exception in the task
    exit worker:1 at step 3           the task leaves early, with exit code 0
    oom worker:1 at step 3            it allocates up to a limit of its own: a MemoryError
    slow worker:1=4 at step 3 for 1s  its steps take 4 times as long
    jitter worker:1=exponential:20ms at step 3
    cut host:1 at step 3 for 500ms    nothing gets to the host or away from it
    link host:1=50,2.5 at step 3      its link has 50 Mbit/s and a delay of 2.5 ms
    link host:1=50,0,0.01 at 2s       its link has 50 Mbit/s and loses 1 % of its packets

`at step 40`: when the named worker begins that step, or the first one after it that it makes. For a
ps, a chief or a host: when the first worker does; where a chief hands out the steps, when it waits
for that one. `at 2.5s`: so long after all tasks run. `for 2s`: then it is undone.

Each fault happens once in a run, also if the run goes back to a checkpoint and does the step again.
All but `slow`, `jitter`, `cut` and `link` are as real as outside a lesson: see `reality.py`.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from course_lib.errors import SpecError
from course_lib.spec.fields import Link, check_factor, check_jitter, seconds

FORM = (
    "what, whom, when: kill worker:2 at step 40, pause worker:1 at 2.5s for 500ms, "
    "slow worker:1=4 at step 3, link host:1=50 at step 3"
)


class Action(NamedTuple):
    """The kind of a fault: whether it happens to tasks (`whom`: worker) or hosts, an example of its
    value, if it takes one, and whether it can be undone.
    """

    whom: tuple[str, ...]
    value: str = ""
    undone: bool = False


ACTIONS = {
    "kill": Action(("worker", "host")),
    "pause": Action(("worker", "host"), undone=True),
    "raise": Action(("worker",)),
    "exit": Action(("worker",)),
    "oom": Action(("worker",)),
    "slow": Action(("worker",), "=4", undone=True),
    "jitter": Action(("worker",), "=exponential:20ms", undone=True),
    "cut": Action(("host",), undone=True),
    "link": Action(("host",), "=50", undone=True),
}
_TIME = r"(\d{0,5}\.?\d{1,5})(ms|s)"
_WHO = r"((?:chief|worker|ps|host):\d{1,9})(?:=(\S+))?"
_FAULT = re.compile(rf"[a-z]+ {_WHO}(?: at (?:step (\d{{1,9}})|{_TIME}))?(?: for {_TIME})?")


@dataclass(frozen=True)
class Fault:
    """`do` is done to `who`, a task or a host, with a `factor`, `jitter` or `link`; `at` this
    `step`, or so many `seconds` after all tasks run, or now; `lasts`: seconds until it is undone.
    """

    text: str
    do: str
    who: str
    step: int | None = None
    seconds: float | None = None
    lasts: float | None = None
    factor: float = 1.0
    jitter: str = ""
    link: Link | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def host(self) -> int | None:
        """The number of the host that it happens to, if that is a host."""
        job, _, index = self.who.partition(":")
        return int(index) if job == "host" else None

    @classmethod
    def of(cls, text: object) -> "Fault":
        """The fault that is written so. Raises `SpecError` for any other text."""
        if isinstance(text, Fault):
            return text
        words = " ".join(text.split()) if isinstance(text, str) else ""
        do = words.partition(" ")[0]
        if words and do not in ACTIONS:
            raise SpecError.unknown("faults", do, ACTIONS)
        if not (match := _FAULT.fullmatch(words)):
            raise SpecError("faults", words or text, FORM)
        who, value, step, at, unit, long, its_unit = match.groups()
        whom, example, undone = ACTIONS[do]
        kind = "host" if who.startswith("host:") else "worker"
        if kind not in whom or bool(example) != bool(value) or (long and not undone):
            end = "'for 2s' may follow" if undone else "it cannot be undone"
            allowed = f"such as {do} {whom[0]}:1{example} at step 3; {end}"
            raise SpecError("faults", words, allowed)
        given: dict[str, Any] = {}
        try:
            match do:
                case "slow":
                    given = {"factor": check_factor(float(value))}
                case "jitter":
                    given = {"jitter": check_jitter(value)}
                case "link":
                    given = {"link": Link.of(value)}
        except ValueError as error:
            allowed = getattr(error, "allowed", f"such as slow {who}=4 at step 3")
            raise SpecError("faults", words, allowed) from None
        begins = seconds(at, unit) if at else None
        lasts = seconds(long, its_unit) if long else None
        return cls(words, do, who, int(step) if step else None, begins, lasts, **given)


def several(faults: Any) -> Any:
    """Several faults, of which one may be given by itself."""
    return (faults,) if isinstance(faults, (str, Fault)) else faults
