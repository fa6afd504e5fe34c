"""Models and data as a learner would bring them, in a file of his or her own:
`lockstep run ... --workload tests/own_models.py:mlp`.
"""

from typing import Any

import numpy as np

from course_lib import Workload

_rng = np.random.default_rng(0)


def _split(inputs: np.ndarray, targets: np.ndarray, train: int) -> dict[str, Any]:
    """The first `train` examples to train with, the others to test with."""
    return {"train": (inputs[:train], targets[:train]), "test": (inputs[train:], targets[train:])}


# Which of the first four of twenty numbers is the largest?
_points = _rng.normal(size=(1000, 20))
LARGEST = _split(_points, _points[:, :4].argmax(axis=1), 800)
# Is the upper half of an image brighter than the lower one? Channels first.
_images = _rng.normal(size=(600, 1, 12, 12))
BRIGHTER = _split(_images, _images[:, 0, :6].mean((1, 2)) > _images[:, 0, 6:].mean((1, 2)), 500)
# Every second token repeats the one before it.
_tokens = _rng.integers(0, 12, size=(600, 9))
_tokens[:, 1::2] = _tokens[:, 0:-1:2]
REPEATED = _split(_tokens[:, :-1], _tokens[:, 1:], 500)


def torch_numbered() -> Any:
    """Attention written out, in a model that counts its places."""
    import torch
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention

    class Numbered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(12, 32), nn.Embedding(8, 32)
            self.mixing, self.logits = nn.Linear(32, 96), nn.Linear(32, 12)

        def forward(self, tokens: Any) -> Any:
            values = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
            three = self.mixing(values).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)
            mixed = scaled_dot_product_attention(*three, is_causal=True)
            return self.logits(values + mixed.transpose(1, 2).flatten(2))

    return Numbered()


def torch_mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))


def torch_convolutions() -> Any:
    from torch import nn

    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 2))


def torch_transformer(width: int = 32, blocks: int = 2, context: int = 8) -> Any:
    """Blocks of attention in a list, with a vector for each place."""
    import torch
    from torch import nn

    class Embed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(12, width)
            self.places = nn.Parameter(0.02 * torch.randn(context, width))

        def forward(self, tokens: Any) -> Any:
            return self.tokens(tokens) + self.places[: tokens.shape[1]]

    class Block(nn.TransformerEncoderLayer):
        # the parent's has arguments that a decoder has no use for
        def forward(self, values: Any) -> Any:  # type: ignore[override]  # as learners write it
            mask = nn.Transformer.generate_square_subsequent_mask(values.shape[1])
            return super().forward(values, src_mask=mask, is_causal=True)

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = Embed()
            block = {"d_model": width, "nhead": 2, "dim_feedforward": 2 * width}
            self.blocks = nn.ModuleList(
                [Block(**block, batch_first=True, dropout=0.0) for _ in range(blocks)]
            )
            self.logits = nn.Linear(width, 12)

        def forward(self, tokens: Any) -> Any:
            values = self.embed(tokens)
            for block in self.blocks:
                values = block(values)
            return self.logits(values)

    return Transformer()


def torch_tied() -> Any:
    """The weights that turn tokens into vectors also turn vectors into logits."""
    import torch
    from torch import nn

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.middle = nn.Embedding(12, 16), nn.Linear(16, 16)
            self.logits = nn.Linear(16, 12, bias=False)
            self.logits.weight = self.tokens.weight

        def forward(self, tokens: Any) -> Any:
            return self.logits(torch.relu(self.middle(self.tokens(tokens))))

    return Tied()


def keras_mlp() -> Any:
    """Its inputs have no shape before its first call."""
    import keras

    return keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(4)])


def keras_convolutions() -> Any:
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((1, 12, 12)),
            layers.Permute((2, 3, 1)),  # Keras on a CPU wants the channels last
            layers.Conv2D(4, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(2),
        ]
    )


def keras_transformer() -> Any:
    """Two blocks of attention; the vectors of places are weights of a layer of its own."""
    import keras
    from keras import layers

    # Keras has no types: with some of its versions its classes are Any
    class Places(keras.Layer):  # type: ignore[misc, unused-ignore]  # no types without Keras
        def build(self, shape: Any) -> None:
            self.places = self.add_weight((shape[1], shape[2]), name="places")

        def call(self, values: Any) -> Any:
            return values + self.places

    tokens = keras.Input((8,), dtype="int64")
    values = Places()(layers.Embedding(12, 32)(tokens))
    for _ in range(2):
        attended = layers.MultiHeadAttention(2, 16)(values, values, use_causal_mask=True)
        values = layers.LayerNormalization()(values + attended)
        hidden = layers.Dense(64, "relu")(values)
        values = layers.LayerNormalization()(values + layers.Dense(32)(hidden))
    return keras.Model(tokens, layers.Dense(12)(values))


def keras_tied() -> Any:
    """The weights that turn tokens into vectors also turn vectors into logits."""
    import keras

    # as above, of Keras' types
    class Tied(keras.Model):  # type: ignore[misc, unused-ignore]  # no types without Keras
        def __init__(self) -> None:
            super().__init__()
            wide = keras.initializers.RandomNormal(stddev=1.0)  # as PyTorch's are
            self.tokens = keras.layers.Embedding(12, 16, embeddings_initializer=wide)
            self.middle = keras.layers.Dense(16, "relu")

        def call(self, tokens: Any) -> Any:
            vectors = self.middle(self.tokens(tokens))
            return keras.ops.matmul(vectors, keras.ops.transpose(self.tokens.embeddings))

    return Tied()


mlp = Workload("mlp", **LARGEST, torch=torch_mlp, tensorflow=keras_mlp, learning_rate=0.3)
convolutions = Workload(
    "convolutions", **BRIGHTER, torch=torch_convolutions, tensorflow=keras_convolutions
)
transformer = Workload(
    "transformer",
    **REPEATED,
    torch=torch_transformer,
    tensorflow=keras_transformer,
    loss="next_token",
    learning_rate=0.2,
    stages=["embed", "blocks.0", "blocks.1", "logits"],
)
numbered = Workload("numbered", **REPEATED, torch=torch_numbered, loss="next_token")
tied = Workload(
    "tied",
    **REPEATED,
    torch=torch_tied,
    tensorflow=keras_tied,
    loss="next_token",
    learning_rate=0.3,
)

# Of the size that learners bring. What the record adds to a step is the same for every model, and
# in those above, whose steps take a millisecond or two, it is a larger part.
_pictures = _rng.normal(size=(512, 1, 28, 28))
CLASSES = _split(_pictures, _pictures[:, 0, 0, :10].argmax(axis=1), 500)
_sequences = np.repeat(_rng.integers(0, 12, size=(512, 17)), 2, axis=1)
LONG = _split(_sequences[:, :32], _sequences[:, 1:33], 500)


def torch_three_layers() -> Any:
    from torch import nn

    hidden = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(512, 10))


def torch_le_net() -> Any:
    """LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998, with ReLU."""
    from torch import nn

    convolutions = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    convolutions += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*convolutions, nn.Flatten(), *dense)


def torch_four_blocks() -> Any:
    return torch_transformer(width=64, blocks=4, context=32)


three_layers = Workload("three_layers", **CLASSES, torch=torch_three_layers)
le_net = Workload("le_net", **CLASSES, torch=torch_le_net)
four_blocks = Workload("four_blocks", **LONG, torch=torch_four_blocks, loss="next_token")
