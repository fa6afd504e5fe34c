"""The parts of a model that a batch passes one after the other: a pipeline is cut between them."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from course_lib.errors import trying
from course_lib.strategies.torch.models import trained


def parts_of(model: nn.Module, names: Sequence[str] = ()) -> dict[str, nn.Module]:
    """The parts by name: the modules that a workload names as its `stages`, or those of a
    `torch.nn.Sequential`. Raises `ValueError` if there are none.
    """
    if names:
        with trying("its stages are not all modules of its model"):
            return {name: model.get_submodule(name) for name in names}
    if not isinstance(model, nn.Sequential):
        cure = 'Workload(..., stages=["embed", "blocks.0", ...]) names the modules to cut between'
        raise ValueError(f"its model is no torch.nn.Sequential: {cure}")
    return dict(model._modules)


def check(model: nn.Module, names: Sequence[str], inputs: Any, *others: Any) -> int:
    """How many of the parts have weights to train. Raises `ValueError` if the parts, called one
    after the other, are not the model, if they cannot be trained apart from each other, or if the
    inputs or the `others`, outputs and targets, are structures of tensors.
    """
    if not all(map(torch.is_tensor, (inputs, *others))):
        raise ValueError("its inputs, outputs or targets are several, and a stage sends on one")
    parts = parts_of(model, names)
    owners: dict[nn.Parameter, str] = {}
    for name, part in parts.items():
        for parameter in part.parameters():
            if (other := owners.setdefault(parameter, name)) != name:
                why = "each of two stages would train a copy of its own"
                raise ValueError(f"its parts {other} and {name} share a weight: {why}")
    for name, parameter in model.named_parameters():
        if parameter not in owners:
            cure = "name the module that holds it, or move it into one of them"
            raise ValueError(f"its parameter {name} is in none of its stages: {cure}")

    calls: list[tuple[nn.Module, Any]] = []  # in the model's own forward pass

    def called(part: nn.Module, given: Any, output: Any) -> None:
        calls.append((part, output.clone() if torch.is_tensor(output) else output))

    hooks = [part.register_forward_hook(called) for part in dict.fromkeys(parts.values())]
    with torch.no_grad(), torch.autocast("cpu", enabled=False):  # exactly, whatever the precision
        model.eval()
        outputs = model(inputs)
        for hook in hooks:
            hook.remove()
        order, left = [part for part, _ in calls], list(parts)
        if order != list(parts.values()) and Counter(order) == Counter(parts.values()):
            names = [left.pop([parts[name] for name in left].index(part)) for part in order]
            raise ValueError(f"its model calls its stages in another order: stages={names}")
        values, before, weights = inputs, "the data", 0
        for (name, part), call in itertools.zip_longest(parts.items(), calls[: len(parts)]):
            if trained(part):
                if weights and not (torch.is_tensor(values) and values.is_floating_point()):
                    kind = values.dtype if torch.is_tensor(values) else type(values).__name__
                    text = "a stage sends on one tensor of floats, whose gradient comes back"
                    raise ValueError(f"{before} makes a {kind}: {text}")
                weights += 1
            with trying(f"its stage {name} cannot take what comes from {before}"):
                values = part(values)
            if not (call and call[0] is part and same(values, call[1])):
                cure = "move what its forward does between them into one of the stages"
                raise ValueError(f"its stage {name} gets not just what comes from {before}: {cure}")
            before = name
        model.train()
    if not same(values, outputs):
        raise ValueError(f"its outputs are not those of {before}, its last stage")
    return weights


def same(ours: Any, theirs: Any) -> bool:
    """Whether two results are alike; if they are no tensors, only their types are compared."""
    if not (torch.is_tensor(ours) and torch.is_tensor(theirs)):
        return type(ours) is type(theirs)
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
