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


def torch_mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))


def torch_convolutions() -> Any:
    from torch import nn

    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 2))


def torch_transformer() -> Any:
    """Two blocks of attention in a list, with a vector for each place."""
    import torch
    from torch import nn

    class Embed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(12, 32)
            self.places = nn.Parameter(0.02 * torch.randn(8, 32))

        def forward(self, tokens: Any) -> Any:
            return self.tokens(tokens) + self.places[: tokens.shape[1]]

    class Block(nn.TransformerEncoderLayer):
        def forward(self, values: Any) -> Any:  # type: ignore[override]
            mask = nn.Transformer.generate_square_subsequent_mask(values.shape[1])
            return super().forward(values, src_mask=mask, is_causal=True)

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = Embed()
            block = {"d_model": 32, "nhead": 2, "dim_feedforward": 64, "batch_first": True}
            self.blocks = nn.ModuleList([Block(**block, dropout=0.0) for _ in range(2)])
            self.logits = nn.Linear(32, 12)

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

    class Places(keras.Layer):  # type: ignore[misc, unused-ignore]
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

    class Tied(keras.Model):  # type: ignore[misc, unused-ignore]
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
tied = Workload(
    "tied",
    **REPEATED,
    torch=torch_tied,
    tensorflow=keras_tied,
    loss="next_token",
    learning_rate=0.3,
)
