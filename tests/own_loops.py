"""Training loops as tutorials have them, each with the line that watches it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

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


GAN_BATCH, GAN_STEPS = 32, 8


def gan_batches(task: Task) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """This worker's share of batches of digits (8 x 8, from -1 to 1) and of noise, which are the
    same however many workers there are.
    """
    from sklearn.datasets import load_digits

    images = (load_digits().images / 8 - 1).astype(np.float32)
    rng, share = np.random.default_rng(1), slice(task.rank, None, task.spec.workers)
    while True:
        chosen = rng.integers(len(images), size=GAN_BATCH)
        noise = rng.normal(size=(GAN_BATCH, 16)).astype(np.float32)
        yield images[chosen][share], noise[share]


def torch_gan(task: Task, critic_updates: int = 1, watch: bool = True) -> dict[str, Any]:
    """The loop of "DCGAN Tutorial" (pytorch.org), with small networks and without batch
    normalisation, so that two workers do the same as one; not watched it is the plain script.
    """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    generator: nn.Module = nn.Sequential(
        *(nn.Linear(16, 128), nn.ReLU(), nn.Unflatten(1, (32, 2, 2))),
        *(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU()),
        *(nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh()),
    )
    critic: nn.Module = nn.Sequential(
        *(nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(128, 1)),
    )
    if task.spec.workers > 1:
        dist.init_process_group("gloo")
        generator, critic = DDP(generator), DDP(critic)
    g_opt = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    c_opt = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
    loss_of, batches = nn.BCEWithLogitsLoss(), gan_batches(task)
    losses: dict[str, list[float]] = {"generator": [], "critic": []}
    if watch:
        task.watch(generator=(generator, g_opt), critic=(critic, c_opt))
    for _ in range(GAN_STEPS):
        of_critic = []
        for _ in range(critic_updates):
            real, noise = map(torch.from_numpy, next(batches))
            critic.zero_grad()
            scores = critic(real[:, None])
            on_real = loss_of(scores, torch.ones_like(scores))
            on_real.backward()
            fake = generator(noise)
            scores = critic(fake.detach())
            on_fake = loss_of(scores, torch.zeros_like(scores))
            on_fake.backward()
            c_opt.step()
            of_critic += [on_real.item(), on_fake.item()]
        generator.zero_grad()
        scores = critic(fake)
        fooled = loss_of(scores, torch.ones_like(scores))
        fooled.backward()
        g_opt.step()
        losses["generator"].append(fooled.item())
        losses["critic"].append(float(np.mean(of_critic)))
    both = {"generator": generator, "critic": critic}
    weights = {n: [p.detach().numpy() for p in model.parameters()] for n, model in both.items()}
    return {"losses": losses, "weights": weights}


def torch_pair(task: Task, both_at_once: bool = False) -> dict[str, list[float]]:
    """An actor and a critic, both computed before either is updated, by a loss of their own or by
    the sum of both; with a teacher that is not trained.
    """
    import torch
    from torch import nn

    torch.manual_seed(0)
    actor, critic, teacher = nn.Linear(4, 2), nn.Linear(4, 1), nn.Linear(4, 1)
    a_opt = torch.optim.Adam(actor.parameters())
    c_opt = torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.9)
    lockstep = task.watch(actor=(actor, a_opt), critic=(critic, c_opt), teacher=(teacher, None))
    losses: dict[str, list[float]] = {"actor": [], "critic": []}
    for step in range(4):
        state = torch.randn(8, 4)
        with torch.no_grad():
            target = teacher(state)
        a_opt.zero_grad()
        c_opt.zero_grad()
        advantage = target - critic(state)
        of_critic = advantage.square().mean()
        of_actor = -(actor(state).log_softmax(1)[:, 0] * advantage.detach()[:, 0]).mean()
        if both_at_once:
            of_actor = of_critic = of_actor + of_critic
            of_actor.backward()
        else:
            of_critic.backward()
            of_actor.backward()
        if step == 3:
            lockstep.loss(7.0, "critic")
        a_opt.step()
        c_opt.step()
        losses["actor"].append(of_actor.item())
        losses["critic"].append(of_critic.item() if step < 3 else 7.0)
    return losses


def torch_wasserstein(task: Task) -> dict[str, list[float]]:
    """A critic without a bound, updated twice for each update of the generator. Gradients are set
    to zero in place, and clipped; what the critic is shown is made under `no_grad`.
    """
    import torch
    from torch import nn

    torch.manual_seed(0)
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    g_opt = torch.optim.SGD(generator.parameters(), lr=0.1)
    c_opt = torch.optim.SGD(critic.parameters(), lr=0.1)
    task.watch(generator=(generator, g_opt), critic=(critic, c_opt))
    losses: dict[str, list[float]] = {"generator": [], "critic": []}
    for _ in range(4):
        both = []
        for _ in range(2):
            c_opt.zero_grad(set_to_none=False)
            with torch.no_grad():
                fake = generator(torch.randn(8, 2))
            loss = critic(fake).mean() - critic(1 + torch.randn(8, 2)).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(critic.parameters(), 0.5)
            c_opt.step()
            both.append(loss.item())
        g_opt.zero_grad(set_to_none=False)
        loss = -critic(generator(torch.randn(8, 2))).mean()
        loss.backward()
        g_opt.step()
        losses["generator"].append(loss.item())
        losses["critic"].append(sum(both) / 2)
    return losses


def torch_sparse(task: Task) -> list[float]:
    """An embedding whose gradient is sparse."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.EmbeddingBag(100, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(list(model.parameters()))
    task.watch(model, optimizer)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randint(100, (8, 2))).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def tensorflow_pair(task: Task) -> dict[str, list[float]]:
    """A step of three calls, of two functions: twice the critic, and then the actor, with a teacher
    that was compiled and is not trained.
    """
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    actor, critic, teacher = (
        keras.Sequential([keras.Input([4]), keras.layers.Dense(2)]) for _ in range(3)
    )
    teacher.compile("adam", "mse")
    a_opt, c_opt = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)
    lockstep = task.watch(actor=(actor, a_opt), critic=(critic, c_opt), teacher=(teacher, None))

    def step_of(name: str, model: Any, optimizer: Any) -> Any:
        optimizer.build(model.trainable_variables)

        @lockstep.step
        @tf.function
        def step(inputs: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(inputs) - teacher(inputs)) ** 2)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {name: loss}

        return step

    actors, critics = step_of("actor", actor, a_opt), step_of("critic", critic, c_opt)
    losses: dict[str, list[float]] = {"actor": [], "critic": []}
    for _ in range(4):
        both = [float(critics(tf.random.normal([8, 4]))["critic"]) for _ in range(2)]
        losses["critic"].append(sum(both) / 2)
        losses["actor"].append(float(actors(tf.random.normal([8, 4]))["actor"]))
    return losses


def tensorflow_gan(
    task: Task, critic_updates: int = 1, watch: bool = True, replicas: int = 1
) -> dict[str, Any]:
    """The loop of "Deep Convolutional Generative Adversarial Network" (tensorflow.org) under
    MultiWorkerMirroredStrategy, or with several replicas MirroredStrategy, and with small networks;
    not watched it is the plain script. With replicas its step returns a tuple, else a dict.
    """
    import keras
    import tensorflow as tf
    from keras import layers

    strategy: Any = tf.distribute.get_strategy()
    if task.spec.workers > 1:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if replicas > 1:
        (cpu,) = tf.config.list_physical_devices("CPU")
        logical = [tf.config.LogicalDeviceConfiguration()] * replicas
        tf.config.set_logical_device_configuration(cpu, logical)
        strategy = tf.distribute.MirroredStrategy([f"cpu:{n}" for n in range(replicas)])
    keras.utils.set_random_seed(0)
    with strategy.scope():
        generator = keras.Sequential(
            [
                *(keras.Input([16]), layers.Dense(128, "relu"), layers.Reshape([2, 2, 32])),
                layers.Conv2DTranspose(16, 4, 2, "same", activation="relu"),
                layers.Conv2DTranspose(1, 4, 2, "same", activation="tanh"),
            ]
        )
        critic = keras.Sequential(
            [
                *(keras.Input([8, 8, 1]), layers.Conv2D(16, 4, 2, "same"), layers.LeakyReLU()),
                *(layers.Conv2D(32, 4, 2, "same"), layers.LeakyReLU(), layers.Flatten()),
                layers.Dense(1),
            ]
        )
        g_opt = keras.optimizers.Adam(2e-3, beta_1=0.5)
        c_opt = keras.optimizers.Adam(2e-3, beta_1=0.5)
        g_opt.build(generator.trainable_variables)
        c_opt.build(critic.trainable_variables)

    def loss_of(scores: Any, real: bool) -> Any:
        labels = tf.ones_like(scores) if real else tf.zeros_like(scores)
        each = tf.nn.sigmoid_cross_entropy_with_logits(labels, scores)
        return tf.nn.compute_average_loss(each[:, 0])

    def step_fn(real: Any, noise: Any) -> Any:
        of_critic = 0.0
        for n in range(critic_updates):  # each with batches of its own
            with tf.GradientTape() as g_tape, tf.GradientTape() as c_tape:
                fake = generator(noise[n], training=True)
                scores = critic(fake, training=True)
                of_generator = loss_of(scores, True)
                of_critic = loss_of(critic(real[n], training=True), True) + loss_of(scores, False)
            variables = critic.trainable_variables
            c_opt.apply_gradients(
                zip(c_tape.gradient(of_critic, variables), variables, strict=True)
            )
        variables = generator.trainable_variables
        g_opt.apply_gradients(zip(g_tape.gradient(of_generator, variables), variables, strict=True))
        return of_generator, of_critic

    @tf.function
    def train_step(real: Any, noise: Any) -> Any:
        losses = strategy.run(step_fn, args=(real, noise))
        of_generator, of_critic = (strategy.reduce("SUM", each, axis=None) for each in losses)
        if replicas > 1:
            return of_generator, of_critic, tf.zeros([3])
        return {"critic": of_critic, "generator": of_generator}

    if watch:
        pairs = {"generator": (generator, g_opt), "critic": (critic, c_opt)}
        train_step = task.watch(**pairs).step(train_step)
    batches = gan_batches(task)
    losses: dict[str, list[float]] = {"generator": [], "critic": []}
    for _ in range(GAN_STEPS):
        taken = [next(batches) for _ in range(critic_updates)]
        real, noise = map(np.stack, zip(*taken, strict=True))
        given = [
            strategy.experimental_distribute_values_from_function(
                lambda context, whole=whole: tf.constant(
                    whole[:, context.replica_id_in_sync_group % replicas :: replicas]
                )
            )
            for whole in (real[..., None], noise)
        ]
        found = train_step(*given)
        found = dict(zip(losses, found, strict=False)) if replicas > 1 else found
        for name, those in losses.items():
            those.append(float(found[name]))
    both = {"generator": generator, "critic": critic}
    weights = {n: [v.numpy() for v in model.trainable_variables] for n, model in both.items()}
    return {"losses": losses, "weights": weights}
