"""Task: what a role function is given, and all that it needs to know of the cluster around it.

A role function is `def worker(task): ...`. What it returns is that task's entry in `Run.values`. It
records what it does with `task.phase`, `task.metric` and `task.update`; `task.watch` does so for a
training loop.
"""

import contextlib
import itertools
import pkgutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.collectives.schedule import Schedule
from course_lib.errors import SpecError
from course_lib.exchange import PATIENCE, Communicator
from course_lib.network.layout import Wires
from course_lib.record.beats import bits, calling_line
from course_lib.record.events import Dropped, Metric, Phase, Read, Recorder, Update, clock
from course_lib.record.rundir import RunDir
from course_lib.spec.fields import STEADY, Jitter
from course_lib.spec.run_spec import RunSpec

SEVERAL = "several are task.watch(generator=(g, g_optimizer), critic=(c, c_optimizer))"


@dataclass
class Task:
    """One process of a cluster.

    `name` is TensorFlow's (`worker:1`); `addresses` maps each job to its `host:port` list;
    `threads` is how many threads the framework may use here; `device` is where it computes (`cpu`,
    `gpu:0`); `backend` is the native collective backend that the plan chose; `schedule` is the
    all-reduce of the run, if it is not the framework's own; `attempt` is how many restarts the run
    had seen when this process was started.
    """

    name: str
    spec: RunSpec
    addresses: dict[str, list[str]]
    files: RunDir
    recorder: Recorder
    threads: int = 1
    device: str = "cpu"
    backend: str = "none"
    slow_factor: float = 1.0
    jitter: Jitter = STEADY
    schedule: Schedule | None = None
    attempt: int = 0
    beat: Callable[..., None] = field(default=lambda *beat: None, repr=False)

    def __post_init__(self) -> None:
        self.step: int | None = None
        self.doing = ""
        # strategies call it at the end of each step; the starting line of a race makes it wait
        self.at_step_end: Callable[[], None] = lambda: None
        # called when a step begins at which a fault is due; returns once that has happened
        self.at_fault: Callable[[int], None] = lambda step: None
        steps = (f.step for f in self.spec.faults if self.spec.begins_in(self.name, f))
        self._faults = sorted(step for step in steps if step is not None)
        self._drawn: tuple[float, float] | None = None  # the delays of this step
        self._groups: Counter[str] = Counter()
        # kept, as the last bytes that were sent are lost if nobody holds the connection any more
        self._joined: list[Communicator] = []
        self._watched = False

    @property
    def run_dir(self) -> Path:
        """The directory of the run; `files` knows what lies where in it."""
        return self.files.path

    @property
    def job(self) -> str:
        return self.name.partition(":")[0]

    @property
    def index(self) -> int:
        return int(self.name.partition(":")[2])

    @property
    def address(self) -> str:
        """Return the address at which others reach this task, without the port."""
        return self.addresses[self.job][self.index].rpartition(":")[0]

    @property
    def rank(self) -> int:
        """Position among all tasks of the run, as torch counts."""
        return self.spec.tasks.index(self.name)

    def group(
        self, schedule: Schedule | None = None, name: str = "all", patience: float = PATIENCE
    ) -> Communicator:
        """Join a group of workers and parameter servers, and return this task's end of it.

        The members are the first `schedule.ranks` of them (`schedule`: by default that of the run);
        all of them if there is no schedule. They are on the run's hosts if it has several, else on
        those of the schedule. Every member must call this, and in the same order for groups of one
        name. In a run with a trace, every message that arrives is recorded. Raises `SpecError` if
        the schedule has no rank for this task.
        """
        schedule = schedule or self.schedule
        members = [task for task in self.spec.tasks if not task.startswith("chief")]
        hosts = tuple(self.spec.places[task] for task in members)
        if schedule:
            alone = len(self.spec.all_hosts) == 1
            hosts = schedule.hosts if alone else hosts[: schedule.ranks]
        if self.name not in members[: len(hosts)]:
            what = schedule.name if schedule else "it"
            raise SpecError("group", self.name, f"{what} is for {', '.join(members[: len(hosts)])}")
        record = self.recorder.add if self.spec.trace else None
        self._groups[name] += 1
        directory = self.files.meetings / f"{name}-{self._groups[name]}"
        links = Wires(self.files.wires) if self.files.wires.exists() else None
        ranks = bits(self.spec.tasks.index(task) for task in members[: len(hosts)])
        calls = itertools.count(1)

        def entered(what: str, size: int, about: str) -> Callable[[], None]:
            needs = ranks if what.startswith("all_reduce") else 0
            call = next(calls), self.rank, ranks, needs, size, directory.name, about, calling_line()
            self.beat(-1 if self.step is None else self.step, what, clock(), *call)
            return lambda: self.enter(self.doing)

        # a learner's code may leave a call out on some ranks
        options = record, patience, self.address, links, entered if self.spec.own else None
        joined = Communicator(members.index(self.name), hosts, directory, *options)
        self._joined.append(joined)
        return joined

    def begin(self, step: int) -> None:
        """Go on to a step, which begins with reading; its delays are drawn anew. If a fault is due,
        it happens first.
        """
        step = int(step)
        self.step, self._drawn = step, None
        self.enter("read")
        if self._faults and step >= self._faults[0]:
            self._faults = [later for later in self._faults if later > step]
            self.recorder.flush()  # so that a kill takes none of what was done before
            self.at_fault(step)

    def enter(self, what: str) -> None:
        """Say what this task does from now on, for those who wait for it (`record/beats.py`)."""
        self.doing = what
        self.beat(-1 if self.step is None else self.step, what, clock())

    @contextlib.contextmanager
    def phase(self, what: str, step: int) -> Iterator[None]:
        """Record what the block does as one `Phase`, also when it raises."""
        step = int(step)  # now: a learner's may be an array or a tensor that counts on
        if step != self.step:
            self.begin(step)
        start = clock()
        self.enter(what)
        try:
            yield
        finally:
            self.recorder.add(Phase(self.name, step, what, start, clock()))
        self.enter("")  # but after an error the beat says what it was in

    def record(self, what: str, step: int, start: float, end: float) -> None:
        """Record a phase whose times were taken elsewhere, such as inside a TensorFlow graph."""
        self.step = int(step)
        self.recorder.add(Phase(self.name, step, what, start, end))

    def metric(self, name: str, value: float, step: int, samples: int) -> None:
        """Record a number; `samples` counts the examples that the whole run has used so far."""
        self.recorder.add(Metric(self.name, name, float(value), int(step), int(samples), clock()))

    def update(
        self,
        step: int,
        variables: str,
        device: str,
        read: int,
        written: int,
        gradients: int = 1,
        workers: str = "",
    ) -> None:
        """Record that `variables` went from version `read`, as the gradients of `workers` saw them,
        to version `written`, on `device`.
        """
        self.recorder.add(
            Update(self.name, step, variables, device, read, written, clock(), gradients, workers)
        )

    def dropped(self, step: int, why: str, variables: str = "", of: str = "") -> None:
        """Record that a gradient computed for a step goes into no update, see `Dropped`. `of`: the
        task that computed it, if not this one.
        """
        self.recorder.add(Dropped(of or self.name, step, why, clock(), variables))

    def examples(self, step: int, epoch: int, read: list[int]) -> None:
        """Record the training examples of an epoch that were read for a step."""
        self.recorder.add(Read(self.name, step, epoch, read, clock()))

    def pace(self, busy: float = 0.0, share: float = 1.0) -> None:
        """Sleep for the emulated device time of a step, and longer on a task that is slowed or has
        jitter: for the seconds that `delay` says.
        """
        if (seconds := self.delay(busy, share)) > 0:
            time.sleep(seconds)

    def delay(self, busy: float = 0.0, share: float = 1.0) -> float:
        """Seconds to sleep in a step: its device time, and what slow factor and jitter add.

        `busy` is how many seconds the step really computes (the last step's figure will do): a task
        with slow factor f takes f times as long over device time and computing together. `share`:
        the part of a step's work that is done now, where a task does not do all of it at a time, as
        in pipelines and tensor parallelism. Seconds that jitter adds are slept in the first part.
        """
        jitter, factor = self.jitter, self.slow_factor
        times, late = self._drawn or jitter.of_step(self.spec.seed, self.name, self.step or 0)
        self._drawn = times, 0.0
        return factor * times * share * self.spec.device_ms / 1000 + (factor - 1) * busy + late

    def watch(self, model: Any = None, optimizer: Any = None, **named: Any) -> Any:
        """Watch a training loop of your own, which stays as it is. One line before it:

            lockstep = task.watch(model, optimizer)                     # PyTorch
            model.fit(x, y, callbacks=[task.watch(model)])              # Keras
            train_step = task.watch(model, optimizer).step(train_step)  # tf.distribute

        Each step then leaves its phases, its loss and its update in the trace, and lasts as long as
        the run's `device_ms`, `slow` and `jitter` say. Give it the model and optimizer that the
        loop uses; for `fit`, once the model is compiled. What can be seen of a loop, and what
        cannot, is said at the head of `watching.py` in `strategies/torch` and
        `strategies/tensorflow`.

        A loop with several models and optimizers gives each pair a name:

            task.watch(generator=(g, g_optimizer), critic=(c, c_optimizer))

        Losses (`critic loss`) and updates then carry these names. A step is over once each
        optimizer has made an update since the last one, so five updates of the critic and one of
        the generator may be a step. The examples of a step are those of the first model. A model
        that is not trained has None as its optimizer, as in `teacher=(t, None)`: its passes are
        computing. It may also be left out; then they count as what the loop does around them.

        Returns what is described there as `Watching`: it has the `number` of the step and the
        `samples` used so far. Raises `SpecError` for what cannot be watched, and for a second loop.
        """
        pairs = named if named and model is None else {"": (model, optimizer), **named}
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs.values()):
            allowed = "a model and its optimizer, or None, for each name: critic=(c, c_optimizer)"
            raise SpecError("watch", ", ".join(named), allowed)
        kinds = [type(model) for model, _ in pairs.values()]
        names = " and ".join(kind.__name__ for kind in kinds)
        if self._watched:
            raise SpecError("watch", names, f"a task watches one loop, and once: {SEVERAL}")
        packages = [{cls.__module__.partition(".")[0] for cls in kind.__mro__} for kind in kinds]
        common = set.intersection(*packages)
        homes = {"keras": "tensorflow", "torch": "torch"}
        if not (frameworks := [homes[package] for package in homes if package in common]):
            raise SpecError("model", names, f"a torch.nn.Module or a keras.Model; {SEVERAL}")
        watching = f"course_lib.strategies.{frameworks[0]}.watching:Watching"
        watched = pkgutil.resolve_name(watching)(self, pairs)
        self._watched = True
        return watched
