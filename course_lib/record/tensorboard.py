"""TensorBoard: the figures of a run as an event file that TensorBoard opens. It is a TFRecord file
of `Event` messages (tensorflow/core/util/event.proto). They are encoded here, since TensorFlow
takes seconds to import, and neither framework brings the package `tensorboard` along.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from course_lib.record.events import Metric, Phase, end_of
from course_lib.record.files import whole
from course_lib.record.rundir import usable
from course_lib.record.trace import Trace

# CRC-32C, which guards the length and the content of each record
_CRC = [reduce(lambda c, _: c >> 1 ^ 0x82F63B78 * (c & 1), range(8), n) for n in range(256)]


def save_tensorboard(run: Any, folder: Path | str) -> Path:
    """Write the figures of a run so far for TensorBoard, into a folder in `folder` that is named as
    the run's directory; return it. `tensorboard --logdir FOLDER` shows all runs in `folder`.

    Each metric of each task is a scalar, such as `loss/worker:0`; so are `examples per second` and
    `step seconds`, the time since the task's step before. The spec is a text. Steps and wall times
    are those of the run. Another call replaces the file. Raises `SpecError` if it cannot be
    written.
    """
    trace, place = run.trace, Path(folder) / run.trace.files.path.name
    started = trace.files.facts.started
    code = "    " + run.spec.model_dump_json(indent=1).replace("\n", "\n    ")  # in Markdown
    string = b"\x08\x07" + _part(2, _part(2, b"\x08\x01")) + _part(8, code.encode())
    text = _part(8, string) + _part(9, _part(1, _part(1, b"text")))  # to the plugin of this name
    with usable("folder", folder), np.errstate(over="ignore"):
        place.mkdir(parents=True, exist_ok=True)
        with whole(place / f"events.out.tfevents.{started:.0f}.lockstep") as file:
            file.write(_record(started, 0, _part(3, b"brain.Event:2")))
            file.write(_value(started, 0, "spec", text))
            for at, step, tag, number in sorted(_scalars(trace.once())):
                single = b"\x15" + np.float32(number).astype("<f4").tobytes()
                file.write(_value(started + at, step, tag, single))
    return place


def _scalars(trace: Trace) -> Iterator[tuple[float, int, str, float]]:
    """Scalars as the time in seconds of the trace, the step, the tag and the value."""
    for m in trace.all(Metric):
        yield m.at, m.step, f"{m.name}/{m.task}", m.value
    for task in trace.tasks:
        losses = [m for m in trace.all(Metric, task) if m.name.endswith("loss")]
        # of several losses the first, as all count the same examples
        for a, b in pairwise(m for m in losses if m.name == losses[0].name):
            if b.at > a.at:
                rate = (b.samples - a.samples) / (b.at - a.at)
                yield b.at, b.step, f"examples per second/{task}", rate
        ends = {p.step: p.end for p in sorted(trace.all(Phase, task), key=end_of)}
        for (_, before), (step, end) in pairwise(sorted(ends.items())):
            yield end, step, f"step seconds/{task}", end - before


# --- the format: a message is a sequence of fields, each behind its number and type ---


def _value(at: float, step: int, tag: str, content: bytes) -> bytes:
    """The record of an event with one `Summary.Value`."""
    return _record(at, step, _part(5, _part(1, _part(1, tag.encode()) + content)))


def _record(at: float, step: int, content: bytes) -> bytes:
    """An `Event` of this Unix time as a record: its length and itself, each with its checksum."""
    event = b"\x09" + struct.pack("<d", at) + b"\x10" + _varint(step % 2**64) + content
    length = struct.pack("<Q", len(event))
    return length + _checksum(length) + event + _checksum(event)


def _part(number: int, content: bytes) -> bytes:
    """A field that holds bytes or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """A whole number, seven bits to a byte, the lowest first."""
    return bytes([number & 127 | 128, *_varint(number >> 7)] if number > 127 else [number])


def _checksum(data: bytes) -> bytes:
    crc = reduce(lambda c, byte: _CRC[(c ^ byte) & 255] ^ c >> 8, data, 0xFFFFFFFF) ^ 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
