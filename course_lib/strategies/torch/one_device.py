"""one_device: one process computes the gradients of the whole batch and applies them. Every other
strategy is measured against it.

It sends nothing and waits for nobody. It is also the limit that the others are to pass: one device
does all the work of a step, and the model has to fit on it.
"""

from typing import Any

from course_lib.cluster.task import Task
from course_lib.strategies.torch.steps import TorchStep


def worker(task: Task) -> dict[str, Any]:
    """Train on the whole of each batch."""
    step = TorchStep(task)
    while step.begin():
        inputs, targets = step.read()  # (batch, features) and (batch,)
        with step.computing():
            loss = step.backward(inputs, targets)  # (), and the gradient of each parameter
        with step.applying():
            if step.unscale(loss):  # unless a gradient overflowed in float16
                step.optimizer.step()  # parameter -= rate * gradient
        step.done(loss)
    return step.result()
