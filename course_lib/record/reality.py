"""How real a run of processes is: measured or emulated, and why. What a model computes is
`SIMULATED`; how real a strategy would be on a machine, before it runs, is `strategies.Standing`.

- `measured`: real processes, real bytes, nothing imposed on them.
- `emulated`: real processes and real bytes, but the speed of a device, a task or a link is imposed,
  a host is cut off, or one kind of device stands for another.
- `simulated`: a model ran, no process did.

The word is that of the whole run, because its curves, averages and totals span the whole run. If
something is imposed on a run for a while, the run stays emulated after that has been taken back;
`why` says what it was, and from when to when. A task that is paused, is killed, fails, leaves or
runs out of memory is not imposed on: that really happens.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from course_lib.record.events import Lifecycle
from course_lib.record.trace import Trace
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import RunSpec

Life = Sequence[Lifecycle]


class Reality(NamedTuple):
    """`word`: measured, emulated or simulated. `why`: a sentence."""

    word: str
    why: str


MEASURED = Reality("measured", "Real processes and real bytes; nothing is imposed on them.")
SIMULATED = Reality("simulated", "The model ran; no process did.")


def reality(spec: RunSpec, trace: Trace | None = None) -> Reality:
    """How real the run of a spec is: as it is planned or, with its trace, as it has been so far."""
    life = trace.all(Lifecycle) if trace else []
    on_steps = [*_slow(spec, life), *_jitter(spec, life)]
    return _judge([*_devices(spec), *_links(spec, life), *_cuts(life), *on_steps])


def computing(spec: RunSpec, trace: Trace) -> Reality:
    """How real the time is that the tasks of a run computed, whatever its links are."""
    life = trace.all(Lifecycle)
    return _judge([*_devices(spec), *_slow(spec, life), *_jitter(spec, life)])


def over(link: Link | None) -> Reality:
    """How real an all-reduce is that real processes carry out, with `link` imposed on each host."""
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
    special = [f"{link} for host {host}" for host, link in sorted(spec.links.items())]
    return "; ".join([*([str(spec.link)] if spec.link else []), *special])


def _devices(spec: RunSpec) -> list[str]:
    sleeps = f"a step sleeps {spec.device_ms:g} ms in place of a device"
    stands_in = f"{spec.strategy} is emulated by other devices"
    return [sleeps] * (spec.device_ms > 0) + [stands_in] * spec.emulate


def _slow(spec: RunSpec, life: Life) -> list[str]:
    found = []
    for task in spec.tasks:
        ordered = [(e.at, e.factor) for e in _of(life, task, "slowed")]
        changes = [(0.0, spec.slow.get(task, 1.0)), *ordered]
        factors = {factor for _, factor in changes if factor != 1}
        if factors:
            most = f"{'up to ' if len(factors) > 1 else ''}{max(factors):g}"
            when = _when([(at, factor != 1) for at, factor in changes])
            found.append(f"{task} is made {most} times slower{when}")
    return found


def _jitter(spec: RunSpec, life: Life) -> list[str]:
    tasks: dict[str, list[str]] = defaultdict(list)  # what was imposed, in words -> on whom
    for task in spec.tasks:
        ordered = [(e.at, e.jitter) for e in _of(life, task, "jittered")]
        changes = [(0.0, spec.jitter_of(task)), *ordered]
        if forms := " and ".join(dict.fromkeys(form for _, form in changes if form)):
            tasks[forms + _when([(at, bool(form)) for at, form in changes])].append(task)
    workers = [task for task in spec.tasks if task.startswith("worker:")]
    return [
        f"the steps of {'all workers' if whose == workers else ', '.join(whose)} vary by {forms}"
        for forms, whose in tasks.items()
    ]


def _links(spec: RunSpec, life: Life) -> list[str]:
    planned = planned_links(spec)
    found = [f"the links between hosts are held to {planned}"] if planned else []
    for host in spec.all_hosts:
        orders = _of(life, f"host:{host}", "linked")
        ordered = [(e.at, Link(mbit=e.mbit, delay_ms=e.delay_ms, loss=e.loss)) for e in orders]
        given = {link for _, link in ordered} - {spec.link_of(host)}
        if given:
            to = f"set to {given.pop()}" if len(given) == 1 else "changed"
            when = _when([(at, link != spec.link_of(host)) for at, link in ordered])
            found.append(f"the link of host:{host} is {to}{when}")
    return found


def _cuts(life: Life) -> list[str]:
    hosts = dict.fromkeys(e.task for e in life if e.state == "cut")
    turns = {host: _of(life, host, "cut", "healed") for host in hosts}
    return [
        f"{host} is cut off{_when([(e.at, e.state == 'cut') for e in events])}"
        for host, events in turns.items()
    ]


def _of(life: Life, who: str, *states: str) -> list[Lifecycle]:
    """When a task or host entered one of these states."""
    return [e for e in life if e.task == who and e.state in states]


def _when(changes: Sequence[tuple[float, bool]]) -> str:
    """From when to when something was imposed, in words; "" if from start to end.

    `changes`: times, each with whether it is imposed from then on; for at least one of them it is.
    """
    imposed = [i for i, (_, imposed) in enumerate(changes) if imposed]
    since, after = changes[imposed[0]][0], changes[imposed[-1] + 1 :]
    if not after:
        return f" from {since:.1f} s on" if since else ""
    until = f"{after[0][0]:.1f} s"
    return f" from {since:.1f} s to {until}" if since else f" until {until}"
