"""Reality of a run of processes: measured or emulated, and why. What a model computes is
`SIMULATED`; `strategies.Standing` says it of a strategy before it runs.

- `measured`: real processes, real bytes, nothing imposed on them.
- `emulated`: real processes and real bytes, but the speed of a device, a task or a link is imposed,
  a host is cut off, or one kind of device stands for another.
- `simulated`: a model ran, no process did.

The word is that of the whole run, because its curves, averages and totals span the whole run. If
something is imposed on a run for a while, the run stays emulated after that has been taken back;
`why` says what it was, and from when to when. A task that is paused, is killed, fails, leaves or
runs out of memory is not imposed on: that really happens.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from course_lib.record.events import Lifecycle
from course_lib.record.life import Life, planned
from course_lib.spec.fields import ALL, Link
from course_lib.spec.run_spec import RunSpec


class Reality(NamedTuple):
    """`word`: measured, emulated or simulated. `why`: a sentence."""

    word: str
    why: str


MEASURED = Reality("measured", "Real processes and real bytes; nothing is imposed on them.")
COMPUTING = ("slowed", "jittered")  # states in which a task computes longer
SIMULATED = Reality("simulated", "The model ran; no process did.")


def reality(spec: RunSpec, life: Life | None = None) -> Reality:
    """Judge the run of a spec: as it is planned or, with its life, as it has been so far."""
    life, given = life or Life(planned(spec)), planned_links(spec)
    links = [f"the links between hosts are held to {given}"] if given else []
    return _judge([*_devices(spec), *links, *_orders(spec, life, "linked", "cut", *COMPUTING)])


def computing(spec: RunSpec, life: Life) -> Reality:
    """Judge the time that the tasks of a run computed, whatever its links are."""
    return _judge([*_devices(spec), *_orders(spec, life, *COMPUTING)])


def over(link: Link | None) -> Reality:
    """Judge an all-reduce that real processes carry out, with `link` imposed on each host."""
    imposed = link is not None and link != Link()
    return _judge([f"the links between hosts are held to {link}"] if imposed else [])


def _judge(imposed: Sequence[str]) -> Reality:
    if not imposed:
        return MEASURED
    return Reality("emulated", f"Real processes and real bytes, but {' and '.join(imposed)}.")


def planned_links(spec: RunSpec) -> str:
    """The links that a spec imposes on its hosts, in words; "" for none."""
    if all(spec.link_of(host) == Link() for host in spec.all_hosts):
        return ""
    links = sorted(spec.link.items(), key=lambda item: str(item[0]))
    return "; ".join(str(link) + f" for host {host}" * (host != ALL) for host, link in links)


def _devices(spec: RunSpec) -> list[str]:
    sleeps = f"a step sleeps {spec.device_ms:g} ms in place of a device"
    stands_in = f"{spec.strategy} is emulated by other devices"
    return [sleeps] * (spec.device_ms > 0) + [stands_in] * spec.emulate


def _orders(spec: RunSpec, life: Life, *states: str) -> list[str]:
    """Orders that were imposed on tasks and hosts, in words, and from when to when if not all the
    time.
    """
    imposed: dict[str, list[str]] = defaultdict(list)
    for span in life.of(None, *states):
        host = span.who.removeprefix("host:")
        if span.state == "linked" and link_of(span.cause) == spec.link_of(int(host)):
            continue
        since = f" from {span.start:.1f} s" if span.start else ""
        until = "" if math.isinf(span.end) else f" until {span.end:.1f} s"
        imposed[f"{span.cause.words}{since}{until}"].append(span.who)
    return [
        f"{', '.join(who)} {'is' if len(who) == 1 else 'are'} {words}"
        for words, who in imposed.items()
    ]


def link_of(order: Lifecycle) -> Link:
    """The link that an order gave to a host."""
    return Link(mbit=order.mbit, delay_ms=order.delay_ms, loss=order.loss)
