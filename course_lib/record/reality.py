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
from course_lib.record.life import Life, Span, planned
from course_lib.spec.fields import ALL, Link
from course_lib.spec.run_spec import RunSpec


class Reality(NamedTuple):
    """`word`: measured, emulated or simulated. `why`: a sentence."""

    word: str
    why: str


MEASURED = Reality("measured", "Real processes and real bytes; nothing is imposed on them.")
SIMULATED = Reality("simulated", "The model ran; no process did.")


def reality(spec: RunSpec, life: Life | None = None) -> Reality:
    """Judge the run of a spec: as it is planned or, with its life, as it has been so far."""
    life = life or Life(planned(spec))
    on_steps = [*_slow(spec, life), *_jitter(spec, life)]
    return _judge([*_devices(spec), *_links(spec, life), *_cuts(spec, life), *on_steps])


def computing(spec: RunSpec, life: Life) -> Reality:
    """Judge the time that the tasks of a run computed, whatever its links are."""
    return _judge([*_devices(spec), *_slow(spec, life), *_jitter(spec, life)])


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


def _slow(spec: RunSpec, life: Life) -> list[str]:
    found = []
    for task in spec.tasks:
        if slowed := life.of(task, "slowed"):
            factors = {span.cause.factor for span in slowed}
            most = f"{'up to ' if len(factors) > 1 else ''}{max(factors):g}"
            found.append(f"{task} is made {most} times slower{_when(slowed)}")
    return found


def _jitter(spec: RunSpec, life: Life) -> list[str]:
    tasks: dict[str, list[str]] = defaultdict(list)  # what was imposed, in words -> on whom
    for task in spec.tasks:
        if jittered := life.of(task, "jittered"):
            forms = dict.fromkeys(span.cause.jitter for span in jittered)
            tasks[" and ".join(forms) + _when(jittered)].append(task)
    workers = [task for task in spec.tasks if task.startswith("worker:")]
    return [
        f"the steps of {'all workers' if whose == workers else ', '.join(whose)} vary by {forms}"
        for forms, whose in tasks.items()
    ]


def _links(spec: RunSpec, life: Life) -> list[str]:
    given = planned_links(spec)
    found = [f"the links between hosts are held to {given}"] if given else []
    for host in spec.all_hosts:
        linked = [(link_of(span.cause), span) for span in life.of(f"host:{host}", "linked")]
        other = [(link, span) for link, span in linked if link != spec.link_of(host)]
        if other:
            links = {link for link, _ in other}
            to = f"set to {links.pop()}" if len(links) == 1 else "changed"
            found.append(f"the link of host:{host} is {to}{_when([span for _, span in other])}")
    return found


def link_of(order: Lifecycle) -> Link:
    """The link that an order gave to a host."""
    return Link(mbit=order.mbit, delay_ms=order.delay_ms, loss=order.loss)


def _cuts(spec: RunSpec, life: Life) -> list[str]:
    hosts = {f"host:{host}": life.of(f"host:{host}", "cut") for host in spec.all_hosts}
    return [f"{host} is cut off{_when(cuts)}" for host, cuts in hosts.items() if cuts]


def _when(imposed: Sequence[Span]) -> str:
    """From when to when something was imposed, in words; "" if from start to end."""
    since, until = imposed[0].start, imposed[-1].end
    begun = f" from {since:.1f} s" if since else ""
    if math.isinf(until):
        return f"{begun} on" if begun else ""
    return f"{begun} to {until:.1f} s" if begun else f" until {until:.1f} s"
