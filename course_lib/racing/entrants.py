"""The entrants of a race: specs of the same workload, from names, dicts, triples or `RunSpec`s.

Nothing here starts a process or reads a clock.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib import workloads
from course_lib.collectives import Schedule
from course_lib.errors import SpecError
from course_lib.faults import Fault, several
from course_lib.spec import RunSpec, parse_item
from course_lib.strategies import catalog
from course_lib.strategies.optimizers import usual_rate

BY_TASK = ("slow", "jitter", "faults")  # fields that may name single tasks
FORMS = "a strategy's name, (label, name, fields), a dict with 'strategy' in it, or a RunSpec"


@dataclass(frozen=True)
class Entrant:
    """One side of a race. `schedule`: its all-reduce, or None for the framework's own. `refused`:
    why it goes without some of the common fields.
    """

    label: str
    spec: RunSpec
    schedule: Schedule | None
    refused: tuple[SpecError, ...] = ()


def parse_entrant(text: str) -> dict[str, Any]:
    """An entrant as the command line writes it, such as
    `multi_worker_mirrored,all_reduce=ring,workers=2`, as a dict. Raises `SpecError` for any other
    form.
    """
    name, *settings = re.split(r",(?![\d.,])", text)  # link host:1=50,2.5 has commas of its own
    fields: dict[str, Any] = {"strategy": name.strip()}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            form = "a strategy, then field=value for each field of its own"
            raise SpecError("race", text, f"{form}, such as one_device,framework=torch")
        if key == "slow":
            fields.setdefault("slow", {}).update([parse_item("slow", value)])
        elif key == "fault":
            fields.setdefault("faults", []).append(value)
        else:
            fields[key] = _value(value)
    return fields


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def line_up(entrants: Sequence[Any], common: Mapping[str, Any]) -> tuple[list[Entrant], list[str]]:
    """The entrants, each with the `common` fields and its own, and notes on fields that some go
    without and on how they differ.

    Raises `SpecError` for fewer than two entrants, if they do not learn the same thing, and for a
    common field that no entrant can take.
    """
    if len(entrants) < 2:
        raise SpecError("race", list(entrants), "two entrants or more")
    parsed = [_parsed(entrant) for entrant in entrants]
    given = {name: value for name, value in common.items() if value is not None}
    batches = [own["global_batch"] for _, _, own in parsed if own.get("global_batch")]
    if not (given.get("global_batch") or batches):
        shares = math.lcm(*(_fit("", name, given, own).spec.shares for _, name, own in parsed))
        batches = [max(shares, 128 // shares * shares)]
    given = {"global_batch": next(iter(batches), None), **given}

    labelled = zip(_labels(parsed), parsed, strict=True)
    found = [_fit(label, name, given, own) for label, (_, name, own) in labelled]
    _check_taken(found, [own for _, _, own in parsed])
    _check_same(found)
    notes = [_without(entrant, error) for entrant in found for error in entrant.refused]
    return found, [*notes, *_device_notes(found), *_update_notes(found)]


def _parsed(entrant: Any) -> tuple[str | None, str, dict[str, Any]]:
    """(label, strategy, fields of its own) of an entrant in any of its forms."""
    match entrant:
        case str():
            return None, entrant, {}
        case RunSpec():
            own = {name: getattr(entrant, name) for name in entrant.model_fields_set}
            return None, own.pop("strategy", entrant.strategy), own
        case Mapping() if isinstance(entrant.get("strategy"), str):
            own = dict(entrant)
            label = own.pop("label", None)
            return None if label is None else str(label), own.pop("strategy"), own
        case (str(label), str(name)):
            return label, name, {}
        case (str(label), str(name), Mapping() as fields):
            return label, name, dict(fields)
    raise SpecError("race", entrant, FORMS)


def _labels(parsed: Sequence[tuple[str | None, str, dict[str, Any]]]) -> list[str]:
    """A label for each entrant: the one given, or else its strategy's name, followed by those of
    its own fields that tell it from other entrants of the same strategy.
    """
    labels: list[str] = []
    for label, name, own in parsed:
        text = label or name
        others = [theirs for _, other, theirs in parsed if other == name]
        if not label:
            differ = [
                f"{field}={getattr(value, '__name__', value)}"
                for field, value in own.items()
                if any(field not in theirs or theirs[field] != value for theirs in others)
            ]
            text = " ".join([name, *differ])
        if text in labels and label:
            raise SpecError("label", label, "each entrant has one of its own")
        count = 1 + sum(other == text or other.startswith(text + " #") for other in labels)
        labels.append(text if count == 1 else f"{text} #{count}")
    return labels


def _fit(label: str, name: str, common: Mapping[str, Any], own: Mapping[str, Any]) -> Entrant:
    """An entrant with its own fields, and those of the common ones that it can take."""
    fields, algorithm = catalog.named({**common, **own})
    for field in BY_TASK:
        if isinstance(fields.get(field), Mapping):
            # a copy, since tasks that this entrant does not have are removed from it
            fields[field] = dict(fields[field])
    if "faults" in fields:
        fields["faults"] = [str(Fault.of(fault)) for fault in several(fields["faults"])]
    refused: list[SpecError] = []
    while True:
        try:
            spec = catalog.spec_for(name, **fields)
            if not spec.trace:
                raise SpecError("trace", False, "a race is judged by its traces")
            return Entrant(label, spec, catalog.schedule(spec, algorithm), tuple(refused))
        except SpecError as error:
            workload = fields.get("workload", RunSpec.model_fields["workload"].default)
            decisive = ("framework", *_task(workload))
            if error.field in (*decisive, *own) or error.field not in fields:
                text = error.allowed if name in error.allowed else f"{error.allowed} (for {name})"
                raise SpecError(error.field, error.value, text) from None
            tasks = fields[error.field] if error.field in BY_TASK else None
            if isinstance(tasks, dict) and error.value in tasks:
                del tasks[error.value]
            elif isinstance(tasks, list) and error.value in tasks:
                tasks.remove(error.value)
            else:
                del fields[error.field]
            refused.append(error)


def _task(workload: str) -> tuple[str, ...]:
    """The fields that decide what is learned, from which weights and in which order."""
    of_workload = workloads.fields(workload) if workload in workloads.WORKLOADS else ()
    return ("workload", *of_workload, "seed", "global_batch", "sampler")


def _check_taken(entrants: Sequence[Entrant], own: Sequence[Mapping[str, Any]]) -> None:
    """If no entrant can take a common field, it is a mistake: raise its refusal."""
    for error in (error for entrant in entrants for error in entrant.refused):
        pairs = zip(entrants, own, strict=True)
        asked = [entrant for entrant, mine in pairs if error.field not in mine]
        if all(_what(error) in map(_what, entrant.refused) for entrant in asked):
            raise error


def _what(error: SpecError) -> tuple[str, str]:
    """What was refused: a field, or one straggler of several."""
    return error.field, str(error.value) if error.field in BY_TASK else ""


def _without(entrant: Entrant, error: SpecError) -> str:
    straggler = error.field in BY_TASK and str(error.value).startswith("worker:")
    what = f"the straggler {error.value}" if straggler else f"{error.field}={error.value}"
    return f"{entrant.label} goes without {what}: {error.allowed}."


def _check_same(entrants: Sequence[Entrant]) -> None:
    first = entrants[0]
    for other in entrants[1:]:
        for name in _task(first.spec.workload):
            mine, theirs = getattr(first.spec, name), getattr(other.spec, name)
            if mine != theirs:
                text = f"must be the same for all entrants of a race, and {first.label} has {mine}"
                raise SpecError(name, theirs, f"({other.label}) {text}")


def _device_notes(entrants: Sequence[Entrant]) -> list[str]:
    """A note if the emulated devices differ in the time of a step or in the examples that they
    compute in it.
    """
    device_ms = {entrant.label: entrant.spec.device_ms for entrant in entrants}
    if len(set(device_ms.values())) > 1:
        each = ", ".join(f"{label} {ms:g} ms" for label, ms in device_ms.items())
        return [f"The emulated devices differ by the entrants' own settings: a step takes {each}."]
    ms = entrants[0].spec.device_ms
    shares = {
        entrant.label: catalog.find(entrant.spec.strategy).share(entrant.spec)
        for entrant in entrants
        if not catalog.find(entrant.spec.strategy).model_parallel
    }
    if not (ms and shares) or len(set(shares.values())) == 1:
        return []
    most, fewest = max(shares, key=shares.__getitem__), min(shares, key=shares.__getitem__)
    return [
        f"A device computes its share of a step in {ms:g} ms, however large: {shares[most]:g} "
        f"examples for {most}, {shares[fewest]:g} for {fewest}. If devices are to be equally "
        f"fast, give {most} a device_ms of its own: {ms * shares[most] / shares[fewest]:.3g}."
    ]


def _update_notes(entrants: Sequence[Entrant]) -> list[str]:
    """A note on each entrant that makes several updates a step at the others' learning rate."""
    steady = next((entrant for entrant in entrants if _updates(entrant.spec) == 1), None)
    if steady is None:
        return []
    notes = []
    for label, spec in ((entrant.label, entrant.spec) for entrant in entrants):
        updates, rate = _updates(spec), usual_rate(spec)
        if updates > 1 and rate == usual_rate(steady.spec):
            notes.append(
                f"{label} makes {updates} updates a step, {steady.label} 1, at the same learning "
                "rate; to compare waiting and staleness alone, give "
                f"{label} learning_rate={rate / updates:.3g}."
            )
    return notes


def _updates(spec: RunSpec) -> int:
    """Updates in a step."""
    return spec.workers if catalog.find(spec.strategy).asynchronous else 1
