"""Training loops as tutorials have them, each with the line that watches it."""

from typing import Any

from course_lib.cluster.task import Task


def torch_ddp(task: Task) -> dict[str, Any]:
    """The model and the loop of "Getting Started with Distributed Data Parallel" (pytorch.org),
    with more than one step.
    """
    import torch
    import torch.distributed as dist
    from torch import nn, optim
    from torch.nn.parallel import DistributedDataParallel as DDP

    class ToyModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net1 = nn.Linear(10, 10)
            self.relu = nn.ReLU()
            self.net2 = nn.Linear(10, 5)

        def forward(self, x: Any) -> Any:
            return self.net2(self.relu(self.net1(x)))

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    ddp_model = DDP(ToyModel())
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.001)
    losses = []
    lockstep = task.watch(ddp_model, optimizer)  # the line
    for _ in range(12):
        optimizer.zero_grad()
        outputs = ddp_model(torch.randn(20, 10))
        labels = torch.randn(20, 5)
        loss = loss_fn(outputs, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = [p.detach().flatten().tolist() for p in ddp_model.parameters()]
    return {"losses": losses, "steps": lockstep.number, "weights": weights}


def torch_by_hand(task: Task) -> list[float]:
    """The loop of "Writing Distributed Applications with PyTorch" (pytorch.org), which averages
    gradients itself; with an evaluation before each step and two passes in it.
    """
    import torch
    import torch.distributed as dist
    from torch import nn

    def average_gradients(model: Any) -> None:
        size = float(dist.get_world_size())
        for param in model.parameters():
            dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
            param.grad.data /= size

    dist.init_process_group("gloo")
    torch.manual_seed(1234)
    model = nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    data, target = torch.randn(8, 10), torch.randn(8, 1)
    losses = []
    lockstep = task.watch(model, optimizer)
    for step in range(6):
        with torch.no_grad():
            model(torch.randn(1000, 10))
        optimizer.zero_grad()
        whole = 0.0
        for half in (slice(0, 4), slice(4, 8)):
            loss = nn.functional.mse_loss(model(input=data[half]), target[half])
            (loss / 2).backward()
            whole += loss.item() / 2
        if step >= 3:
            lockstep.loss(whole)
        average_gradients(model)
        optimizer.step()
        losses.append(whole)
    return losses


def torch_fsdp(task: Task) -> list[float]:
    """FSDP, each layer by itself and the whole, as its tutorial (pytorch.org) wraps them."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5))
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    task.watch(model, optimizer)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(20, 10)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def keras_model(optimizer: Any = None) -> Any:
    import keras

    model = keras.Sequential(
        [keras.Input([20]), keras.layers.Dense(32, "relu"), keras.layers.Dense(4)]
    )
    if optimizer is not None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def keras_fit(task: Task) -> dict[str, Any]:
    """`fit`, with an evaluation after each epoch and a smaller last batch."""
    import keras

    from tests.own_models import LARGEST

    keras.utils.set_random_seed(task.index)
    model = keras_model(keras.optimizers.SGD(0.1))
    x, y = LARGEST["train"]
    lockstep = task.watch(model)
    history = model.fit(
        x, y, 300, epochs=2, verbose=0, validation_data=LARGEST["test"], callbacks=[lockstep]
    )
    return {"losses": history.history["loss"], "samples": lockstep.samples}


def keras_fit_mirrored(task: Task) -> dict[str, Any]:
    """`fit` under tf.distribute, on two logical CPUs."""
    import keras
    import tensorflow as tf

    from tests.own_models import LARGEST

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    with tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        model = keras_model(keras.optimizers.SGD(0.1))
    lockstep = task.watch(model)
    history = model.fit(*LARGEST["train"], 200, verbose=0, callbacks=[lockstep])
    return {"losses": history.history["loss"], "samples": lockstep.samples}


def keras_fit_xla(task: Task) -> dict[str, Any]:
    """`fit` of a step that XLA compiles."""
    import keras

    from tests.own_models import LARGEST

    model = keras_model(keras.optimizers.SGD(0.1))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=True)
    lockstep = task.watch(model)
    history = model.fit(*LARGEST["train"], 200, verbose=0, callbacks=[lockstep])
    return {"losses": history.history["loss"], "samples": lockstep.samples}


def tensorflow_xla(task: Task) -> None:
    """A step that XLA compiles, with the optimizer, which is refused."""
    import keras
    import tensorflow as tf

    model, optimizer = keras_model(), keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    def train_step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    compiled = tf.function(train_step, jit_compile=True)
    task.watch(model, optimizer).step(compiled)(tf.ones([4, 20]))


def tensorflow_mirrored(task: Task) -> dict[str, Any]:
    """The loop of "Custom training with tf.distribute.Strategy" (tensorflow.org), on two logical
    CPUs.
    """
    import keras
    import tensorflow as tf

    from tests.own_models import LARGEST

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    train_dataset = tf.data.Dataset.from_tensor_slices(LARGEST["train"]).batch(100)
    train_dist_dataset = strategy.experimental_distribute_dataset(train_dataset)

    with strategy.scope():
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

        def compute_loss(labels: Any, predictions: Any, model_losses: Any) -> Any:
            per_example_loss = loss_object(labels, predictions)
            loss = tf.nn.compute_average_loss(per_example_loss)
            if model_losses:
                loss += tf.nn.scale_regularization_loss(tf.add_n(model_losses))
            return loss

        train_accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
        model = keras_model()
        optimizer = keras.optimizers.Adam(learning_rate=0.001)
        # not in the tutorial: Keras 3 cannot make the optimizer's variables while tf.function
        # traces a MirroredStrategy, watched or not
        optimizer.build(model.trainable_variables)

    def train_step(inputs: Any) -> Any:
        images, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = compute_loss(labels, predictions, model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_accuracy.update_state(labels, predictions)
        return loss

    lockstep = task.watch(model, optimizer)

    @lockstep.step
    @tf.function
    def distributed_train_step(dataset_inputs: Any) -> Any:
        per_replica_losses = strategy.run(train_step, args=(dataset_inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)

    losses = []
    for _ in range(2):
        for x in train_dist_dataset:
            losses.append(float(distributed_train_step(x)))
    return {"losses": losses, "samples": lockstep.samples}


def tensorflow_workers(task: Task) -> dict[str, Any]:
    """The loop of "Custom training loop with Keras and MultiWorkerMirroredStrategy"
    (tensorflow.org): the step is given an iterator.
    """
    import keras
    import tensorflow as tf

    from tests.own_models import LARGEST

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = policy
    dataset = tf.data.Dataset.from_tensor_slices(LARGEST["train"]).batch(80).repeat()
    with strategy.scope():
        multi_worker_dataset = strategy.experimental_distribute_dataset(
            dataset.with_options(options)
        )
        multi_worker_model = keras_model()
        optimizer = keras.optimizers.SGD(learning_rate=0.1)
        train_accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")

    lockstep = task.watch(multi_worker_model, optimizer)

    @lockstep.step
    @tf.function
    def train_step(iterator: Any) -> Any:
        def step_fn(inputs: Any) -> Any:
            x, y = inputs
            with tf.GradientTape() as tape:
                predictions = multi_worker_model(x, training=True)
                per_example_loss = keras.losses.SparseCategoricalCrossentropy(
                    from_logits=True, reduction="none"
                )(y, predictions)
                loss = tf.nn.compute_average_loss(per_example_loss)
            grads = tape.gradient(loss, multi_worker_model.trainable_variables)
            optimizer.apply_gradients(
                zip(grads, multi_worker_model.trainable_variables, strict=True)
            )
            train_accuracy.update_state(y, predictions)
            return loss

        per_replica_losses = strategy.run(step_fn, args=(next(iterator),))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)

    losses = []
    iterator = iter(multi_worker_dataset)
    for _ in range(12):
        losses.append(float(train_step(iterator)))
    return {"losses": losses, "samples": lockstep.samples}
