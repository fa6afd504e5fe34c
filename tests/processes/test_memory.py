"""The memory census: what a task counts in its first step, beside what is really there in its
second. Its formulas are tested with every row (`test_every_row`).
"""

import gc
import importlib
from collections.abc import Callable
from typing import Any

import pytest

from course_lib import Run, Workload, start
from course_lib.record import measures
from course_lib.record.events import Metric
from tests import own_models

WITHIN = 0.05  # of what is there
MODELS: dict[str, dict[str, Any]] = {
    "digits": {"workload": "digits"},
    "convolutions": {"workload": own_models.convolutions},
    "tiny_gpt": {"workload": "tiny_gpt", "sizes": {"layers": 1, "width": 32}},
}


def storages(loss: Any = None) -> dict[int, int]:
    """Address -> bytes of all storages that live: of the tensors that Python's garbage collector
    knows, of their gradients, and of what the graph behind a loss has saved.
    """
    import torch
    from torch.distributed.tensor import DTensor

    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    tensors += [each.grad for each in tensors if each.is_leaf and each.grad is not None]
    nodes, seen = [loss.grad_fn] if loss is not None else [], set()
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        nodes += [before for before, _ in node.next_functions if before is not None]
        saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        for value in [*saved, *getattr(node, "saved_tensors", ())]:
            several = value if isinstance(value, (list, tuple)) else [value]
            tensors += [each for each in several if isinstance(each, torch.Tensor)]
    here = [each._local_tensor if isinstance(each, DTensor) else each for each in tensors]
    found = [each.untyped_storage() for each in here]
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def there(page: str) -> Callable[[Any], dict[str, Any]]:
    """A role function that trains as the page of a strategy does, and returns what storages there
    are in the second step: after the forward pass, and after the backward pass, with the batch.
    """

    def role(task: Any) -> dict[str, Any]:
        from course_lib.strategies.torch import fully_sharded, steps

        found: dict[str, Any] = {}
        before, instances = storages(), []
        backward, begin = steps.TorchStep.backward, fully_sharded.Exchanges.__init__

        def measured(step: Any, inputs: Any, targets: Any, forward: Any = None, **how: Any) -> Any:
            if step.census.open:
                return backward(step, inputs, targets, forward, **how)

            def measuring(x: Any, y: Any) -> Any:
                loss = forward(x, y) if forward else step.loss_of(step.model(x), y)
                found["forward"], found["buffers"] = steady(loss)
                return loss

            loss = backward(step, inputs, targets, measuring, **how)
            now, borrowed = steady()
            found["backward"] = now - borrowed - inputs.nbytes - targets.nbytes
            return loss

        def steady(loss: Any = None) -> tuple[int, int]:
            """Bytes in storages that were not there before, and how many of them are borrowed for
            an exchange: a thread of gloo may hold those for a moment after it.
            """
            count, borrowed = 0, -1
            while borrowed != (now := sum(each.borrowed() for each in instances)):
                borrowed, there = now, storages(loss)
                count = sum(size for address, size in there.items() if address not in before)
            return count, borrowed

        def kept(self: Any, *arguments: Any) -> None:
            begin(self, *arguments)
            instances.append(self)

        steps.TorchStep.backward, fully_sharded.Exchanges.__init__ = measured, kept
        importlib.import_module(f"course_lib.strategies.torch.{page}").worker(task)
        return found

    return role


def counted(run: Run) -> measures.Memory:
    """What the tasks of a run counted."""
    found = measures.with_memory({}, run.trace.all(Metric))
    return found


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("page", "workers"), [("one_device", 1), ("fully_sharded", 2)])
def test_what_pytorch_s_tasks_count_is_what_all_live_storages_take(
    page: str, workers: int, model: str, optimizer: str
) -> None:
    fields = {"workers": workers, "steps": 2, "optimizer": optimizer, **MODELS[model]}
    if page == "fully_sharded":
        fields["overlap"] = False  # or an exchange may go on, and hold memory, after the pass
    with start(there(page), framework="torch", **fields) as run:
        values = run.wait(60).values
    for task, kinds in counted(run).items():
        held, found = kinds["parameters"] + kinds["optimizer_state"], values[task]
        after_forward = held + kinds["activations"] + found["buffers"]
        assert after_forward == pytest.approx(found["forward"], rel=WITHIN)
        assert held + kinds["gradients"] == pytest.approx(found["backward"], rel=WITHIN)


def test_what_tensorflow_s_replicas_count_is_what_a_sum_by_hand_says() -> None:
    fields = {"workload": "digits", "replicas": 2, "global_batch": 80, "accumulate": 2}
    with start("mirrored", optimizer="adamw", steps=1, **fields) as run:
        result = run.wait(90).result
    parameters, examples = 64 * 64 + 64 + 64 * 10 + 10, 80 // 2 // 2
    assert result["memory"]["worker:0"] == {
        "parameters": 2 * 4 * parameters,
        "gradients": 2 * 4 * parameters,
        "optimizer_state": 2 * 2 * 4 * parameters,
        # images, what the first layer makes of them, and the gradient of the loss by the logits,
        # which TensorFlow computes in the forward pass
        "activations": 2 * 4 * examples * (64 + 64 + 10),
        "buffers": 0,
    }


def alone(**fields: Any) -> dict[str, int]:
    """What one device counts of a run of one step in PyTorch."""
    with start("one_device", framework="torch", steps=1, **fields) as run:
        return dict(run.wait(60).result["memory"]["worker:0"])


def test_in_bfloat16_activations_take_half_and_parameters_as_much_as_ever() -> None:
    wide, low = alone(workload="digits"), alone(workload="digits", precision="bfloat16")
    # the inputs of both layers; what the loss made of the logits, and the classes, in int64
    layers, loss = 128 * (64 + 64), 128 * (4 * 10 + 8)
    assert wide.pop("activations") == pytest.approx(4 * layers + loss, abs=8)
    copy = 2 * 64 * 10  # of the second layer's weights, for the gradient of its inputs
    assert low.pop("activations") == pytest.approx(2 * layers + loss + copy, abs=8)
    assert low == wide


@pytest.mark.sample(4)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "workload", ["digits_cnn", own_models.convolutions, own_models.transformer]
)
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_the_formula_for_activations_is_the_count_in_any_precision(
    framework: str, workload: Any, precision: str
) -> None:
    fields: dict[str, Any] = {"workload": workload, "precision": precision, "global_batch": 64}
    with start("one_device", framework=framework, steps=1, **fields) as run:
        result = run.wait(90).result
    counted, formula = (result[name]["worker:0"] for name in ("memory", "memory_formula"))
    assert counted["activations"] == pytest.approx(formula["activations"], rel=WITHIN)


def test_the_statistics_of_batch_normalisation_are_buffers_and_no_activations() -> None:
    features, examples = 16, 128

    def model() -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(20, features), nn.BatchNorm1d(features), nn.Linear(16, 4))

    normed = Workload("normed", **own_models.LARGEST, torch=model)
    memory = alone(workload=normed, global_batch=examples)
    assert memory["buffers"] == 2 * 4 * features + 8  # means, variances, and a count of batches
    # the inputs of each layer, the classes twice: as they were guessed, and as they are, in int64;
    # and the mean and deviation of this batch
    kept = 4 * examples * (20 + features + features + 4) + 8 * examples + 2 * 4 * features
    assert memory["activations"] == pytest.approx(kept, abs=8)
