"""The judge of an all-reduce for workers on several hosts: proved, held to a budget of bytes for
each uplink, and raced against a ring over links that are held to a speed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import lcm
from typing import Any

from course_lib.collectives import Schedule, cost
from course_lib.collectives.algorithms.ring import ring
from course_lib.collectives.schedule import place
from course_lib.collectives.verify import whole
from course_lib.course.answers import Unusable, Verdict
from course_lib.reduction.measure import job, measure
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import RunSpec

from . import mistakes
from .attempt import SIZES, Attempt, attempt
from .judge import LENGTHS, example

# workers -> hosts: one host, as many as there are workers, and equal shares in between
WORLDS: tuple[dict[int, int], ...] = (
    {1: 1, 2: 1, 3: 3, 4: 2, 5: 1, 6: 2, 7: 7, 8: 2, 9: 3},
    {1: 1, 2: 2, 3: 1, 4: 4, 5: 5, 6: 3, 7: 1, 8: 4, 9: 9},
)
# workers and hosts of the runs over links, one of each row; by the bytes at most 4/5 of the ring's
# time
RACES = (((4, 2), (6, 2)), ((6, 3),))
# float32, 1 MiB and up to a quarter more for each worker: 84 to 105 ms for one array
LINK, LENGTH, MORE = Link(mbit=100), 1 << 18, 1 << 16
RETRIES = 6  # a busy machine only ever adds time: the quickest of all calls counts, of both
IDLE = (
    "Links stand idle while others work. In each round all hosts should send, each another chunk;"
    " transfers that do not wait for each other belong in one round."
)


def judge(task: str, answer: Any) -> Verdict:
    """Judge a function from workers and hosts to a `Schedule`; raises as `attempt` and `measure`
    do.
    """
    tries = [attempt(_on(answer, hosts)) for hosts in WORLDS]
    for tried, hosts in zip(tries, WORLDS, strict=True):
        if tried.failure:
            workers = tried.failure.workers
            plain = f"for {workers} worker{'s' * (workers > 1)}"
            there = f"{plain} on {hosts[workers]} host{'s' * (hosts[workers] > 1)}"
            text = example(tried).replace(plain, there, 1)
            mistake = mistakes.name(tried, (_one_number, partial(_inside, hosts), *mistakes.ANY))
            shown = tried.failing.schedule if tried.failing is not None else None
            return Verdict(task, "not yet", text, mistake, shown)
        if len(tried.schedules) < len(SIZES):
            text = f"{tried.name} must take workers and hosts: {tried.name}(4, 2)."
            return Verdict(task, "not yet", text)
    for workers in sorted(SIZES, key=lambda n: (n < 4, n)):
        for tried, hosts in zip(tries, WORLDS, strict=True):
            schedule = tried.schedules[workers]
            if excess := over_uplinks(schedule, hosts[workers]):
                text = (
                    f"{tried.name} gives the right sums, and sends too much between hosts. For"
                    f" {workers} workers on {hosts[workers]} hosts:"
                )
                return Verdict(task, "not yet", text, excess, schedule.placed(hosts[workers]))
    return _raced(task, answer, tries[0].name)


def _on(answer: Any, hosts: dict[int, int]) -> Callable[[int], Any]:
    def on_hosts(workers: int) -> Any:
        given = answer(workers, hosts[workers])
        return replace(given, hosts=(0,) * given.ranks) if isinstance(given, Schedule) else given

    on_hosts.__name__ = getattr(answer, "__name__", "the function")
    return on_hosts


def over_uplinks(schedule: Schedule, hosts: int) -> str:
    """Words for a schedule that sends or receives more than 2(H-1)/H S over the link of a host of H
    ones; "" for one that does not.
    """
    workers = schedule.workers
    shares = lcm(schedule.chunks, hosts, workers)
    fair = 2 * (hosts - 1) * shares // hosts
    if (most := _busiest(schedule.placed(hosts), shares)) <= fair:
        return ""
    here = (
        f"over the busiest link go {_arrays(most, shares)} S; {_arrays(fair, shares)} S are enough"
    )
    dealt = [rank % hosts for rank in range(workers)]
    if workers > hosts > 1 and _busiest(schedule.placed(dealt), shares) <= fair:
        return (
            f"{here}. It suits ranks that are dealt out to the hosts in turn. Here neighbours share"
            " a host: rank r is on host r // (workers // hosts)."
        )
    if most == 2 * (workers - 1) * shares // workers and len(schedule.rounds) == 2 * (workers - 1):
        return f"{here}. This is a ring over all ranks. Add up inside each host first."
    if most == fair * (workers // hosts):
        return (
            f"{here}. Every rank sends its whole buffer across. Add up inside the host first, and"
            " send each byte of the sum across once."
        )
    if hosts > 2 and most >= (hosts - 1) * shares:
        return (
            f"{here}. All hosts send to one, and its link carries everything. Cut the buffer, and"
            " let the hosts pass chunks around a ring."
        )
    if schedule.chunks == 1:
        return (
            f"{here}. Whole buffers go from host to host. Cut the buffer into one chunk for each"
            " host, or more, and let the hosts exchange chunks as a ring does."
        )
    if hosts > 2 and _busiest(schedule.placed(2), shares) <= shares:
        return f"{here}. It suits 2 hosts: is a 2 written where `hosts` should stand?"
    return f"{here}: 2(H-1)/H S for H hosts, as in a ring in which each host is one worker."


def _arrays(amount: int, shares: int) -> str:
    return f"{float(Fraction(amount, shares)):.3g}"


def _busiest(schedule: Schedule, shares: int) -> int:
    return cost(schedule, shares).busiest_link[1]


def _one_number(tried: Attempt) -> str:
    if tried.failure and "positional argument" in tried.failure.text:
        return "Your function is called with two numbers: def my_hierarchical(workers, hosts)."
    return ""


def _inside(hosts: dict[int, int], tried: Attempt) -> str:
    """What was summed across hosts stays on the ranks that fetched it."""
    proof = tried.failing
    if proof is None or any(problem.kind != "missing" for problem in proof.problems):
        return ""
    schedule, state = proof.schedule, proof.state()
    home = place(schedule.workers, hosts[schedule.workers])
    reached = [
        {home[r] for r in range(schedule.workers) if state.once[r][c] == whole(schedule, c)}
        for c in range(schedule.chunks)
    ]
    if all(len(there) == len(set(home)) > 1 for there in reached):
        return (
            "Each host has the sum of all, but not each of its ranks. After the exchange across,"
            " the sum must be copied inside the host."
        )
    return ""


def _raced(task: str, answer: Any, name: str) -> Verdict:
    """The verdict on a right schedule within its budget: carried out over links, beside a ring."""
    said, shown, length = [], None, LENGTH + secrets.randbelow(MORE)
    for workers, hosts in map(secrets.choice, RACES):
        mine = answer(workers, hosts).placed(hosts)
        shown = shown or mine
        both = mine, ring(workers).placed(hosts)
        short = [job(mine, few, "int64", repeats=1) for few in LENGTHS]
        took = rings = float("inf")
        for _ in range(RETRIES):
            long = [replace(job(each, length, repeats=3), calls=1) for each in both]
            own, other, *rest = measure([*long, *short], RunSpec(hosts=2, link=LINK))
            if not all(done.exact for done in (own, *rest)):
                where = f"{workers} processes on {hosts} hosts"
                raise Unusable(f"{where} carried it out, and not all had the exact sum.")
            short, took, rings = [], min(took, own.seconds), min(rings, other.seconds)
            if won := took < rings:
                break
        times = f"{1e3 * took:.0f} ms, the ring {1e3 * rings:.0f} ms"
        if not won:
            text = (
                f"{name} sends no more than it may, and does not win. {workers} processes on"
                f" {hosts} hosts, {LINK.mbit:g} Mbit/s: {times}."
            )
            return Verdict(task, "not yet", text, IDLE, mine)
        said.append(f"{workers} processes on {hosts} hosts: {times}.")
    text = (
        "Proved for 1 to 9 workers on 1 to 9 hosts; no link of a host carries more than 2(H-1)/H S."
        f"\nCarried out over links of {LINK.mbit:g} Mbit/s with {length * 4 / 2**20:.2f} MiB for"
        f" each worker; all sums are exact. {' '.join(said)}"
    )
    return Verdict(task, "passed", text, shown=shown)
