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

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course_lib.errors import SpecError
from course_lib.spec.fields import Link, check_factor
from course_lib.spec.jitter import Jitter, seconds

if TYPE_CHECKING:
    from course_lib.spec.run_spec import RunSpec

FORM = (
    "what, whom, when: kill worker:2 at step 40, pause worker:1 at 2.5s for 500ms, "
    "slow worker:1=4 at step 3, link host:1=50 at step 3"
)
TASK = ("kill", "pause", "raise", "exit", "oom", "slow", "jitter")  # what can happen to a task,
HOST = ("kill", "pause", "cut", "link")  # to a host
VALUED = {"slow": "a factor", "jitter": "a jitter", "link": "its Mbit/s"}
UNDONE = ("pause", "slow", "jitter", "cut", "link")
_TIME = r"(\d{0,5}\.?\d{1,5})(ms|s)"
_FAULT = re.compile(
    rf"[a-z]+ (\S+?)(?:=(\S+))?(?: at (?:step (\d{{1,9}})|{_TIME}))?(?: for {_TIME})?"
)
_WHO = re.compile(r"(chief|worker|ps|host):\d{1,9}")


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
    def of(cls, text: object) -> Fault:
        """The fault that is written so. Raises `SpecError` for any other text."""
        if isinstance(text, Fault):
            return text
        words = " ".join(text.split()) if isinstance(text, str) else ""
        do, every = words.partition(" ")[0], dict.fromkeys(TASK + HOST)
        if words and do not in every:
            raise SpecError.unknown("faults", do, every)
        if not (match := _FAULT.fullmatch(words)):
            raise SpecError("faults", words or text, FORM)
        who, value, step, at, unit, long, its_unit = match.groups()
        if not _WHO.fullmatch(who):
            raise SpecError("faults", words, f"happens to a task or a host, such as {_example(do)}")
        if do not in (HOST if who.startswith("host:") else TASK):
            raise SpecError("faults", words, f"{do} happens to another kind: {_example(do)}")
        if (do in VALUED) != (value is not None):
            cure = f"needs {VALUED[do]}" if do in VALUED else f"{do} takes no value"
            raise SpecError("faults", words, f"{cure}: {_example(do)}")
        if long and do not in UNDONE:
            text = f"{do} cannot be undone: leave 'for' out (for {', '.join(UNDONE)})"
            raise SpecError("faults", words, text)
        try:
            given = _given(do, value or "")
        except ValueError as error:
            text = error.allowed if isinstance(error, SpecError) else f"such as {_example(do)}"
            raise SpecError("faults", words, text) from None
        begins = seconds(at, unit) if at else None
        lasts = seconds(long, its_unit) if long else None
        return cls(words, do, who, int(step) if step else None, begins, lasts, **given)

    def check(self, spec: RunSpec) -> Fault:
        """Return the fault if it can happen in a run, else raise `SpecError`."""
        try:
            if self.host is not None:
                spec.check_host(self.host)
            elif self.do in ("slow", "jitter"):
                spec.check_jitter(self.who, self.jitter or None)
            else:
                spec.check_task(self.who)
        except SpecError as error:
            raise SpecError("faults", self.text, error.allowed) from None
        if self.do in ("cut", "link"):
            spec.check_linked("faults", self.text)
        if spec.strategy != "custom" and (self.step or 0) >= spec.steps:
            allowed = f"the steps of this run are 0 to {spec.steps - 1}"
            raise SpecError("faults", self.text, allowed)
        return self

    def planned(self, spec: RunSpec) -> Fault:
        """Return it if it can be planned for a run: `check`, and it says when."""
        if self.step is None and self.seconds is None:
            raise SpecError("faults", self.text, "and when? add 'at step 40', or 'at 2.5s'")
        return self.check(spec)

    def told_by(self, task: str, spec: RunSpec) -> bool:
        """Whether this task says when the step of the fault begins."""
        if spec.chief:
            return task in (self.who, "chief:0")
        anybody = not self.who.startswith("worker:")
        return task == self.who or (anybody and task.startswith("worker:"))


def several(faults: Any) -> Any:
    """Several faults, of which one may be given by itself."""
    return (faults,) if isinstance(faults, (str, Fault)) else faults


def _given(do: str, value: str) -> dict[str, Any]:
    """The value of a fault as a field. Raises ValueError if it is none."""
    match do:
        case "slow":
            return {"factor": check_factor(float(value))}
        case "jitter":
            Jitter.of(value)
            return {"jitter": value}
        case "link":
            return {"link": Link.of(value)}
    return {}


def _example(do: str) -> str:
    who = "host:1" if do not in TASK else "worker:1"
    value = {"slow": "=4", "jitter": "=exponential:20ms", "link": "=50"}.get(do, "")
    return f"{do} {who}{value} at step 3"
