"""The one word for how real a run is: from its spec, and from what was ordered while it ran."""

import pytest

from course_lib.record.events import Lifecycle
from course_lib.record.life import Life, planned
from course_lib.record.reality import computing, over, reality
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import RunSpec
from tests.screens import says

PLAIN = RunSpec(workers=2, hosts=2, framework="python", strategy="work()")


def told(*events: Lifecycle, spec: RunSpec = PLAIN) -> tuple[str, str]:
    word, why = reality(spec, Life([*planned(spec), *events]))
    return word, why.removeprefix("Real processes and real bytes, but ")


def slowed(factor: float, at: float) -> Lifecycle:
    return Lifecycle("worker:1", "slowed", "by run.slow()", at, factor=factor)


def jittered(jitter: str, at: float) -> Lifecycle:
    return Lifecycle("worker:1", "jittered", "by run.jitter()", at, jitter=jitter)


def linked(mbit: float | None, at: float) -> Lifecycle:
    return Lifecycle("host:0", "linked", "by run.link()", at, mbit=mbit)


@pytest.mark.parametrize(
    "fields",
    [
        {"device_ms": 20},
        {"slow": {"worker:1": 3}},
        {"jitter": "exponential:5ms"},
        {"jitter": {"worker:1": "one_in:9:50ms"}},
        {"hosts": 2, "link": {"*": Link(mbit=50), 1: Link(mbit=10)}},
        {"strategy": "tpu", "framework": "tensorflow", "emulate": True, "workers": 1},
    ],
    ids=["device", "slow", "jitter", "jitter of one", "links", "emulate"],
)
def test_a_spec_that_imposes_something_is_emulated_before_and_after_the_start(
    fields: dict[str, object],
) -> None:
    spec = RunSpec(**{"framework": "torch", "workers": 2, **fields})
    assert reality(spec) == reality(spec, Life(planned(spec)))
    word, why = told(spec=spec)
    assert word == "emulated"
    says("reality", fields, why)


def test_computing_is_as_real_as_what_is_imposed_on_it_whatever_the_links_are() -> None:
    over_links = RunSpec(framework="torch", workers=2, hosts=2, link=Link(mbit=50))
    assert computing(over_links, Life([linked(1.0, 2.0)])).word == "measured"
    for event in (slowed(4.0, 2.0), jittered("exponential:5ms", 2.0)):
        word, why = computing(over_links, Life([event]))
        assert word == "emulated" and "Mbit" not in why
    assert computing(RunSpec(framework="torch", device_ms=20), Life()).word == "emulated"


def test_nothing_imposed_is_measured_and_faults_are_real() -> None:
    states = ("paused", "resumed", "killed")
    faults = [Lifecycle("worker:1", state, "by a learner", 2.0) for state in states]
    assert reality(PLAIN).word == reality(PLAIN, Life()).word == told(*faults)[0] == "measured"


@pytest.mark.parametrize(
    "events",
    [
        [slowed(4, 2.1)],
        [slowed(4, 2.1), slowed(1, 4.0)],
        [slowed(4, 2.1), slowed(2, 3.0), slowed(1, 4.0), slowed(1, 5.0)],
        [jittered("exponential:5ms", 2.1), jittered("", 4.0)],
        [linked(50, 2.1)],
        [linked(50, 2.1), linked(None, 4.0)],
        [linked(50, 2.1), linked(10, 3.0)],
        [linked(None, 2.1)._replace(loss=0.05), linked(None, 4.0)],
        [Lifecycle("host:1", "cut", "", 2.1), Lifecycle("host:1", "healed", "", 4.0)],
    ],
)
def test_what_was_imposed_for_a_while_makes_the_whole_run_emulated(events: list[Lifecycle]) -> None:
    word, why = told(*events)
    assert word == "emulated"
    orders = (f"{e.task} {e.state} {e.factor} {e.jitter} {e.mbit} {e.loss}" for e in events)
    says("reality", ", ".join(orders), why)


def test_an_order_that_imposes_nothing_changes_nothing() -> None:
    assert told(slowed(1, 2.0), linked(None, 3.0))[0] == "measured"


def test_a_link_without_limit_and_delay_imposes_nothing() -> None:
    spec = RunSpec(workers=2, hosts=2, link=Link())
    assert reality(spec).word == over(Link()).word == over(None).word == "measured"
    limited = over(Link(mbit=50))
    assert limited.word == "emulated" and "50 Mbit/s" in limited.why


def test_a_straggler_from_the_start_that_is_let_go_was_slow_until_then() -> None:
    spec = RunSpec(workers=2, slow={"worker:1": 4})
    says("reality", "slow until", told(slowed(1, 3.0), spec=spec)[1])
