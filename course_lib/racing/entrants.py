"""The entrants of a race: specs of the same workload, from names, dicts, triples or `RunSpec`s.
Each is prepared to run on an equal share of the machine.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from course_lib.cluster import nursery
from course_lib.cluster.run import Prepared
from course_lib.errors import SpecError
from course_lib.hardware import Machine
from course_lib.launch import prepare
from course_lib.spec.run_spec import JOBS, RunSpec, batch_of
from course_lib.strategies import catalog, pages
from course_lib.strategies.gate import Request, admit, requested
from course_lib.strategies.optimizers import usual_rate
from course_lib.strategies.strategy import Strategy
from course_lib.text import count as counted

TASK = ("workload", "sizes", "seed", "global_batch", "sampler")
"""The fields that decide what is learned, from which weights and in which order."""
Parsed = tuple[str | None, Any, dict[str, Any]]
"""(label if it has one, strategy or functions of a learner's own, fields of its own)"""
Entrants = Mapping[str, Request]
"""The sides of a race: label -> a request that was admitted."""
FORMS = (
    "a strategy's name, a function, (label, strategy, fields), a dict with 'strategy', a RunSpec"
)


def parse_entrant(text: str) -> dict[str, Any]:
    """An entrant as the command line writes it, such as
    `multi_worker_mirrored,all_reduce=ring,workers=2`, as a dict. Raises `SpecError` for any other
    form.
    """
    name, *settings = re.split(r",(?![\d.,])", text)  # link host:1=50,2.5 has commas of its own
    fields: dict[str, Any] = {"strategy": pages.named(name.strip())}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            form = "a strategy, then field=value for each field of its own"
            raise SpecError("race", text, f"{form}, such as one_device,framework=torch")
        if key in ("slow", "fault"):
            fields.setdefault("faults" if key == "fault" else key, []).append(value)
        else:
            fields[key] = _value(value)
    return fields


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def line_up(
    entrants: Sequence[Any], common: Mapping[str, Any], machine: Machine
) -> tuple[Entrants, list[str]]:
    """The entrants, each with the `common` fields and its own, and notes on how they differ.

    All that can have several workers get as many, unless they are told otherwise; in a `run_dir`
    each gets a directory of its own. Raises `SpecError` for fewer than two entrants, if they do not
    learn the same thing, and for a common field that does not reach every entrant.
    """
    if len(entrants) < 2:
        raise SpecError("race", list(entrants), "two entrants or more")
    parsed = [_parsed(entrant) for entrant in entrants]
    asked = list(zip(_labels(parsed), parsed, strict=True))
    given = {name: value for name, value in common.items() if value is not None}
    if "workers" not in given:
        counts = [own["workers"] for _, _, own in parsed if isinstance(own.get("workers"), int)]
        usual = [_known(what).default_workers for _, what, _ in parsed]
        for (_, _, own), count in zip(parsed, usual, strict=True):
            if count > 1 and not own.keys() & {"workers", "replicas"}:
                own["workers"] = max(counts or usual)
    if folder := given.pop("run_dir", None):
        for number, (label, (_, _, own)) in enumerate(asked):
            its = re.sub(r"[^\w.=-]+", "-", f"{number}-{label}")
            own.setdefault("run_dir", Path(str(folder), its))
    batches = [own["global_batch"] for _, _, own in parsed if own.get("global_batch")]
    lined_up = _each_fits(asked, {"global_batch": next(iter(batches), None)} | given, machine)
    _check_same(lined_up)
    return lined_up, [*_device_notes(lined_up), *_update_notes(lined_up)]


def _parsed(entrant: Any) -> Parsed:
    """An entrant in any of its forms."""
    match entrant:
        case str() | FunctionType() | partial():
            return None, entrant, {}
        case RunSpec():
            own = {name: getattr(entrant, name) for name in entrant.model_fields_set}
            return None, own.pop("strategy", entrant.strategy), own
        case Mapping() if entrant and entrant.keys() <= set(JOBS):
            return None, entrant, {}
        case Mapping() if "strategy" in entrant:
            own = dict(entrant)
            label = own.pop("label", None)
            return None if label is None else str(label), own.pop("strategy"), own
        case (str(label), what):
            return label, what, {}
        case (str(label), what, Mapping() as fields):
            return label, what, dict(fields)
    raise SpecError("race", entrant, FORMS)


def _name(what: Any) -> str:
    return what if isinstance(what, str) else pages.name_of(what)


def _known(what: Any) -> Strategy:
    """The strategy of an entrant, as far as its name tells."""
    return catalog.find(what) if isinstance(what, str) else pages.described(_name(what))


def _labels(parsed: Sequence[Parsed]) -> list[str]:
    """A label for each entrant: the one given, or else its strategy's name, followed by
    its own fields if there are other entrants of the same strategy.
    """
    labels: list[str] = []
    names = [_name(what) for _, what, _ in parsed]
    for (label, _, own), name in zip(parsed, names, strict=True):
        same = names.count(name) > 1
        fields = [f"{field}={getattr(value, '__name__', value)}" for field, value in own.items()]
        text = label or " ".join([name, *(fields if same else [])])
        if text in labels and label:
            raise SpecError("label", label, "each entrant has one of its own")
        count = 1 + sum(other == text or other.startswith(text + " #") for other in labels)
        labels.append(text if count == 1 else f"{text} #{count}")
    return labels


def _each_fits(
    asked: Sequence[tuple[str, Parsed]], common: Mapping[str, Any], machine: Machine
) -> Entrants:
    """All entrants; where none says how large the batch is, all have one that divides over the
    devices of each. Raises the refusal of a field.
    """
    requests: dict[str, Request] = {}
    for label, (_, what, own) in asked:
        with _named(label, common.keys() - own.keys()):
            requests[label] = requested(what, {**common, **own})
    pieces = (catalog.of(request.spec).pieces(request.spec) for request in requests.values())
    batch = batch_of(*pieces)
    for label, request in requests.items():
        if not common["global_batch"]:
            request.spec = request.spec.model_copy(update={"global_batch": batch})
        if not request.spec.trace:
            raise SpecError("trace", False, "a race is judged by its traces")
        with _named(label, common.keys()):
            admit(request, machine)
    return requests


@contextlib.contextmanager
def _named(label: str, common: Iterable[str] = ()) -> Iterator[None]:
    """Name the entrant in the refusal of a field, and what to do if it is one of the `common`."""
    try:
        yield
    except SpecError as error:
        cure = "; if others can have it, give it to those alone, as a field of their own"
        who = f"(for {label}{cure * (error.field in common)})"
        raise SpecError(error.field, error.value, f"{error.allowed} {who}") from None


def _check_same(entrants: Entrants) -> None:
    (first, its), *others = entrants.items()
    for label, other in others:
        for name in (*TASK, "engine"):
            mine, theirs = getattr(its.spec, name), getattr(other.spec, name)
            if mine != theirs:
                text = f"must be the same for all entrants of a race, and {first} has {mine}"
                raise SpecError(name, theirs, f"({label}) {text}")


def _device_notes(entrants: Entrants) -> list[str]:
    """A note if the emulated devices differ in the time of a step or in the examples that they
    compute in it.
    """
    specs = {label: request.spec for label, request in entrants.items()}
    ms, *others = {spec.device_ms for spec in specs.values()}
    if others:
        each = ", ".join(f"{label} {spec.device_ms:g} ms" for label, spec in specs.items())
        return [f"The emulated devices differ by the entrants' own settings: a step takes {each}."]
    all_of = [(label, spec, catalog.of(spec)) for label, spec in specs.items()]
    shares = {label: its.share(spec) for label, spec, its in all_of if not its.model_parallel}
    if not ms or len(set(shares.values())) < 2:
        return []
    most, fewest = max(shares, key=shares.__getitem__), min(shares, key=shares.__getitem__)
    return [
        f"A device computes its share of a step in {ms:g} ms, however large: {shares[most]:g} "
        f"examples for {most}, {shares[fewest]:g} for {fewest}. If devices are to be equally "
        f"fast, give {most} a device_ms of its own: {ms * shares[most] / shares[fewest]:.3g}."
    ]


def _update_notes(entrants: Entrants) -> list[str]:
    """A note on each entrant that makes several updates a step at the others' learning rate."""
    rates = {label: usual_rate(request.spec) for label, request in entrants.items()}
    counts = {label: _updates(request.spec) for label, request in entrants.items()}
    steady = next((label for label, updates in counts.items() if updates == 1), None)
    notes = []
    for label, updates in counts.items():
        if steady and updates > 1 and rates[label] == rates[steady]:
            made = f"{label} makes {updates} updates a step, {steady} 1"
            why = "at the same learning rate; to compare waiting and staleness alone"
            notes.append(f"{made}, {why}, give {label} learning_rate={rates[label] / updates:.3g}.")
    return notes


def _updates(spec: RunSpec) -> int:
    """Updates in a step."""
    return spec.workers if catalog.of(spec).asynchronous else 1


# --- shares of the machine ---


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


def prepared(entrants: Entrants, share: Machine, begun: contextlib.ExitStack) -> list[Prepared]:
    """Each entrant, prepared to start on its share; `begun` releases its engine. Raises
    `SpecError` if the share has too little memory.
    """
    ready, warm = [], set[str]()
    for label, request in entrants.items():
        framework = request.spec.framework
        loaded = framework in warm or nursery.is_warm(framework)
        warm.add(framework)
        with _named(f"{label}, one of {len(entrants)} entrants"):
            ready.append(prepare(request, share, warm=loaded))
        begun.callback(ready[-1].engine.release)
    return ready


def cores_note(cores: Sequence[Sequence[int]], share: Machine, machine: Machine) -> str:
    each = counted(share.cores, "core")
    if cores[0]:
        return f"Each entrant has {each} of this machine to itself."
    planned = f"each plans its threads for {each}: one can take time from the other"
    return f"The entrants share {machine.cores} cores, and {planned}."
