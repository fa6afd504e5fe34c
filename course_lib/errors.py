"""The errors that a learner meets: each has fields for programs and a text for people, with a cure
where there is one.
"""

import contextlib
import difflib
import errno
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from course_lib.activity import Activity, sentence
from course_lib.cures import cure_of
from course_lib.notebook.shell import Folded

OTHER_NAMES = {
    "multi_worker_mirrored": ("ddp", "horovod"),
    "fully_sharded": ("fsdp", "zero"),
    "tensorflow": ("tf",),
    "torch": ("pytorch",),
    "global_batch": ("batch", "batch_size"),
    "learning_rate": ("lr",),
    "workers": ("num_workers", "world_size"),
    "hosts": ("nodes",),
    "workload": ("model", "dataset"),
    "framework": ("backend",),
}
"""Our names -> those that others use."""
MOST_LISTED = 20  # names, beside one that was probably meant


class LockstepError(Folded, Exception):
    """Base of the errors here, raised as it is where there are no fields; all can be pickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).__new__, (type(self), *self.args), self.__dict__


class SpecError(LockstepError, ValueError):
    """A request is impossible or wrong; raised before any process starts.

    Fields: `field` (what was set, "" where it is a call), `value` (to what), `allowed` (what may
    stand there).
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        shown = repr(value).replace("\n", " ")
        shown = shown if len(shown) <= 200 else f"{shown[:200]}..."
        super().__init__(f"{field}={shown}: {allowed}" if field else f"{value}: {allowed}")

    @classmethod
    def unknown(cls, field: str, value: object, names: Iterable[str], allowed: str = "") -> Self:
        """The error for a name that does not exist, or for a value beside those `allowed`. If
        others use it as a name for something of ours, it suggests ours (ddp:
        multi_worker_mirrored); otherwise the most similar one.
        """
        names, given = list(names), str(value)
        near = [n for n in names if given.lower() in OTHER_NAMES.get(n, ())]
        near = near or difflib.get_close_matches(given, names, n=1)
        hint = [f"did you mean {near[0]!r}?"] if near else []
        if not (near and len(names) > MOST_LISTED):
            hint.append(f"allowed: {allowed or ', '.join(names)}")
        return cls(field, value, " ".join(hint))


class Unavailable(LockstepError):
    """This machine cannot do what was asked. Fields: `what`, `why`, `cure`."""

    def __init__(self, what: str, why: str, cure: str) -> None:
        self.what, self.why, self.cure = self.parts = what, why, cure
        super().__init__(f"{what} is unavailable here: {why}. {cure}")


LIMITS = {errno.EMFILE: "-n", errno.ENFILE: "-n", errno.ETOOMANYREFS: "-n", errno.EAGAIN: "-u"}
"""What the system says when a limit is reached -> the option of `ulimit` that shows the limit."""


def shortage(error: OSError) -> Unavailable:
    """The error for something that the system refuses, such as another process or open file."""
    option = LIMITS.get(error.errno or 0, "-a")
    cure = f"Run fewer tasks or clusters at a time, or raise a limit: `ulimit {option}` shows it."
    return Unavailable("another process or file", str(error), cure)


def line_of(error: BaseException, function: object) -> str:
    """The line of a learner's function that raised an error, in words; "" if none did."""
    name = getattr(function, "__name__", "")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.name == name]
    if not frames:
        return ""
    return f" (line {frames[-1].lineno}: {frames[-1].line or 'source not at hand'})"


class Damaged(LockstepError, ValueError):
    """A file of a saved run is not what it should be. Fields: `path`, `why`."""

    def __init__(self, path: object, why: str) -> None:
        self.path, self.why = str(path), why
        super().__init__(f"{path} cannot be read: {why}".replace("\n", " "))


@dataclass(eq=False, repr=False)
class StartTimeout(LockstepError):
    """A run did not start in time. Fields: `arrived` and `waiting_for` (task names), `seconds`.

    `importing`: the framework that was still being imported, if no task had been started yet;
    there are no task names then.
    """

    arrived: tuple[str, ...]
    waiting_for: tuple[str, ...]
    seconds: float
    importing: str = ""

    def __str__(self) -> str:
        what = f"{self.importing} was not imported"
        cure = f"Call warm({self.importing!r}) before the run."
        if not self.importing:
            arrived = ", ".join(self.arrived) or "no task"
            what = f"{arrived} had arrived, and not {', '.join(self.waiting_for)}"
            cure = "Look at their stderr.log in the run directory."
        return f"after {self.seconds:.0f} s {what}. {cure}"


@dataclass(eq=False, repr=False)
class Stalled(LockstepError):
    """A wait ran out, or is in vain. Fields: `does` (task -> what it does; whoever is the cause
    comes first), the same in words, such as "waits in step 3 for ps:0", as `waiting_for` and, once
    for all that do the same, as `words`; and `seconds`.

    `standing`: the run has stood still for so long and will not go on by itself; `cure`: what to do
    then, if no task's words say so. `stopping`: the run had been told to stop. If not, it is left
    as it is.
    """

    does: Mapping[str, Activity]
    seconds: float
    stopping: bool = False
    standing: bool = False
    cure: str = ""

    def __str__(self) -> str:
        state, end = "is not over", "Wait longer with wait(timeout=...), or end it with stop()"
        if self.standing:
            state = "stands still"
            end = f"{self.cure or 'It goes on when that is over'}; stop() ends it"
        elif self.stopping:
            state, end = "was told to stop and is not over", "Wait longer with stop(timeout=...)"
        words = f": {self.words}" if self.does else ""
        return f"after {self.seconds:.1f} s the run {state}{words}. {end}."

    @property
    def waiting_for(self) -> dict[str, str]:
        return {task: str(doing) for task, doing in self.does.items()}

    @property
    def words(self) -> str:
        return sentence(self.does, cures=True)


@dataclass(eq=False, repr=False)
class TaskFailed(LockstepError):
    """A task of a run failed; of several failures this is the first, the root cause.

    Fields: `task`, `step` (None before the first), `reason`, `remote_traceback` and `log_tail`
    (text, may be empty), and `cure` (one line for a known failure of a framework, else empty).
    """

    task: str
    step: int | None
    reason: str
    remote_traceback: str = ""
    log_tail: str = ""

    @property
    def cure(self) -> str:
        return cure_of(self.reason, self.remote_traceback)

    def __str__(self) -> str:
        where = "" if self.step is None else f" in step {self.step}"
        parts = [f"{self.task} failed{where}: {self.reason}"]
        parts += [f"Cure: {self.cure}."] * bool(self.cure)
        texts = {"traceback on": self.remote_traceback, "end of the log of": self.log_tail}
        for what, text in texts.items():
            parts += [f"--- {what} {self.task} ---\n{text.rstrip()}"] * bool(text)
        return "\n".join(parts)


class Interrupted(Folded, KeyboardInterrupt):
    """A wait was interrupted. It says what became of what was waited for."""


class Injected(LockstepError):
    """The exception that a fault raises in a task, see `course_lib/spec/faults.py`."""


class SupervisorLost(LockstepError):
    """The process that looks after a run has died, and all processes of the run with it.

    Field: `why`.
    """

    def __init__(self, why: str, log: str) -> None:
        self.why = why
        text = f"the run's supervisor was lost, and its tasks with it: {why}. Start the run again"
        super().__init__(f"{text}.\n{log}")


class RankLost(LockstepError):
    """A rank of a collective died, failed or gave no sign of life; raised on all the others.

    Fields: `rank`, `why`, `round` (the one in which it was missed).
    """

    def __init__(self, rank: int, why: str, round: int = 0) -> None:
        self.rank, self.why, self.round = rank, why, round
        super().__init__(f"rank {rank} was lost in round {round}: {why}")


class Mismatch(LockstepError):
    """Two ranks called a collective with different arguments; raised on all ranks, before those two
    exchange anything.

    Fields: `ranks` (the two), `calls` (what each is about: algorithm, schedule, length, dtype).
    """

    def __init__(self, ranks: Sequence[int], calls: Sequence[Mapping[str, object]]) -> None:
        self.ranks, self.calls = tuple(ranks), tuple(map(dict, calls))
        one, other = self.calls
        differ = [f"{n} {one[n]} and {other.get(n)}" for n in one if one[n] != other.get(n)]
        who = f"ranks {self.ranks[0]} and {self.ranks[1]} do not agree: {', '.join(differ)}"
        super().__init__(f"{who}. All ranks must come with the same.")


@contextlib.contextmanager
def trying(what: str, error_of: Callable[[str], Exception] = ValueError) -> Iterator[None]:
    """Say in one line what failed in the block, and how; as a `ValueError`, or as the error that
    `error_of(text)` makes.
    """
    try:
        yield
    except SpecError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise error_of(f"{what}: {type(error).__name__}: {reason}") from error
