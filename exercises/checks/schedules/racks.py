"""The judge of an all-reduce for workers in unequal racks: proved, then carried out by processes
over slow links, beside a ring in its best order.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from course_lib.collectives import Schedule, Transfer, cost
from course_lib.collectives.algorithms.ring import ring
from course_lib.collectives.verify import whole
from course_lib.course.answers import Unusable, Verdict
from course_lib.course.handed_in import Answer
from course_lib.reduction.measure import imposed, job, measure
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import RunSpec

from . import mistakes
from .attempt import SIZES, Attempt, attempt
from .judge import example

Complaint = tuple[str, str]


def drawn(workers: int) -> list[int]:
    """The rack of each worker, on two to four racks, none of them empty."""
    count = min(workers, 2 + secrets.randbelow(3))
    racks = [*range(count), *(secrets.randbelow(count) for _ in range(workers - count))]
    return shuffled(racks)


def shuffled(numbers: Sequence[int]) -> list[int]:
    return secrets.SystemRandom().sample(numbers, len(numbers))


HINTS = (
    (
        "Two things cost time over the uplinks: bytes, and rounds that cross, each of which waits"
        " for the delay. A ring of one leader for each rack, as in exercise 04, saves a part of"
        " both. How few rounds can cross, if no uplink is to carry more than it does there?"
    ),
    (
        "Any worker may send to several others in a round. Cut the buffer into one chunk for each"
        " rack. After the sums inside, the leader of each rack sends every other leader the chunk"
        " that this one finishes: one round. In a second round each leader sends its finished chunk"
        " to all other leaders."
    ),
    (
        "leaders = [racks.index(rack) for rack in range(H)]. Round 1: each other worker sends all"
        " chunks to its leader, op 'reduce'. Round 2: leaders[a] sends chunk b to leaders[b],"
        " 'reduce', for all a and b that differ. Round 3: leaders[a] sends chunk a to leaders[b],"
        " 'copy'. Round 4: each leader sends all chunks to its own, 'copy'."
    ),
)
SIZES_OF_RACKS = (4, 2, 1)
LINK = Link(mbit=100, delay_ms=20)
# float32, 256 KiB for each worker and a little more: 20 ms an array, as long as the delay. Then
# neither bytes nor rounds decide alone.
LENGTH, MORE = 1 << 16, 1 << 11
# leaders and two rounds across: 1.7; everyone to everyone: 1.2; a ring of leaders: 1.1
FASTER = 1.3
UNCLEAR = 0.1  # nearer to it than this share, it is measured again
# Ranks that meet over the delayed links begin up to a delay apart: in one call, but not in three
# without a pause, that would look like speed. A busy machine only ever adds time: the quickest
# timing counts.
CALLS, TIMINGS, CLUSTERS = 3, 4, 3
LONGEST = 1.0  # seconds by the formula, which gives the ring 0.3
PLACED: dict[int, list[int]] = {
    **{1: [0], 2: [1, 0], 3: [0, 1, 0], 4: [2, 0, 1, 0], 5: [0, 0, 0, 0, 0]},
    **{6: [0, 1, 2, 3, 4, 5], 7: [0, 2, 0, 1, 0, 1, 0], 8: [1, 0, 0, 0, 0, 0, 0, 1]},
    **{9: [2, 2, 0, 0, 1, 1, 1, 1, 1]},
}


def judge(task: str, answer: Answer) -> Verdict:
    sizes = shuffled(SIZES_OF_RACKS)
    racks = shuffled([rack for rack, size in enumerate(sizes) for _ in range(size)])
    workers = len(racks)
    fresh = {n: drawn(n) for n in SIZES}
    places = [PLACED, fresh | {workers: racks}, fresh | {workers: sorted(racks)}]
    tries = [attempt(on(answer, placed)) for placed in places]
    for tried, placed in zip(tries, places, strict=True):
        if (wrong := unproved(task, tried, placed)) is not None:
            return wrong
    mine, in_order = (tried.schedules[workers] for tried in tries[1:])
    return raced(task, answer.__name__, mine.placed(racks), mine.digest == in_order.digest)


def on(answer: Answer, racks: dict[int, list[int]]) -> Callable[[int], Any]:
    """The answer as a function of the number of workers, which has their racks."""

    def on_racks(workers: int) -> Any:
        given = answer(workers, list(racks[workers]))
        return replace(given, hosts=()) if isinstance(given, Schedule) else given

    on_racks.__name__ = answer.__name__
    return on_racks


def unproved(task: str, tried: Attempt, racks: dict[int, list[int]]) -> Verdict | None:
    """The verdict on an answer whose sums are wrong on these racks, by number of workers."""
    if tried.failure:
        workers = tried.failure.workers
        plain = f"for {workers} worker{'s' * (workers > 1)}"
        text = example(tried).replace(plain, f"{plain} in racks {racks[workers]}", 1)
        # for other numbers of workers the racks are others
        text = re.sub(r"\nIt is right for .*", "", text)
        placed = exchanged(racks), apart(racks), mistakes.too_early, within_racks(racks)
        known = (raises, *ANY_RACKS, *placed)
        shown = tried.failing.schedule if tried.failing is not None else None
        return Verdict(task, "not yet", text, mistakes.name(tried, known), shown)
    if len(tried.schedules) < len(SIZES):
        raise Unusable(f"{tried.name} fails at its first call, and not at later ones.")
    if any(schedule.servers for schedule in tried.schedules.values()):
        return Verdict(
            task,
            "not yet",
            (
                "It has servers of its own; here the workers are alone. Let a worker of each rack"
                " do that."
            ),
        )
    return None


# the sizes that come out right say nothing here, for their racks differ
ANY_RACKS = (
    *(mistakes.returns_nothing, mistakes.returns_rounds, mistakes.wrong_op),
    *(mistakes.one_round_for_all, mistakes.sends_to_itself, mistakes.wrong_direction),
    lambda tried: mistakes.too_few_chunks(tried).replace("set chunks=workers", "count those"),
)


def raises(tried: Attempt) -> str:
    if not tried.failure or " raises " not in tried.failure.text:
        return ""
    if "positional argument" in tried.failure.text:
        return (
            f"It is called with the number of workers and their racks: {tried.name}(3, [0, 1, 0])."
        )
    return "There may be any number of racks, from one on, each of any size, its workers anywhere."


def exchanged(racks: dict[int, list[int]]) -> mistakes.Recogniser:
    def own_chunk(schedule: Schedule) -> Schedule:
        of = racks[schedule.workers]
        rounds = [
            [t._replace(chunk=of[t.dst]) if crosses(t, of) and t.op == "reduce" else t for t in r]
            for r in mistakes.rounds_of(schedule)
        ]
        return mistakes.rebuilt(schedule, rounds)

    def at_once(schedule: Schedule) -> Schedule:
        of = racks[schedule.workers]
        rounds = mistakes.rounds_of(schedule)
        across = [i for i, r in enumerate(rounds) if any(crosses(t, of) for t in r)]
        if across:
            joined = [t for i in across for t in rounds[i]]
            rounds[across[0] : across[-1] + 1] = [joined]
        return mistakes.rebuilt(schedule, rounds)

    def recognise(tried: Attempt) -> str:
        """The racks exchange the wrong chunks, or in turn."""
        if tried.right_if(own_chunk):
            return (
                "On the way to the sums each rack sends its own chunk. It must send every other"
                " rack the chunk which that one finishes."
            )
        if tried.right_if(at_once):
            return (
                "The racks send one after another, so that the sum of one is already in what the"
                " next one sends. Let all send in one round: it reads what was there before."
            )
        return ""

    return recognise


def crosses(t: Transfer, racks: Sequence[int]) -> bool:
    return racks[t.src] != racks[t.dst]


def apart(racks: dict[int, list[int]]) -> mistakes.Recogniser:
    def recognise(tried: Attempt) -> str:
        """Nothing goes from rack to rack, or nothing to a worker."""
        if tried.failing is None:
            return ""
        schedule = tried.failing.schedule
        of, sent = racks[schedule.workers], [t for r in schedule.rounds for t in r]
        if not any(crosses(t, of) for t in sent) and len(set(of)) > 1:
            return "Nothing goes from rack to rack: each worker ends with the sum of its rack."
        there = {w for t in sent for w in (t.src, t.dst)}
        if missing := [w for w in range(schedule.workers) if w not in there]:
            return (
                f"Worker {missing[0]} takes part in no transfer. Racks may be of any size, their"
                " workers in any order: look in `racks` who is where."
            )
        return ""

    return recognise


def within_racks(racks: dict[int, list[int]]) -> mistakes.Recogniser:
    def recognise(tried: Attempt) -> str:
        """The sums are complete somewhere, but not on each worker."""
        proof = tried.failing
        if proof is None or any(problem.kind != "missing" for problem in proof.problems):
            return ""
        schedule, end, of = proof.schedule, proof.state(), racks[proof.schedule.workers]
        reached = [
            {of[w] for w in range(schedule.workers) if end.once[w][c] == whole(schedule, c)}
            for c in range(schedule.chunks)
        ]
        if all(there == set(of) for there in reached):
            return (
                "Each rack has the sum of all, but not each of its workers: at the end it must be"
                " copied inside the racks."
            )
        if all(reached):
            return (
                "Each chunk is finished in some rack, and stays there: send it to all other racks,"
                " op 'copy'."
            )
        return ""

    return recognise


def raced(task: str, name: str, mine: Schedule, ignores: bool) -> Verdict:
    """The verdict on a proved schedule: carried out over links, beside the ring of task 1."""
    racks = list(mine.hosts)
    length = LENGTH + secrets.randbelow(MORE)
    if (seconds := cost(mine, 4 * length, imposed(LINK), 4).seconds) > LONGEST:
        text = (
            f"{name} is right, and by the formula it takes {seconds:.0f} s: it is not carried out."
        )
        return Verdict(task, "not yet", text, slow_mistake(mine, ignores), mine)
    around = ring(len(racks), sorted(range(len(racks)), key=racks.__getitem__)).placed(racks)
    jobs = [job(each, length, repeats=TIMINGS, traced=1) for each in (mine, around)]
    took = rings = math.inf
    for _ in range(CLUSTERS):
        where = RunSpec(hosts=2, link=LINK)
        own, other = measure([replace(each, calls=CALLS) for each in jobs], where)
        if not own.exact:
            raise Unusable(f"{len(racks)} processes carried it out, and not all had the exact sum.")
        took, rings = min(took, own.seconds), min(rings, other.seconds)
        if abs(rings / took / FASTER - 1) > UNCLEAR:
            break
    figures = (
        f"{1e3 * took:.0f} ms, the ring in its best order {1e3 * rings:.0f} ms: it is"
        f" {rings / took:.2f} times as fast"
    )
    there = f"{len(racks)} processes in racks {racks}, links of {LINK.mbit:g} Mbit/s and"
    there += f" {LINK.delay_ms:g} ms, {4 * length / 2**10:.0f} KiB for each worker"
    if rings / took < FASTER:
        text = (
            f"{name} gives the right sums, and is too slow. {there}: {figures}; {FASTER} times is"
            " asked for."
        )
        return Verdict(task, "not yet", text, slow_mistake(mine, ignores), mine)
    text = (
        f"Proved for 1 to 9 workers on racks that were partly drawn.\nCarried out by {there}, which"
        f" were held to that speed; all sums are exact. The quickest calls: {figures}."
    )
    return Verdict(task, "passed", text, shown=mine)


def slow_mistake(schedule: Schedule, ignores: bool) -> str:
    """What costs a right schedule its time, by its bytes and its rounds."""
    racks, workers = schedule.hosts, schedule.workers
    count = len(set(racks))
    shares = math.lcm(schedule.chunks, count)
    price = cost(schedule, shares)
    busiest, fair = price.busiest_link[1] / shares, 2 * (count - 1) / count
    across = [crossed for r in schedule.rounds if (crossed := [t for t in r if crosses(t, racks)])]
    bytes = f"Over the busiest link go {busiest:.3g} S (S is the buffer); {fair:.3g} S are enough."
    if len({(t.src, t.dst) for r in schedule.rounds for t in r}) == workers:
        order = "It does not depend on the racks, and" if ignores else "Each chunk"
        return (
            f"This is a ring over all workers. {order} goes from rack to rack in nearly every"
            " round. Add up inside each rack first."
        )
    if ignores and busiest > fair:
        return (
            f"{bytes} It is the same in whichever order `racks` come. They alone say which workers"
            " share a rack: let these add up first."
        )
    ends = [{t.src for r in across for t in r}, {t.dst for r in across for t in r}]
    if busiest > fair and max(map(len, ends)) > count:
        return (
            f"{bytes} Several workers of a rack send across, or receive. Add up inside each rack"
            " first, on one of its own workers; send the sum across once, and copy it inside."
        )
    if busiest > fair and len({racks[t.dst] for t in across[0]}) == 1 and len(across) == 2:
        return (
            f"{bytes} All racks send to one, and its link carries everything. Cut the buffer: let"
            " each rack finish a chunk of its own."
        )
    if len(across) > 2:
        return (
            f"{len(across)} rounds cross between racks, and each waits for the delay of the link."
            " Two are enough: in one round a worker can send to all other racks."
        )
    return (
        f"{bytes} {len(across)} rounds cross between racks,"
        f" {len(schedule.rounds) - len(across)} do not: save some."
    )
