"""Exercise 13: the worker for which all others wait, and how often to save; each mistake is told by
its name.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from tests.answers import Answers

ANSWERS = Answers("13_when_workers_die", "exercise_13", varies=True)
wrong, right = ANSWERS.wrong, ANSWERS.right

# --- culprit ---


def computed(phases: Any) -> Any:
    """The number of compute rows of each worker."""
    return phases[phases.kind == "compute"].groupby("task").size()


def missing(phases: Any) -> Any:
    """The worker that has computed fewer steps than the others, if there is one."""
    count = computed(phases)
    return count.idxmin() if count.nunique() > 1 else None


def work(phases: Any, *kinds: str) -> Any:
    """The seconds of read and compute (or these) of each worker in each step."""
    rows = phases[phases.kind.isin(kinds or ["read", "compute"])]
    return rows.groupby(["task", "step"]).duration.sum().groupby("task")


def waited(phases: Any) -> Any:
    """The seconds that each worker waits in each step, zeros included."""
    rows = phases[phases.kind == "wait"].pivot_table("duration", "step", "task", "sum")
    return rows.reindex(columns=sorted(set(phases.task))).fillna(0)


@right("culprit")
def who_waits_least_in_most_steps(phases: Any) -> Any:
    return missing(phases) or waited(phases).median().idxmin()


@right("culprit")
def who_comes_last_most_often(phases: Any) -> Any:
    """The step that not all have computed is that of a standstill; else the last to arrive."""
    ends: dict[int, dict[str, float]] = {}
    for row in phases.itertuples():
        if row.kind == "compute":
            ends.setdefault(row.step, {})[row.task] = row.end
    for came in ends.values():
        if absent := set(phases.task) - set(came):
            return absent.pop()
    return Counter(max(came, key=lambda name: came[name]) for came in ends.values()).most_common()[
        0
    ][0]


@right("culprit")
def with_numpy_alone(phases: Any) -> Any:
    import numpy as np

    task, step, kind = (phases[name].to_numpy() for name in ("task", "step", "kind"))
    names = np.unique(task)
    counts = np.array([np.sum((task == name) & (kind == "compute")) for name in names])
    if counts.min() < counts.max():
        return names[counts.argmin()]
    took = phases.duration.to_numpy()
    typical = []
    for name in names:
        mine = (task == name) & np.isin(kind, ["read", "compute"])
        typical.append(np.median(np.bincount(step[mine], took[mine])))
    return names[np.argmax(typical)]


@right("culprit")
def by_the_number_of_waits(phases: Any) -> Any:
    waits = phases[phases.kind == "wait"].task.value_counts()
    return missing(phases) or min(phases.task.unique(), key=lambda name: waits.get(name, 0))


@wrong("culprit")
def last_row(phases: Any) -> Any:
    return phases.task.iloc[-1]


@wrong("culprit")
def latest_end(phases: Any) -> Any:
    return phases.loc[phases.end.idxmax()].task


@wrong("culprit")
def waits_longest(phases: Any) -> Any:
    return waited(phases).sum().idxmax()


@wrong("culprit")
def waits_least_by_groupby(phases: Any) -> Any:
    """Who never waits has no row, so groupby leaves it out."""
    waits = phases[phases.kind == "wait"].groupby("task").duration.sum()
    return missing(phases) or waits.idxmin()


@wrong("culprit")
def waits_least_in_sum(phases: Any) -> Any:
    return missing(phases) or waited(phases).sum().idxmin()


@wrong("culprit")
def waits_least_always(phases: Any) -> Any:
    return waited(phases).median().idxmin()


@wrong("culprit")
def smallest_step(phases: Any) -> Any:
    newest = phases.groupby("task").step.max()
    return newest.idxmin() if newest.nunique() > 1 else work(phases).median().idxmax()


@wrong("culprit")
def fewest_rows(phases: Any) -> Any:
    return phases.groupby("task").size().idxmin()


@wrong("culprit")
def fewest_compute_rows_only(phases: Any) -> Any:
    return computed(phases).idxmin()


@wrong("culprit")
def most_compute_rows(phases: Any) -> Any:
    count = computed(phases)
    return count.idxmax() if count.nunique() > 1 else work(phases).median().idxmax()


@wrong("culprit")
def slowest_always(phases: Any) -> Any:
    return work(phases).median().idxmax()


@wrong("culprit")
def mean_of_work(phases: Any) -> Any:
    return missing(phases) or work(phases).mean().idxmax()


@wrong("culprit")
def sum_of_work(phases: Any) -> Any:
    return missing(phases) or work(phases).sum().idxmax()


@wrong("culprit")
def longest_row(phases: Any) -> Any:
    rows = phases[phases.kind.isin(["read", "compute"])]
    return missing(phases) or rows.loc[rows.duration.idxmax()].task


@wrong("culprit")
def compute_alone(phases: Any) -> Any:
    return missing(phases) or work(phases, "compute").median().idxmax()


@wrong("culprit")
def fastest(phases: Any) -> Any:
    return missing(phases) or work(phases).median().idxmin()


@wrong("culprit")
def longest_steps(phases: Any) -> Any:
    steps = phases.groupby(["task", "step"]).agg({"start": "min", "end": "max"})
    return missing(phases) or (steps.end - steps.start).groupby("task").median().idxmax()


@wrong("culprit")
def longest_exchanges(phases: Any) -> Any:
    return missing(phases) or work(phases, "reduce", "apply").median().idxmax()


@wrong("culprit")
def last_in_the_last_step(phases: Any) -> Any:
    rows = phases[(phases.kind == "compute") & (phases.step == phases.step.max())]
    return rows.loc[rows.end.idxmax()].task


@wrong("culprit")
def always_worker_0(phases: Any) -> Any:
    return "worker:0"


@wrong("culprit")
def number_of_the_worker(phases: Any) -> Any:
    return int(slowest_always(phases).partition(":")[2])


@wrong("culprit")
def max_in_place_of_idxmax(phases: Any) -> Any:
    return work(phases).median().max()


@wrong("culprit")
def all_medians(phases: Any) -> Any:
    return work(phases).median()


@wrong("culprit")
def a_list_of_one(phases: Any) -> Any:
    return [missing(phases) or work(phases).median().idxmax()]


@wrong("culprit")
def unknown_column(phases: Any) -> Any:
    return phases[phases.what == "compute"].groupby("task").size().idxmin()


@wrong("culprit")
def needs_all_kinds(phases: Any) -> Any:
    seconds = phases.pivot_table("duration", ["task", "step"], "kind", "sum")
    working = seconds["read"] + seconds["compute"]
    return missing(phases) or working.groupby("task").median().idxmax()


@wrong("culprit")
def prints_it(phases: Any) -> None:
    missing(phases) or work(phases).median().idxmax()


# --- interval ---


@right("interval")
def with_numpy(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    import numpy as np

    return np.sqrt(np.multiply(2, save_seconds) * np.divide(machine_seconds, machines))


@right("interval")
def as_daly(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    """Daly's formula of a higher order."""
    mean = machine_seconds / machines
    part = save_seconds / (2 * mean)
    return math.sqrt(2 * save_seconds * mean) * (1 + math.sqrt(part) / 3 + part / 9) - save_seconds


@right("interval")
def by_bisection(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    """Where the time for saves is the time that failures lose."""
    low, high = 0.0, machine_seconds
    for _ in range(200):
        middle = (low + high) / 2
        if save_seconds / middle > middle / 2 / (machine_seconds / machines):
            low = middle
        else:
            high = middle
    return high


@right("interval")
def in_whole_seconds(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return math.isqrt(int(2 * save_seconds * machine_seconds / machines))


@wrong("interval")
def of_one_machine(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return math.sqrt(2 * save_seconds * machine_seconds)


@wrong("interval")
def times_machines(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return math.sqrt(2 * save_seconds * machine_seconds * machines)


@wrong("interval")
def divided_outside_the_root(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return math.sqrt(2 * save_seconds * machine_seconds) / machines


@wrong("interval")
def without_2(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return math.sqrt(save_seconds * machine_seconds / machines)


@wrong("interval")
def two_outside_the_root(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return 2 * math.sqrt(save_seconds * machine_seconds / machines)


@wrong("interval")
def two_divides(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return math.sqrt(save_seconds * machine_seconds / machines / 2)


@wrong("interval")
def without_a_root(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return 2 * save_seconds * machine_seconds / machines


@wrong("interval")
def a_quotient(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return math.sqrt(2 * machine_seconds / machines / save_seconds)


@wrong("interval")
def a_swapped_quotient(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return math.sqrt(2 * save_seconds / (machine_seconds / machines))


@wrong("interval")
def without_the_save(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return math.sqrt(2 * machine_seconds / machines)


@wrong("interval")
def half_the_mean_time(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return machine_seconds / machines / 2


@wrong("interval")
def the_mean_time(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return machine_seconds / machines


@wrong("interval")
def in_minutes(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return with_numpy(save_seconds, machine_seconds, machines) / 60


@wrong("interval")
def in_hours(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return with_numpy(save_seconds, machine_seconds, machines) / 3600


@wrong("interval")
def how_many_saves(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    mean = machine_seconds / machines
    return mean / math.sqrt(2 * save_seconds * mean)


@wrong("interval")
def wrong_precedence(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return 2 * save_seconds * (machine_seconds / machines) ** 0.5


@wrong("interval")
def xor_for_a_power(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return int(2 * save_seconds * machine_seconds / machines) ^ 2


@wrong("interval")
def the_time_of_a_save(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return save_seconds


@wrong("interval")
def every_hour(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return 3600


@wrong("interval")
def whole_division(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return math.sqrt(2 * save_seconds * (machines // machine_seconds))


@wrong("interval")
def quotient_the_other_way_round(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return math.sqrt(2 * save_seconds * machines / machine_seconds)


@wrong("interval")
def infinite(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return math.inf


@wrong("interval")
def with_words(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    return f"{math.sqrt(2 * save_seconds * machine_seconds / machines):.0f} s"


@wrong("interval")
def interval_and_loss(save_seconds: Any, machine_seconds: Any, machines: Any) -> Any:
    best = math.sqrt(2 * save_seconds * machine_seconds / machines)
    return best, save_seconds / best


@wrong("interval")
def forgets_to_return(save_seconds: Any, machine_seconds: Any, machines: Any) -> None:
    math.sqrt(2 * save_seconds * machine_seconds / machines)


test_wrong_answers_are_rejected_in_words = ANSWERS.rejected()
test_right_answers_pass = ANSWERS.accepted()
test_there_are_enough_of_each = ANSWERS.enough(8, 3, "culprit", "interval")
