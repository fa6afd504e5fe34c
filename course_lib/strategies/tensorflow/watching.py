"""A Keras or TensorFlow loop of a learner's own, watched: `fit` by a callback, others by a wrapper
around the function that makes a step.

    model.fit(x, y, callbacks=[task.watch(model)])
    train_step = task.watch(model, optimizer).step(train_step)
    train_step = task.watch(generator=(g, g_opt), critic=(c, c_opt)).step(train_step)

What each can know:

- The callback, and the wrapper, see from outside when a step begins and ends, and its loss. All
  between two steps is `read`, except an evaluation by `fit` or `model.evaluate(callbacks=...)`,
  which is left out. But `fit`, and a step that is given an iterator, fetch the batch within the
  step: that time is part of `compute`.
- Inside, a step is a graph, and no Python runs in it. So three of its places get a few operations
  more while it is traced: the model's `call` counts the examples of the batch; where the optimizer
  is given the gradients, has their sum over all replicas, and has made the update, it takes the
  time. This divides the step into `compute`, `reduce` and `apply`. The times are those of the last
  replica of this process. Of several optimizers, which a graph may run side by side, each part is
  shown after the one before it in the program.
- XLA (`jit_compile=True`) compiles no clocks. A step of `fit` is then one `compute`; for a step of
  your own leave the optimizer out, `task.watch(model)`, and it is the same. So it is where no Keras
  optimizer makes the update. Without these operations the run's `global_batch` counts as the batch.

Watching costs 0.1 to 0.2 ms a step, most of it the call back into Python that brings the times out
of the graph. The steps of ParameterServerStrategy run in other tasks than the loop, so it is
refused.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.errors import SpecError
from course_lib.strategies.tensorflow.models import bytes_of
from course_lib.strategies.tensorflow.steps import after, clock_offset
from course_lib.strategies.watching import WatchedLoop


class Watching(WatchedLoop, keras.callbacks.Callback):
    """The steps of `fit`, as a callback, or those of a function, by `step`.

    The optimizer of a single model is by default the one that it was compiled with. Raises
    `SpecError` for what cannot be watched.
    """

    def __init__(self, task: Task, pairs: dict[str, tuple[Any, Any]]) -> None:
        optimizers = {}
        for name, (model, optimizer) in pairs.items():
            if optimizer is None and not name and not getattr(model, "jit_compile", False):
                optimizer = getattr(model, "optimizer", None)
            if not isinstance(optimizer, keras.optimizers.Optimizer | None):
                raise SpecError("optimizer", optimizer, "the Keras optimizer of the loop")
            strategy = type(getattr(model, "distribute_strategy", None))
            if issubclass(strategy, tf.distribute.ParameterServerStrategy):
                raise SpecError("watch", strategy.__name__, "its steps run in other tasks")
            if optimizer is not None:
                optimizers[name] = optimizer
        keras.callbacks.Callback.__init__(self)
        WatchedLoop.__init__(self, task, task.device, [*(optimizers or pairs)])
        self._models, self._optimizers = [m for m, _ in pairs.values()], [*optimizers.values()]
        self._replicas = self._in_sync = 1  # of this process, and of all
        # of each replica: its optimizer, and what is: examples, computed, reduced, applied
        self._rows: list[tuple[str, np.ndarray]] = []
        self._counted: dict[str, Any] = {}  # of the batch whose graph is being traced
        self._reduced: Any = None
        self._gradients: dict[str, int] = {}  # their bytes
        self._seen = self._mean = 0.0
        for name, optimizer in optimizers.items():
            model = pairs[name][0]
            model.call = self._counting(name, model.call)
            optimizer._all_reduce_sum_gradients = self._summing(optimizer._all_reduce_sum_gradients)
            optimizer.apply = self._applying(name, optimizer.apply)

    def memory(self) -> dict[str, int]:
        weights = {id(v): v for model in self._models for v in model.variables}.values()
        result = {
            "parameters": bytes_of(v.value for v in weights if v.trainable),
            "gradients": sum(self._gradients.values()),
            "optimizer_state": bytes_of(v.value for o in self._optimizers for v in o.variables),
            "buffers": bytes_of(v.value for v in weights if not v.trainable),
        }
        return {kind: self._replicas * count for kind, count in result.items()}

    # --- a step, from outside ---

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, a step of training, watched. What it returns is the loss of the step, or
        has it as "loss" in a dict, or as its first number; otherwise there is no curve. With
        several optimizers it returns a dict of losses by their names, or a tuple in their order.

        As a decorator it stands above `@tf.function`. Where several functions make a step, as one
        for each optimizer, each of them is watched.
        """

        def watched(*args: Any, **kwargs: Any) -> Any:
            if tf.inside_function():
                raise SpecError("step", function.__name__, "watched from above @tf.function")
            self.begin()
            try:
                result = function(*args, **kwargs)
            except tf.errors.InvalidArgumentError as error:
                if "XLA" in str(error) and "Timestamp" in str(error):
                    text = "XLA compiles no clocks: leave the optimizer out, task.watch(model)"
                    raise SpecError("watch", function.__name__, text) from None
                raise
            self._ended(result)
            return result

        return watched

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._seen = self._mean = 0.0

    def on_test_end(self, logs: Any = None) -> None:
        self.leave_out()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # of a model without a `train_step` of its own, whose loss would be taken as it is
        plain = type(self.model).train_step is keras.Model.train_step
        self._ended(logs or {}, averaged=plain and self.names == [""])

    def _ended(self, result: Any, averaged: bool = False) -> None:
        """A call is over, which made a step, several, or a part of one, and has returned this.
        `averaged`: the loss is a mean over the epoch so far, as that of `fit` is.
        """
        losses = {name: loss_in(result, name, n) for n, name in enumerate(self.names)}
        offset, rows = clock_offset(), defaultdict[tuple[str, int], list[Any]](list)
        count = Counter[str]()
        for name, row in self._rows:
            rows[name, count[name] // self._replicas].append(row)
            count[name] += 1
        made = [(name, np.array(of)) for (name, _), of in rows.items() if len(of) == self._replicas]
        self._rows.clear()
        if averaged and (loss := losses[""]) is not None:
            # where nobody counts examples, batches count alike
            seen = sum(of[:, 0].sum() for _, of in made) or 1
            before = self._mean * self._seen
            self._mean, self._seen = loss, self._seen + seen
            losses[""] = (self._mean * self._seen - before) / seen
        last = {name: number for number, (name, _) in enumerate(made)}
        for number, (name, of) in enumerate(made):
            self._doing = "compute"
            computed, reduced, applied = of[:, 1:].max(axis=0) + offset
            if self._in_sync > 1:
                self.go_on("reduce", computed)
            self.go_on("apply", reduced if self._in_sync > 1 else computed)
            loss = losses.get(name) if number == last[name] else None
            self.updated(name, loss, int(of[:, 0].sum()), self._in_sync, applied)
        for name in () if made else self.names:
            self.updated(name, losses.get(name), 0, self._in_sync)

    # --- inside of its graph ---

    def _counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def counted(*args: Any, **kwargs: Any) -> Any:
            first = next(filter(tf.is_tensor, tf.nest.flatten((args, kwargs))), None)
            if first is not None and first.shape.rank:
                self._counted[name] = tf.shape(first)[0]
            return call(*args, **kwargs)

        return counted

    def _summing(self, reduce: Callable[..., Any]) -> Callable[..., Any]:
        def summed(grads_and_vars: Any) -> Any:
            pairs = reduce(grads_and_vars)
            self._reduced = after([gradient for gradient, _ in pairs if gradient is not None])
            return pairs

        return summed

    def _applying(self, name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
        @tf.autograph.experimental.do_not_convert
        def applied(grads: Any, trainable_variables: Any = None) -> Any:
            grads, self._reduced = list(grads), None
            examples = self._counted[name] if is_here(self._counted.get(name)) else 0
            known = [gradient for gradient in grads if gradient is not None]
            computed, self._gradients[name] = after(known), bytes_of(known)
            before = len(operations())
            result = apply(grads, trainable_variables)
            reduced = self._reduced if is_here(self._reduced) else computed
            stamps = [computed, reduced, after(operations()[before:])]
            row = tf.stack([tf.cast(examples, tf.float64), *stamps])
            tf.numpy_function(lambda row: self._rows.append((name, row)), [row], [])
            if tf.distribute.has_strategy():
                strategy = tf.distribute.get_strategy()
                self._replicas = len(strategy.extended.worker_devices)
                self._in_sync = strategy.num_replicas_in_sync
            return result

        return applied


def operations() -> list[Any]:
    """The operations of the graph that is being traced; none outside of one."""
    every = [] if tf.executing_eagerly() else tf.compat.v1.get_default_graph().get_operations()
    return [operation for operation in every if operation.type != "Placeholder"]  # what it is given


def is_here(tensor: Any) -> bool:
    """Check that a tensor was made in the graph that is being traced, or outside if none is."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    return tensor is not None and getattr(tensor, "graph", None) is graph


def loss_in(result: Any, name: str = "", place: int = 0) -> float | None:
    """The loss among what a step has returned; of several optimizers, that of this name, or in this
    place.
    """
    if isinstance(result, dict) and (name or "loss") in result:
        result = result[name or "loss"]
    elif name:
        result = result[place] if isinstance(result, tuple | list) and place < len(result) else None
    for value in tf.nest.flatten(result, expand_composites=True):  # of replicas, the first one's
        if isinstance(value, float) or (
            isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_floating
        ):
            return float(value)
    return None
