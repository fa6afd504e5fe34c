"""The field's terms, each explained in one sentence, for tooltips and for the list below a card."""

import re
from collections.abc import Iterable

from course_lib.widgets.kit import Markup, element, join
from course_lib.widgets.kit.palette import REALITY

TERMS = {
    "gradients": "which way, and how much, each parameter should change to lower the loss",
    "all-reduce": "an exchange after which every worker holds the sum (or mean) of all inputs",
    "reduce-scatter": "an exchange after which each worker holds its own part of the sum",
    "all-gathers": "exchanges after which every worker holds the parts of all workers",
    "replica": "a full copy of the model that computes its own share of the batch",
    "replicas": "full copies of the model, each of which computes its own share of the batch",
    "parameter server": "a process that keeps variables and applies gradients; ps for short",
    "parameter servers": "processes that keep variables and apply gradients; ps for short",
    "stale": "computed from variables that others have changed since",
    "staleness": "how many updates others made between a worker's reading of the parameters and "
    "the use of its gradient: 0 is fresh",
    "stragglers": "workers that are slower than the others",
    "microbatches": "equal parts of a batch, which go through a pipeline one after the other",
    "activations": "the outputs of a layer, kept until the backward pass needs them",
    "bubble": "the time in which stages of a pipeline are idle, while it fills and drains",
    "logical CPU devices": "parts of the CPU, treated as devices by TensorFlow; they share cores",
    "logical CPU device": "a part of the CPU, treated as a device by TensorFlow",
    "mesh": "devices laid out in rows and columns, over which tensors are cut",
    "DTensor": "TensorFlow's tensors that are cut over several devices",
    "NCCL": "NVIDIA's library for exchanges between GPUs",
    "gloo": "the library by which PyTorch's workers exchange data between CPUs",
    "RING": "TensorFlow's own all-reduce between CPUs: chunks go round from worker to worker",
    "gRPC": "the way in which TensorFlow's processes talk to each other over a network",
    "TCP": "the usual way to send bytes between processes or machines, in order, without loss",
    "XLA": "the compiler that turns a TensorFlow program into one for a TPU, a GPU or a CPU",
    "bfloat16": "a number in 16 bits: the range of float32 with 8 significant bits",
    "TPU": "Google's accelerator for machine learning",
    "loopback": "the network inside one machine",
    "fork": "to copy a process, with all that it has in memory, in milliseconds",
    "straggler": "a worker that is slower than the others",
}
# A term may begin a sentence; of two that begin alike, the longer one is meant.
_MEANING = TERMS | {term[:1].upper() + term[1:]: meaning for term, meaning in TERMS.items()}
_LONGEST_FIRST = sorted(map(re.escape, _MEANING), key=len, reverse=True)
_KNOWN = re.compile(rf"(?<![\w-])({'|'.join(_LONGEST_FIRST)})(?![\w-])")


def explained(text: str) -> Markup:
    """Text as HTML, in which the first use of each known term has its explanation as tooltip."""
    seen: set[str] = set()
    parts: list[str] = []
    for i, part in enumerate(_KNOWN.split(text)):  # every other part is a known term
        first = i % 2 and part.lower() not in seen
        parts.append(element("abbr", part, title=_MEANING[part]) if first else part)
        seen |= {part.lower()} if first else set()
    return join(parts)


def glossary(texts: Iterable[str], realities: Iterable[str] = ()) -> str:
    """The known terms in some texts with their explanations, as an HTML list that can be unfolded.
    It is for those who use no mouse, and so see no tooltips.
    """
    found = {term for text in texts for term in _KNOWN.findall(text)}
    used = {term: TERMS[term] for term in found if term in TERMS}
    used |= {word: REALITY[word][2] for word in realities}
    if not used:
        return ""
    rows = [
        (element("dt", term), element("dd", used[term])) for term in sorted(used, key=str.lower)
    ]
    summary = element("summary", "Words used here")
    return element("details", summary, element("dl", rows), class_="ls-words")
