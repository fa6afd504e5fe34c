"""tiny_gpt: a decoder-only transformer that predicts the next character of English text.

The text is what `help()` knows of Python's language: `pydoc_data.topics`, which ships with Python.
Topics that others contain are left out, which leaves about 400,000 characters, a few thousand more
or fewer in another version of Python. A character is one of 96: a new line, and ASCII from the
space to the tilde; any other counts as `?`. The text is cut into pieces of `context` characters; of
each, the model predicts the character that follows every one, from that one and those before it.
The last twentieth of the text is held out. Its metric, `bits_per_character`, is the mean of
-log2(p), where p is what the model gave to the character that came: log2(96) = 6.6 for a guess, the
less the better.

The model is that of GPT-2, with one change: the weights that read a character and those that
predict one are not tied, so that a pipeline can be cut between any two blocks. An embedding of the
character and one of its place, both learned; `layers` blocks of attention with `heads` heads and of
two dense layers with a GELU between them, each with a layer normalisation before it and a residual
connection around it; a last normalisation; logits. A block has 12 * width ** 2 + 13 * width
parameters.

Sources: Vaswani et al., "Attention Is All You Need", 2017; Radford et al., "Language Models are
Unsupervised Multitask Learners", 2019.
"""

import functools
import math
from importlib import import_module
from typing import Annotated, Any

import numpy as np

from course_lib.errors import SpecError
from course_lib.workloads.examples import Examples
from course_lib.workloads.layers import Sketch, training_flops
from course_lib.workloads.workload import Outputs, Workload

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
HELD_OUT = 20  # one character in so many
STRAY = 0.08  # standard deviation of the initial weights
WRITTEN, TEMPERATURE = 160, 0.7  # of a sample
COLUMNS, ROWS = ("*.queries_keys_values", "*.wider"), ("*.attended", "*.back")
CUT = {**dict.fromkeys(COLUMNS, "columns"), **dict.fromkeys(ROWS, "rows")}


def tiny_gpt(
    layers: Annotated[int, range(1, 13)] = 2,
    heads: Annotated[int, range(1, 17)] = 4,
    width: Annotated[int, range(16, 385)] = 64,
    context: Annotated[int, range(8, 257)] = 32,
) -> Workload:
    """A small transformer for the next character of Python's own help; 114,432 parameters as it is
    by default. 200 steps of 128 pieces bring plain gradient descent from 6.6 bits per character to
    less than 3.4.

    Raises `SpecError` if its heads cannot share its width equally.
    """
    if width % heads:
        fewer = max(count for count in range(1, heads) if width % count == 0)
        raise SpecError("sizes", f"heads={heads}", f"must divide width={width}, such as {fewer}")
    dials = {"layers": layers, "heads": heads, "width": width, "context": context}
    matrices = sum(math.prod(shape) for shape in shapes(layers, width, context))
    lookups = (len(CHARACTERS) + context) * width  # which multiply nothing
    products = context * (matrices - lookups) + layers * 2 * context**2 * width
    # Kept for each character: in a block the inputs and outputs of both normalisations (4 widths),
    # queries, keys and values (3), what attention makes (1), the hidden units before and after GELU
    # (8), a number for each head and 4 statistics of normalisations; outside of blocks the last
    # normalisation, the logits, and two int64. So it is in PyTorch; TensorFlow also keeps weights
    # of attention and steps of normalisations: 1.7 times as much.
    kept = 4 * (layers * (16 * width + heads + 4) + 2 * width + len(CHARACTERS) + 2) + 2 * 8
    sketch = Sketch(
        parameters=matrices + layers * 13 * width + 2 * width,
        parts=layers + 2,
        units=((heads, "head"), (4 * width, "hidden unit")) * layers,
        flops=training_flops(2 * products),
        activations=context * kept,
    )
    return Workload(
        "tiny_gpt",
        *pieces(context),
        torch=functools.partial(_model, "torch", **dials),
        tensorflow=functools.partial(_model, "tensorflow", **dials),
        loss="next_token",
        metric=bits_per_character,
        parallel=CUT,
        sample=functools.partial(sample, pieces(context)[1].inputs[0]),
        learning_rate=0.25,
        known=sketch,
    )


def _model(framework: str, seed: int, layers: int, heads: int, width: int, context: int) -> Any:
    """The model in a framework. The matrices are the same in both; biases start from zero."""
    module = import_module(f"course_lib.workloads.models.gpt_{framework}")
    return module.gpt(initial(shapes(layers, width, context), seed), layers, heads)


def shapes(layers: int, width: int, context: int) -> list[tuple[int, int]]:
    """Shapes of all matrices, (inputs, outputs), in the order in which an example passes them: a
    row for each character, a row for each place; of each block the queries, keys and values of one
    head after the other, what follows attention, and the two dense layers; the logits.
    """
    block = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    characters = len(CHARACTERS)
    return [(characters, width), (context, width), *block * layers, (width, characters)]


def initial(shapes: list[tuple[int, int]], seed: int) -> list[np.ndarray]:
    """Normal random matrices, float32."""
    generator = np.random.default_rng([2, seed])
    return [generator.standard_normal(shape, np.float32) * np.float32(STRAY) for shape in shapes]


# --- the text ---


@functools.cache
def text() -> str:
    """All topics one after the other, in the order of their names."""
    from pydoc_data.topics import topics

    # what is under a topic's heading: the heading itself is underlined in different ways
    bodies = {name: topic.strip().split("\n", 2)[-1] for name, topic in topics.items()}
    alone = (n for n in sorted(topics) if not any(bodies[n] in topics[o] for o in topics if o != n))
    return "".join(topics[name] for name in alone)


def encode(text: str) -> np.ndarray:
    """The number of each character, int64."""
    numbers = {character: number for number, character in enumerate(CHARACTERS)}
    return np.array([numbers.get(character, numbers["?"]) for character in text], np.int64)


def decode(numbers: np.ndarray) -> str:
    """The characters with these numbers."""
    return "".join(CHARACTERS[number] for number in numbers)


@functools.cache
def pieces(context: int) -> tuple[Examples, Examples]:
    """The text to train with and the text held out, in pieces of `context` characters: inputs, and
    for each character the next one, both (pieces, context).
    """
    numbers = encode(text())
    border, made = len(numbers) - len(numbers) // HELD_OUT, []
    for part in numbers[:border], numbers[border:]:
        used = (len(part) - 1) // context * context
        made.append([part[k : used + k].reshape(-1, context) for k in (0, 1)])
    return Examples(made[0]), Examples(made[1])


# --- what it has learned ---


def bits_per_character(outputs: np.ndarray, targets: np.ndarray) -> float:
    """The mean of -log2 of the probability of each target (..., length), from logits (..., length,
    characters).
    """
    return float(-np.mean(np.take_along_axis(log2(outputs), targets[..., None], axis=-1)))


def log2(logits: np.ndarray) -> np.ndarray:
    """Logarithms to base 2 of the probabilities that logits stand for."""
    below = logits - logits.max(axis=-1, keepdims=True)
    logarithms: np.ndarray = below - np.log(np.exp(below).sum(axis=-1, keepdims=True))
    return logarithms / math.log(2)


def sample(beginning: np.ndarray, outputs: Outputs) -> str:
    """The characters of a `beginning`, », and how the model goes on from there.

    Each character is drawn with the probabilities that the model gives, at temperature 0.7, with
    the same random numbers in every run.
    """
    generator, written = np.random.default_rng(0), beginning
    for _ in range(WRITTEN):
        logits = outputs(written[None, -len(beginning) :])[0, -1]
        if not np.isfinite(logits).all():  # training diverged: it knows nothing to write
            break
        chances = np.exp2(log2(logits / TEMPERATURE)).astype(float)
        drawn = generator.choice(len(CHARACTERS), p=chances / chances.sum())
        written = np.append(written, drawn)
    return f"{decode(beginning)}»{decode(written[len(beginning) :])}"
