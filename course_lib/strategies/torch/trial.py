"""The trial of a learner's own PyTorch model: what is known of it before a run."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.errors import trying
from course_lib.strategies.strategy import per_example
from course_lib.strategies.torch import models
from course_lib.strategies.torch.models import kept_for_backward, mixed, whole, wide
from course_lib.strategies.torch.pipeline_parallel import parts_of
from course_lib.strategies.torch.steps import TIMEOUT
from course_lib.strategies.torch.tensor_parallel import cut, plan_of, units_of
from course_lib.text import kind_of
from course_lib.workloads.examples import first_leaf, leaves, mapped, shapes
from course_lib.workloads.layers import Sketch
from course_lib.workloads.workload import LOSS, in_order, uneven

Loss = Callable[[Any, Any], Any]  # of a model, for inputs and targets

CURE = "rows take what columns make; attention of your own reshapes with -1 in place of heads"
ITSELF = "between columns and rows each unit must be computed by itself, without parameters"
TOLERANCE = 1e-3  # of a norm: only the order in which workers' sums are added up may differ
BATCH_NORM = (
    "Batch normalisation takes means and variances of each replica's own share of a batch, with "
    "accumulate of each part of it, and in a pipeline of each microbatch; on GPUs "
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm in the builder takes them over all replicas."
)
SPARSE = (
    "Gradients of {} are sparse: only the rows that a batch looks up. Parameter servers get these "
    "rows and send only what has changed; an all_reduce=... exchanges whole tables."
)


def sketch(task: Task) -> Sketch:
    """Learn about the model of this task's workload, by one step with two examples.

    Raises `ValueError` that says what it cannot do, such as an operation in the run's precision.
    """
    return mixed(task.spec.precision, "cpu")(_tried)(task)


def _tried(task: Task) -> Sketch:
    workload = workloads.load(task.spec)
    model = built(workload, task.spec.seed)
    one_step(workload, model)
    grads = ((name, each.grad) for name, each in model.named_parameters())
    sparse = tuple(name for name, grad in grads if grad is not None and grad.is_sparse)
    workload.check_test(partial(models.outputs_of, model))
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    synchronized = [isinstance(norm, nn.SyncBatchNorm) for norm in norms]
    notes = {BATCH_NORM: not all(synchronized), SPARSE.format(", ".join(sparse)): bool(sparse)}

    def loss(x: Any, y: Any) -> Any:
        return models.loss_of(workload)(wide(model(x)), y)

    def alone() -> str:
        with trying("the model cannot be trained on one"):
            loss(*models.tensor(workload.train.take(slice(1))))
        return ""

    two = inputs, _ = models.tensor(workload.train.take(slice(2)))
    kept, copies = activations(model, loss, two)
    x, y = workload.train.take(workload.train.spread(32))
    made = models.tensor((models.outputs_of(model, x), y))
    return Sketch(
        parameters=sum(parameter.numel() for parameter in models.trained(model)),
        parts=or_why(stages_of, model, workload.stages, inputs, *made),
        units=or_why(lambda: units_of(model, plan_of(model, workload.parallel))),
        notes=tuple(note for note, true in notes.items() if true),
        uneven=uneven(models.loss_of(workload), *made),
        synchronized=any(synchronized),
        flops=training_flops(loss, two),
        activations=kept,
        copies=copies,
        alone=or_why(alone),
        sparse=sparse,
    )


def built(workload: workloads.Workload, seed: int) -> nn.Module:
    """The model that its builder returns."""
    if isinstance(workload.torch, nn.Module):
        raise ValueError("torch is a model: give a function, such as lambda: ...")
    with trying("its torch builder fails"):
        model = models.build(workload, seed)
    if not isinstance(model, nn.Module):
        raise ValueError(f"its torch builder returns {kind_of(model)}, no torch.nn.Module")
    if not models.trained(model):
        raise ValueError("its model has no parameters to train")
    return model


def one_step(workload: workloads.Workload, model: nn.Module) -> None:
    """Two examples forward and backward; raises `ValueError` that says what went wrong."""
    inputs, targets = workload.train.take(slice(2))
    whole = getattr(inputs, "dtype", "") == "int64"
    kind = ', whole numbers (as floats: x.astype("float32"))' if whole else ""
    given = f"the inputs of two examples, of shape {shapes(inputs)}{kind}"
    with trying(f"its model cannot take {given}"):
        outputs = model(models.tensor(inputs))
    for name, each in leaves(outputs, "outputs").items():
        if not isinstance(each, torch.Tensor):
            raise ValueError(f"its model returns {kind_of(each)} as its {name}, no tensor")
    workload.check_outputs(mapped(lambda each: each.detach().float().numpy(), outputs))
    with trying(f"its loss fails for outputs {shapes(outputs)} with targets {shapes(targets)}"):
        loss = in_order(workload.loss, models.LOSSES)(wide(outputs), models.tensor(targets))
    total = loss[0] if isinstance(loss, tuple) and len(loss) == 2 else loss
    if not isinstance(total, torch.Tensor) or total.numel() != 1:
        what = tuple(total.shape) if isinstance(total, torch.Tensor) else kind_of(total)
        raise ValueError(f"its loss returns {what}, {LOSS}")
    if not torch.isfinite(total):
        raise ValueError(f"its loss for the first two examples is {total.item()}")
    with trying("its loss has no gradient"):
        total.backward()
    unused = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if unused:
        cure = "use them, or freeze them with requires_grad_(False)"
        raise ValueError(f"its loss does not depend on {', '.join(unused)}: {cure}")


def pieces(task: Task) -> None:
    """Cut the model of this task's workload over the workers of a run and compare it with the whole
    one: the outputs for two examples, and the gradients.

    Raises `ValueError` if they differ.
    """
    dist.init_process_group("gloo", timeout=TIMEOUT)  # on CPUs, wherever the run will be
    workload = workloads.load(task.spec)
    model = models.build(workload, task.spec.seed).eval()
    inputs, targets = map(models.tensor, workload.train.take(slice(2)))
    mapped(lambda each: dist.broadcast(each, 0), (inputs, targets))  # a dataset may draw

    def gradients() -> dict[str, Any]:
        """The gradients by name, and the outputs."""
        torch.manual_seed(task.spec.seed)  # a loss may draw
        outputs = model(inputs)
        models.summed(models.loss_of(workload)(outputs, targets)).backward()
        named = {
            name: whole(torch.zeros_like(each) if each.grad is None else each.grad)
            for name, each in model.named_parameters()
        }
        every = [each.flatten() for each in leaves(outputs).values()]
        return {"outputs": torch.cat(every).detach(), **named}

    expected = gradients()
    model.zero_grad()
    with trying("its layers cannot be cut"):
        mesh = init_device_mesh("cpu", (task.spec.workers,))
        cut(model, plan_of(model, workload.parallel), mesh)
    with trying(f"cut into pieces, its model cannot be computed ({CURE})"):
        pieces = gradients()
    largest = max(each.norm() for each in expected.values())
    for name, value in expected.items():
        most = TOLERANCE * max(value.norm(), TOLERANCE * largest)
        if name in pieces and not (pieces[name] - value).norm() <= most:
            what = "its outputs" if name == "outputs" else f"the gradient of {name}"
            text = f"cut into pieces, its model changes {what}: {ITSELF}"
            raise ValueError(f"{text}; Workload(..., parallel=...) says which layers to cut")


def or_why(find: Callable[..., Any], *given: Any) -> Any:
    """Return the result of a function, or the text of its `ValueError`, if it raises one."""
    try:
        return find(*given)
    except ValueError as reason:
        return str(reason)


def activations(model: nn.Module, loss: Loss, two: Any) -> tuple[int, int]:
    """Bytes that the forward pass keeps for the backward pass: for each example, and for any."""
    counts: list[int] = []
    for examples in (two, mapped(lambda each: torch.cat([each, each]), two)):
        with kept_for_backward(model, counts.append):
            loss(*examples)
    return per_example(counts[0], counts[1], len(first_leaf(two)))


def training_flops(loss: Loss, two: Any) -> int:
    """Floating-point operations that train on one example, as PyTorch counts them: of matrix
    products, convolutions and attention. It has no count for the fused kernel of attention on CPUs,
    so attention is done with products here.
    """
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        models.summed(loss(*two)).backward()
    return int(counter.get_total_flops()) // len(first_leaf(two))


def stages_of(model: nn.Module, names: Sequence[str], inputs: Any, *others: Any) -> int:
    """Count the parts that have weights to train. Raises `ValueError` if the parts, called one
    after the other, are not the model, if they cannot be trained apart from each other, or if the
    inputs or the `others`, outputs and targets, are structures of tensors.
    """
    if not all(map(torch.is_tensor, (inputs, *others))):
        raise ValueError("its inputs, outputs or targets are several, and a stage sends on one")
    parts = parts_of(model, names)
    uses = Counter(parameter for part in parts.values() for parameter in part.parameters())
    for name, parameter in model.named_parameters():
        if uses[parameter] != 1:
            text = f"its parameter {name} is in {uses[parameter]} of its stages, and each has to be"
            raise ValueError(f"{text} in one: name its module in stages, or share no weights")
    with torch.no_grad(), torch.autocast("cpu", enabled=False):  # exactly, whatever the precision
        model.eval()
        outputs, values, before, weights = model(inputs), inputs, "the data", 0
        for name, part in parts.items():
            if models.trained(part):
                if weights and not (torch.is_tensor(values) and values.is_floating_point()):
                    text = "a stage sends on one tensor of floats, whose gradient comes back"
                    raise ValueError(f"{before} makes {kind_of(values)}: {text}")
                weights += 1
            with trying(f"its stage {name} cannot take what comes from {before}"):
                values, before = part(values), name
        model.train()
    if values.shape != outputs.shape or not torch.allclose(values, outputs, 1e-4, 1e-6):
        cure = "name them in its order, and move what it does between them into one of them"
        raise ValueError(f"its stages, called one after the other, are not its model: {cure}")
    return weights
