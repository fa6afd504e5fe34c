"""The field's words, each in one sentence, for tooltips and for the list below a table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from course_lib.widgets.badge import REALITY

WORDS = {
    "gradients": "which way, and how much, each parameter should change to lower the loss",
    "all-reduce": "an exchange after which every worker holds the sum (or mean) of what all workers brought",
    "reduce-scatter": "an exchange after which each worker holds one part of the sum of what all brought",
    "all-gathers": "exchanges after which every worker holds the parts of all workers",
    "replica": "a full copy of the model that computes its own share of the batch",
    "replicas": "full copies of the model, each of which computes its own share of the batch",
    "parameter server": "a process that keeps the model's variables and changes them when gradients come in; ps for short",
    "parameter servers": "processes that keep the model's variables and change them when gradients come in; ps for short",
    "stale": "computed from variables that others have changed since",
    "staleness": "how many updates were made between reading the variables and applying the gradient computed from them",
    "stragglers": "workers that are slower than the others",
    "microbatches": "equal parts of a batch, which go through a pipeline one after the other",
    "activations": "what a layer puts out; kept until the backward pass needs it",
    "bubble": "the time in which stages of a pipeline have nothing to do, while it fills and drains",
    "logical CPU devices": "parts of the CPU that TensorFlow treats as devices of their own; they share its cores",
    "logical CPU device": "a part of the CPU that TensorFlow treats as a device of its own",
    "mesh": "devices laid out in rows and columns, over which tensors are cut",
    "DTensor": "TensorFlow's tensors that are cut over several devices",
    "NCCL": "NVIDIA's library for exchanges between GPUs",
    "gloo": "the library by which PyTorch's workers exchange data between CPUs",
    "RING": "TensorFlow's own all-reduce between CPUs: chunks go round from worker to worker",
    "gRPC": "the way in which TensorFlow's processes talk to each other over a network",
    "RPC": "remote procedure call: a process has another one run a function, and gets its value",
    "TCP": "the usual way of sending bytes between processes or machines, in order and without loss",
    "XLA": "the compiler that turns a TensorFlow program into one for a TPU, a GPU or a CPU",
    "bfloat16": "a number in 16 bits: the range of float32 with 8 significant bits",
    "TPU": "Google's accelerator for machine learning",
    "loopback": "the network inside one machine",
    "fork": "a process is copied, with all that it has in memory, in milliseconds",
    "straggler": "a worker that is slower than the others",
}
_AS_IT_STANDS = {
    **WORDS,
    **{word[:1].upper() + word[1:]: meaning for word, meaning in WORDS.items()},
}  # it may begin a sentence
_LONGEST_FIRST = re.compile(
    r"(?<![\w-])("
    + "|".join(sorted(map(re.escape, _AS_IT_STANDS), key=len, reverse=True))
    + r")(?![\w-])"
)


def explained(text: str) -> str:
    """Text as HTML, in which the first use of each known word has its explanation as tooltip."""
    seen: set[str] = set()

    def mark(match: re.Match[str]) -> str:
        word = match[1]
        if word.lower() in seen:
            return word
        seen.add(word.lower())
        return f'<abbr title="{escape(_AS_IT_STANDS[word], quote=True)}">{word}</abbr>'

    return _LONGEST_FIRST.sub(mark, escape(text))


def glossary(texts: Iterable[str], realities: Iterable[str] = ()) -> str:
    """The known words of some texts with their explanations, as an HTML list that can be unfolded:
    for keyboards and fingers.
    """
    used = {
        word: WORDS[word]
        for text in texts
        for match in _LONGEST_FIRST.finditer(text)
        if (word := match[1]) in WORDS
    }
    used |= {word: REALITY[word][2] for word in realities}
    rows = "".join(
        f"<dt>{word}</dt><dd>{escape(used[word])}</dd>" for word in sorted(used, key=str.lower)
    )
    return (
        f'<details class="ls-words"><summary>Words used here</summary><dl>{rows}</dl></details>'
        if used
        else ""
    )
