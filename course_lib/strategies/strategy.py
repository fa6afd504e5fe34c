"""A strategy as data. Nothing here imports a framework.

In the formulas for memory S is the bytes of the model's trained parameters in float32. Gradients
take S bytes too, the optimizer's state k S bytes, with k from 0 to 2 (`STATE`). One example needs A
bytes of activations, and a replica computes its share of the batch at a time or, with `accumulate`,
a part of that share. In 16 bits it also keeps copies of weights, once for all examples. Source:
Rajbhandari et al., "ZeRO", SC 2020, section 3.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple

from course_lib.errors import Unavailable
from course_lib.hardware import Machine, Reason
from course_lib.record.measures import Memory
from course_lib.spec.run_spec import RunSpec
from course_lib.spec.settings import MAX_WORKERS
from course_lib.strategies.optimizers import STATE
from course_lib.workloads.layers import Sketch

WORKERS = {"tensorflow": ("worker",), "torch": ("worker",)}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts that a learner should be able to tell about a strategy.

    Where its `variables` live; who computes `gradients`, applies the `update` and `waits` for whom;
    what goes over the `wire` in a step (n workers, S bytes of gradients); its typical `use`, its
    `limits` and its `source`.
    """

    summary: str
    variables: str
    gradients: str
    update: str
    waits: str
    wire: str
    use: str
    limits: str
    source: str


Refusals = Iterable[tuple[str, str]]
"""Fields of a spec whose values a run cannot have, each with what is allowed."""


class Standing(NamedTuple):
    """The reality of a strategy on a machine, `why`, and, if it is not available, the `cure`."""

    reality: Literal["measured", "unavailable"]
    why: str
    cure: str = ""


class Measured(NamedTuple):
    """Why a strategy is measured: on CPUs; and where its framework can use `at_least` so many GPUs,
    whose number takes the place of {gpus}.
    """

    cpu: str
    gpu: str = ""
    at_least: int = 2


NCCL = "real processes; NCCL for up to {gpus} workers, a GPU each"
NO_NCCL = "between CPUs, as NCCL needs a GPU for each worker"
PROCESSES = {
    "tensorflow": Measured(f"real processes; TensorFlow's RING {NO_NCCL}", NCCL),
    "torch": Measured(f"real processes; gloo {NO_NCCL}", NCCL),
}

Formula = Callable[[RunSpec, Sketch, int], Memory]
"""A run, its model, and the examples that a replica computes at a time -> the memory of each task.
A kind of memory that it does not foretell is missing."""
AllReduceOf = Callable[[RunSpec, Sketch], Reason | None]


def no_all_reduce(why: str) -> AllReduceOf:
    """The all-reduce of a strategy that has none; `why`: what it has in its place."""
    return lambda spec, model: Reason("all-reduce", "none", why)


def share_of(spec: RunSpec, model: Sketch, of: int = 1) -> dict[str, int]:
    """Parameters, gradients and optimizer state of `1 / of` of the model: S, S and k S."""
    whole = 4 * model.parameters // of
    state = STATE[spec.optimizer] * whole
    return {"parameters": whole, "gradients": whole, "optimizer_state": state}


def per_example(few: int, twice: int, examples: int) -> tuple[int, int]:
    """The `activations` and `copies` of a `Sketch`, from the bytes that so many `examples` keep and
    those that twice as many keep.
    """
    return (twice - few) // examples, max(0, 2 * few - twice)


def on_workers(spec: RunSpec, memory: Mapping[str, int]) -> Memory:
    """The same on each worker, for each of its replicas."""
    kinds = {kind: spec.replicas * count for kind, count in memory.items()}
    return {f"worker:{k}": dict(kinds) for k in range(spec.workers)}


def data_parallel(spec: RunSpec, model: Sketch, examples: int) -> Memory:
    """Every replica holds S + S + k S, and the activations of its examples."""
    return on_workers(spec, share_of(spec, model) | {"activations": model.kept(examples)})


@dataclass(frozen=True, kw_only=True)
class Strategy(Facts):
    """A strategy: its facts, its role functions, and what a run of it may be asked for.

    - `jobs`: for each framework that it is for, the jobs of its tasks; none if it cannot run there.
      Their role functions have the same names, in the page `strategies/<framework>/<name>.py`.
    - `measured`: why it is real, for each framework.
    - `check`: what of a spec it refuses, see `gate.py`; raises `Unavailable` if the machine cannot
      do it.
    - `fits`: what it refuses for the model that a run is to train.
    - `pieces`: into how many equal pieces a run cuts the global batch; `default_parts`: the usual
      number of parts of a share, for `accumulate`.
    - `one_process`: frameworks in which all replicas live in one process, on a device each;
      `workers` are then made `replicas` of it.
    - `one_host`: why its workers, which are processes of their own, have to be on one host all the
      same; "" if they need not.
    - `all_reduce`: what a run has in place of the all-reduce that the plan finds for its framework;
      None if it has that one.
    - `takes_schedule`: whether its all-reduce can be one of ours; `reductions`: by framework, those
      of the framework that `all_reduce` may name.
    - `asynchronous`: every worker's gradients are an update of their own, so a step is as many
      updates as there are workers.
    - `model_parallel`: workers divide the work on each example, not the examples.
    - `memory`: the formula for what each task holds.
    - `takes`: the fields of `RunSpec` that only some strategies have a use for, and this one has.
    - `recovers`: which tasks are started again after a failure, if restarts are left: all
      "together", or a lost worker "alone", see `cluster.roster`.
    """

    name: str
    jobs: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: WORKERS)
    measured: Mapping[str, Measured] = field(default_factory=lambda: PROCESSES)
    check: Callable[[RunSpec, Machine], Refusals] = lambda spec, machine: ()
    fits: Callable[[RunSpec, Sketch], Refusals] = lambda spec, model: ()
    pieces: Callable[[RunSpec], int] = lambda spec: spec.shares * spec.accumulate
    default_workers: int = 4
    default_parts: int = 1
    default_precision: str = "float32"
    max_workers: int = MAX_WORKERS
    one_process: tuple[str, ...] = ()
    one_host: str = ""
    all_reduce: AllReduceOf = lambda spec, model: None
    takes_schedule: bool = False
    reductions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    asynchronous: bool = False
    model_parallel: bool = False
    memory: Formula = data_parallel
    takes: tuple[str, ...] = ()
    recovers: str = "together"

    @property
    def facts(self) -> dict[str, str]:
        """Its facts by name."""
        return {fact.name: getattr(self, fact.name) for fact in fields(Facts)}

    @property
    def programs(self) -> dict[str, dict[str, str]]:
        """Framework -> job -> `module:function`."""
        return {
            framework: {job: f"{__package__}.{framework}.{self.name}:{job}" for job in jobs}
            for framework, jobs in self.jobs.items()
        }

    def standing(self, framework: str, machine: Machine) -> Standing:
        """Say how real it is with a framework on a machine: unavailable if the machine cannot do a
        run of which nothing else is asked.
        """
        try:
            list(self.check(RunSpec(framework=framework), machine))
        except Unavailable as error:
            return Standing("unavailable", error.why, error.cure)
        cpu, gpu, at_least = self.measured[framework]
        gpus = len(machine.gpus) if framework in machine.cuda_frameworks else 0
        return Standing("measured", gpu.format(gpus=gpus) if gpu and gpus >= at_least else cpu)

    def share(self, spec: RunSpec) -> int:
        """Examples that a replica computes in a step. Of backup workers, fewer shares make up the
        batch; where a model is divided, everybody computes all examples.
        """
        if self.model_parallel:
            return spec.batch
        return spec.batch // (spec.shares - (spec.backups if "backups" in self.takes else 0))

    def piece(self, spec: RunSpec) -> int:
        """Examples that the model is given at a time."""
        return self.share(spec) // spec.accumulate

    def foretold(self, spec: RunSpec, model: Sketch) -> Memory:
        """The memory of each task by its formula, in bytes."""
        memory = self.memory(spec, model, self.piece(spec))
        if not model.activations:  # not known
            for kinds in memory.values():
                kinds.pop("activations", None)
        return memory

    def others(self, framework: str) -> list[str]:
        """The other frameworks that this strategy runs in."""
        return [other for other, jobs in self.jobs.items() if jobs and other != framework]

    def why_one_host(self, framework: str) -> str:
        """Why all workers have to be on one host; "" if they need not be."""
        if framework in self.one_process or self.max_workers == 1:
            return f"{self.name} with {framework} is one process"
        return self.one_host
