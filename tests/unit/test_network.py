"""The network of a run as data: where tasks are, which links there are, what is planned and what is
counted. No namespace is made here.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib import allreduce, hardware, stage
from course_lib.collectives.schedule import place
from course_lib.errors import SpecError, Unavailable
from course_lib.hardware import Capability
from course_lib.network import namespaces
from course_lib.network.hosts import Hosts
from course_lib.network.hosts import build as make_network
from course_lib.network.layout import (
    LOOPBACK,
    LOOPBACK_INTERFACE,
    PAYLOAD,
    Wires,
    addresses,
    by_job,
    interface,
    lay,
)
from course_lib.record import measures
from course_lib.record.events import Lifecycle, Phase, Traffic
from course_lib.record.rundir import Reason, RunFacts
from course_lib.record.trace import Trace
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import RunSpec
from tests.helpers import judged
from tests.made_up import LAPTOP
from tests.screens import refusals, says

PRIVATE = replace(LAPTOP, private_network=Capability(True, "a run has a network of its own"))


def with_parts(*parts: str) -> hardware.Machine:
    """A machine whose kernel has these parts of a network."""
    return replace(
        LAPTOP, private_network=Capability(True, "a run has a network of its own", parts=parts)
    )


# --- where tasks are ---


@given(st.integers(1, 64), st.data())
def test_workers_are_placed_as_the_collectives_place_them(
    workers: int, data: st.DataObject
) -> None:
    hosts = data.draw(st.integers(1, workers))
    assert tuple(RunSpec(workers=workers, hosts=hosts).places.values()) == place(workers, hosts)


def test_parameter_servers_and_the_chief_have_hosts_of_their_own_if_there_are_several() -> None:
    several = RunSpec(workers=4, ps=2, chief=True, hosts=2).places
    assert several == {
        "chief:0": 2,
        "worker:0": 0,
        "worker:1": 0,
        "worker:2": 1,
        "worker:3": 1,
        "ps:0": 3,
        "ps:1": 4,
    }
    assert set(RunSpec(workers=4, ps=2, chief=True).places.values()) == {0}


def test_a_placement_says_where_tasks_are_and_how_many_hosts_the_workers_have() -> None:
    spec = RunSpec(workers=4, ps=1, placement={"worker:1": 1, "worker:3": 1})
    assert spec.places == {"worker:0": 0, "worker:1": 1, "worker:2": 0, "worker:3": 1, "ps:0": 0}
    assert (spec.complete().hosts, spec.all_hosts) == (2, (0, 1))


@pytest.mark.parametrize(
    "spec",
    [
        RunSpec(
            workers=3,
            hosts=2,
            ps=1,
            link={"*": Link(mbit=200, delay_ms=0.5), 1: Link(mbit=50), 2: Link()},
        ),
        RunSpec(workers=3, hosts=2, ps=1, placement={"worker:2": 0, "worker:0": 5}),
    ],
)
def test_a_spec_with_hosts_comes_back_from_json_as_it_was(spec: RunSpec) -> None:
    again = RunSpec.model_validate_json(spec.model_dump_json())
    assert (again, again.places) == (spec, spec.places)


@given(st.integers(1, 256), st.integers(0, 32), st.data())
def test_no_two_tasks_share_an_address(workers: int, ps: int, data: st.DataObject) -> None:
    hosts = data.draw(st.integers(1, workers))
    found = addresses(RunSpec(workers=workers, ps=ps, hosts=hosts).places)
    assert len(set(found.values())) == workers + ps
    for address in found.values():
        assert all(0 <= int(part) <= 255 for part in address.split("."))


def test_an_address_shows_the_host() -> None:
    found = addresses({"worker:0": 0, "worker:1": 3, "worker:2": 3})
    assert list(found.values()) == ["198.18.0.1", "198.18.3.1", "198.18.3.2"]


def test_a_cluster_is_listed_by_job_in_order() -> None:
    assert by_job({"chief:0": "a", "worker:0": "b", "worker:1": "c"}) == {
        "chief": ["a"],
        "worker": ["b", "c"],
    }


def test_the_interface_follows_from_the_address() -> None:
    assert (interface(LOOPBACK), interface("198.18.0.1")) == (LOOPBACK_INTERFACE, "eth0")


# --- links ---


def test_a_host_has_the_link_of_all_unless_it_has_its_own() -> None:
    spec = RunSpec(hosts=2, link={"*": Link(mbit=200), 1: Link(mbit=50, delay_ms=2)})
    assert (spec.link_of(0), spec.link_of(1)) == (Link(mbit=200), Link(mbit=50, delay_ms=2))
    assert RunSpec(hosts=2).link_of(0) == Link()


def test_a_link_says_what_a_prediction_needs() -> None:
    link = Link(mbit=200, delay_ms=0.5)
    assert (link.bytes_per_second, link.delay) == (25e6, 0.5e-3)
    assert Link().bytes_per_second == math.inf


def test_what_cannot_be_is_named_with_what_can() -> None:
    text = refusals(
        lambda: judged(RunSpec(workers=4, hosts=5)),
        lambda: Link(mbit=0),
        lambda: Link(mbit=-1),
        lambda: Link(mbit=math.inf),
        lambda: Link(delay_ms=-1),
        lambda: Link(mbits=3),
        lambda: Link(loss=1),
        lambda: Link(loss=-0.1),
        lambda: Link(loss=math.nan),
        lambda: RunSpec(hosts=2, link={"mbit": 0}),
        lambda: RunSpec(hosts=2, link=200),
        lambda: judged(RunSpec(link=Link(mbit=200))),
        lambda: judged(RunSpec(hosts=2, link={2: Link()})),
        lambda: judged(RunSpec(placement={"worker:9": 0})),
        lambda: RunSpec(placement={"worker:0": -1}),
        lambda: RunSpec(hosts=2).check_host(7),
        lambda: RunSpec(hosts=2).check_host("host:7"),
        lambda: RunSpec(link=["x=1"]),
        lambda: RunSpec(link=["1="]),
        lambda: RunSpec(link=["1=,,"]),
        lambda: RunSpec(link=["1=5,0,0,0"]),
        lambda: RunSpec(link=["1=5,0,1"]),
        lambda: RunSpec(link=["1=0"]),
    )
    says("network", "links and hosts", text)


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("50", Link(mbit=50)),
        ("1=50", Link(mbit=50)),
        (" 1 = 50 , 2.5 ", Link(mbit=50, delay_ms=2.5)),
        ("1=50,0,0.01", Link(mbit=50, loss=0.01)),
        ("1=,,.01", Link(loss=0.01)),
    ],
)
def test_a_slow_rack_as_the_command_line_writes_it(text: str, link: Link) -> None:
    assert RunSpec(link=[text]).link == {1 if "=" in text else "*": link}


# --- links that only our own exchange keeps to ---

SIZE = 1_000_000


def wires(path: Path, *links: Link) -> contextlib.closing[Wires]:
    lay(path, dict(enumerate(links)))
    return contextlib.closing(Wires(path))


def seconds(link: Link) -> float:
    """What a message of SIZE bytes takes on a link of its own."""
    return SIZE / (link.bytes_per_second * PAYLOAD) + link.delay


def test_a_message_is_due_when_its_bytes_have_passed_and_the_delay_is_over(tmp_path: Path) -> None:
    link = Link(mbit=80, delay_ms=50)
    with wires(tmp_path / "wires", link, link) as held:
        assert held.due(0, 1, SIZE) - time.monotonic() == pytest.approx(seconds(link), abs=0.01)


def test_messages_of_one_host_follow_each_other_and_those_of_others_do_not_wait(
    tmp_path: Path,
) -> None:
    link = Link(mbit=80)
    with wires(tmp_path / "wires", link, link, link, link) as held:
        first = held.due(0, 1, SIZE)
        # the uplink of host 0
        assert held.due(0, 2, SIZE) - first == pytest.approx(seconds(link), abs=0.01)
        # the downlink of host 1
        assert held.due(3, 1, SIZE) - first == pytest.approx(seconds(link), abs=0.01)
        assert held.due(2, 3, SIZE) - first == pytest.approx(0, abs=0.02)


def test_the_slower_of_two_links_decides(tmp_path: Path) -> None:
    with wires(tmp_path / "wires", Link(mbit=800), Link(mbit=8)) as held:
        assert held.due(0, 1, SIZE) - time.monotonic() == pytest.approx(
            seconds(Link(mbit=8)), abs=0.01
        )


def test_a_link_without_limit_holds_nothing_back(tmp_path: Path) -> None:
    with wires(tmp_path / "wires", Link(), Link()) as held:
        assert held.due(0, 1, 10**12) <= time.monotonic()


def test_a_link_that_changes_counts_for_all_processes_at_once(tmp_path: Path) -> None:
    with (
        wires(tmp_path / "wires", Link(), Link()) as held,
        contextlib.closing(Wires(tmp_path / "wires")) as other,
    ):
        other.change(1, Link(mbit=8))
        assert held.due(0, 1, SIZE) - time.monotonic() == pytest.approx(
            seconds(Link(mbit=8)), abs=0.01
        )


def test_one_that_stops_while_it_reserves_does_not_stop_the_others(tmp_path: Path) -> None:
    with (
        wires(tmp_path / "wires", Link(mbit=8), Link(mbit=8)) as held,
        (tmp_path / "wires").open("rb") as stopped,
    ):
        fcntl.flock(stopped, fcntl.LOCK_EX)
        assert held.due(0, 1, SIZE) > time.monotonic()


# --- the plan, and what a machine offers ---

ALL = ("veth", "bridge", "tbf", "netem", "nftables")
TWO_HOSTS = RunSpec(framework="python", hosts=2, link=Link(mbit=200, delay_ms=1))


@pytest.mark.parametrize(
    ("machine", "network", "rate", "delay"),
    [
        (with_parts(*ALL), "hosts", "kernel", "kernel"),
        (with_parts("veth", "bridge", "tbf"), "hosts", "kernel", "exchange"),
        (with_parts("veth", "bridge"), "hosts", "exchange", "exchange"),
        (with_parts("tbf"), "private", "exchange", "exchange"),
        (LAPTOP, "loopback", "exchange", "exchange"),
    ],
)
def test_what_the_kernel_cannot_impose_our_exchange_does_and_the_plan_says_so(
    machine: hardware.Machine, network: str, rate: str, delay: str
) -> None:
    plan = hardware.plan(TWO_HOSTS, machine)
    assert (plan.network, plan.rate, plan.delay) == (network, rate, delay)
    (reason,) = (r for r in plan.reasons if r.what == "network")
    says("network", f"{network}, rate by {rate}, delay by {delay}", reason.why)


LOSSY = Link(mbit=200, loss=0.01)


def test_a_link_that_loses_packets_is_planned_where_the_kernel_can_drop_them() -> None:
    plan = hardware.plan(RunSpec(hosts=2, link=LOSSY), with_parts("veth", "bridge", "nftables"))
    assert plan.loss == "kernel"
    assert "1 % lost" in str(plan)


@pytest.mark.parametrize("links", [{"link": LOSSY}, {"link": {1: LOSSY}}])
@pytest.mark.parametrize(
    "machine",
    [with_parts("veth", "bridge", "tbf", "netem"), PRIVATE, LAPTOP],
)
def test_a_link_that_loses_packets_is_refused_where_nobody_can_drop_them(
    machine: hardware.Machine, links: dict[str, object]
) -> None:
    with pytest.raises(Unavailable) as caught:
        hardware.plan(RunSpec(framework="python", hosts=2, **links), machine)
    parts = " ".join(machine.private_network.parts)
    says("network", f"loss on {machine.private_network.ok} {parts}", caught.value)
    assert hardware.plan(RunSpec(framework="python", hosts=2), machine).loss is None


def test_a_formula_is_not_asked_about_a_link_that_loses_packets() -> None:
    for asks in (allreduce, stage):
        with pytest.raises(SpecError, match="loss"):
            asks("1KiB" if asks is allreduce else "ring", workers=4, hosts=2, link=LOSSY)


@pytest.mark.parametrize(("machine", "network"), [(PRIVATE, "private"), (LAPTOP, "loopback")])
def test_on_one_host_nothing_goes_over_a_wire_and_the_plan_says_so(
    machine: hardware.Machine, network: str
) -> None:
    plan = hardware.plan(RunSpec(framework="python"), machine)
    assert (plan.network, plan.rate, plan.delay) == (network, None, None)
    (reason,) = (r for r in plan.reasons if r.what == "network")
    says("network", f"one host, {network}", reason.why)


def test_on_the_nodes_of_a_cluster_links_are_as_they_are_and_what_was_reserved_is_said() -> None:
    reserved = Reason("cores", "2 threads a worker", "2 CPUs are reserved for each task.")
    placed = Reason("nodes", "2 nodes", "Where the tasks are.")
    machine = replace(
        with_parts("veth", "bridge", "tbf"),
        cores=4,
        memory_total=0,
        private_network=Capability(False, "whoever reaches the nodes can reach its ports"),
        nodes=("node 0", "node 1"),
        settled=(reserved, placed),
    )
    plan = hardware.plan(RunSpec(workers=2, hosts=2, all_reduce="ring", engine="ray"), machine)
    assert (plan.network, plan.rate, plan.delay, plan.loss) == ("nodes", None, None, None)
    assert (plan.threads, plan.cores) == (2, 4)
    reasons = {reason.what: reason for reason in plan.reasons}
    assert (reasons["cores"], plan.reasons[-1]) == (reserved, placed)
    assert len(reasons) == len(plan.reasons)
    assert reasons["network"].choice == "2 nodes"
    says("network", "nodes of a cluster", plan)


def test_a_run_whose_links_are_imposed_is_emulated() -> None:
    assert hardware.plan(TWO_HOSTS, PRIVATE).reality == "emulated"
    assert hardware.plan(RunSpec(framework="python", hosts=2), PRIVATE).reality == "measured"


def test_the_doctor_tells_each_part_of_a_network_and_what_is_done_without_it() -> None:
    rows = {
        what: (choice, why)
        for what, choice, why in hardware.machine_rows(with_parts("veth", "bridge", "tbf"))
    }
    network = ("private network", "hosts", "rate", "delay", "loss", "meter")
    assert [rows[what][0] for what in network] == ["yes", "yes", "yes", "no", "no", "yes"]
    says("network", "doctor", "\n".join(rows[what][1] for what in ("delay", "loss")))
    without = {what: choice for what, choice, _ in hardware.machine_rows(LAPTOP)}
    assert [without[what] for what in network] == ["no"] * 6


@pytest.mark.skipif(sys.platform != "linux", reason="there are no namespaces on other systems")
def test_the_trial_finds_what_the_kernel_has_or_says_why_it_may_not_look() -> None:
    can = hardware.machine.private_network("Linux", seconds=30)
    assert set(can.parts) <= set(ALL)
    assert bool(can.parts) is can.ok or not can.parts
    assert can.ok or can.cure


# --- the meter ---


def exchange(step: int, start: float, end: float) -> list[Phase]:
    """A step of two workers that begins at `step`, and its exchange."""
    both = ("worker:0", "worker:1")
    return [
        phase
        for task in both
        for phase in (
            Phase(task, step, "compute", float(step), start),
            Phase(task, step, "reduce", start, end),
            Phase(task, step, "apply", end, step + 1.0),
        )
    ]


def counted(at: float, sent: int, task: str = "worker:0") -> Traffic:
    return Traffic(task, sent, 2 * sent, 1, 1, at)


STEPS = [phase for step in range(5) for phase in exchange(step, step + 0.4, step + 0.8)]


def test_bytes_of_a_step_leave_out_the_start_and_the_end() -> None:
    trace = Trace(
        [*STEPS, counted(0.2, 7000), counted(1, 8000), counted(5, 12000), counted(6, 99999)]
    )
    assert measures.wire_bytes_per_step(trace) == {"worker:0": {"sent": 1000.0, "received": 2000.0}}


def test_counters_are_interpolated_where_a_step_ends_between_two_readings() -> None:
    # before the exchange of step 1, before and after the end of step 3, and in that of step 4
    readings = [counted(1.3, 8000), counted(3.9, 10900), counted(4.1, 11100), counted(4.5, 11400)]
    ends_of_steps = 8000 + (10900 - 8000) * (2 - 1.3) / (3.9 - 1.3), 11000  # of 1, and of 3
    found = measures.wire_bytes_per_step(Trace([*STEPS, *readings]))["worker:0"]["sent"]
    assert found == pytest.approx((ends_of_steps[1] - ends_of_steps[0]) / 2, abs=0.1)


def test_a_short_run_counts_up_to_the_first_reading_after_it() -> None:
    trace = Trace([*STEPS, counted(1.1, 8000), counted(6, 12000)])
    assert measures.wire_bytes_per_step(trace)["worker:0"]["sent"] == 1000


def test_hosts_are_counted_beside_tasks_and_are_no_tasks() -> None:
    trace = Trace(
        [
            *STEPS,
            *(counted(at, sent, "host:0") for at, sent in ((1.1, 8000), (4.9, 12000))),
            Lifecycle("host:0", "cut", "", 2.0),
        ]
    )
    assert set(measures.wire_bytes_per_step(trace)) == {"host:0"}
    assert trace.tasks == ["worker:0", "worker:1"]


def test_without_readings_or_steps_there_are_no_bytes() -> None:
    assert (
        measures.wire_bytes_per_step(Trace(STEPS))
        == measures.wire_bytes_per_step(Trace([counted(1, 1)]))
        == {}
    )
    assert measures.wire_bytes(Trace([counted(1, 1), counted(2, 5)])) == {"worker:0": counted(2, 5)}


def test_traffic_is_saved_and_read_as_every_event(tmp_path: Path) -> None:
    trace = Trace([counted(1, 1), counted(2, 5, "host:3")])
    trace.save(tmp_path / "trace.jsonl")
    assert Trace.load(tmp_path / "trace.jsonl").all(Traffic) == trace.all(Traffic)


# --- what the kernel is asked for ---


class Asked:
    """In the place of pyroute2: what it was asked for. As the kernel does, it refuses to delete a
    queueing discipline that is not there, to put another kind in the place of one, to hang one on
    nothing, and figures of more than 32 bits.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, int, dict[str, object]]] = []
        self.there: dict[int, list[str]] = {}  # interface -> kinds, outermost first

    def tc(self, what: str, kind: str = "", index: int = 0, **settings: int) -> None:
        self.requests.append((what, kind, index, settings))
        there = self.there.setdefault(index, [])
        if what == "del":
            assert there, "nothing to delete"
            there.clear()
            return
        place = 0 if settings["parent"] == 0xFFFFFFFF else settings["parent"] >> 16
        assert place <= len(there) and there[place : place + 1] in ([], [kind])
        there[place:] = [kind, *there[place + 1 :]]
        if kind == "tbf":
            ticks = settings["burst"] / settings["rate"] * 1e6 * 15.625
            assert 0 < settings["rate"] < 1 << 32 and ticks < 1 << 32

    def link(self, what: str, index: int, gso_max_segs: int) -> None:
        self.requests.append((what, str(gso_max_segs), index, {}))

    def lose(self, name: str, interfaces: tuple[str, ...], share: float) -> None:
        self.requests.append((name, str(share), 0, {}))


def made_up(rate: bool = True, delay: bool = True) -> Hosts:
    """A host with its uplink 1 and its downlink 2, which no kernel knows of."""
    hosts = Hosts.__new__(Hosts)
    hosts.rate, hosts.delay = rate, delay
    hosts._index, hosts._queues, hosts._lost = {"up0": 1, "dn0": 2}, {}, {}
    return hosts


def shaped(*links: Link, rate: bool = True, delay: bool = True) -> list[tuple[str, str, int]]:
    """What is asked of the kernel when a host has one link after the other."""
    hosts, asked = made_up(rate, delay), Asked()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(namespaces, "lose", asked.lose)
        for link in links:
            hosts._shape(asked, 0, link)
    return [request[:3] for request in asked.requests]


def test_a_kernel_with_netem_delays_what_leaves_a_host_and_then_holds_it_to_its_rate() -> None:
    assert shaped(Link(mbit=200, delay_ms=5)) == [
        ("replace", "netem", 1),
        ("replace", "tbf", 1),
        ("replace", "tbf", 2),
    ]


def test_what_the_kernel_has_not_is_not_asked_of_it() -> None:
    assert shaped(Link(mbit=200, delay_ms=5), delay=False) == [
        ("replace", "tbf", 1),
        ("replace", "tbf", 2),
    ]
    assert shaped(Link(mbit=200, delay_ms=5), rate=False) == [("replace", "netem", 1)]
    assert shaped(Link()) == []


def test_a_link_that_changes_its_figures_loses_nothing_and_one_without_limit_is_let_go() -> None:
    assert "del" not in {what for what, *_ in shaped(Link(mbit=200), Link(mbit=50))}
    assert [(what, index) for what, _, index in shaped(Link(mbit=200), Link())[2:]] == [
        ("del", 1),
        ("del", 2),
    ]
    assert [(what, index) for what, _, index in shaped(Link(delay_ms=5), Link())[1:]] == [
        ("del", 1)
    ]


def test_a_link_that_loses_packets_hands_them_on_one_by_one_until_it_loses_none() -> None:
    one_by_one = [("set", "1", 1), ("set", "1", 2)]
    together = [("set", "65535", 1), ("set", "65535", 2)]
    assert shaped(Link(loss=0.1)) == [("host0", "0.1", 0), *one_by_one]
    assert shaped(*[Link(loss=0.1)] * 2, Link(), Link())[3:] == [("host0", "0.0", 0), *together]


def test_a_loss_that_the_kernel_refuses_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(12, "no memory")

    hosts, asked = made_up(), Asked()
    monkeypatch.setattr(namespaces, "lose", refuse)
    with pytest.raises(OSError):
        hosts._shape(asked, 0, Link(loss=0.1))
    hosts._shape(asked, 0, Link())
    monkeypatch.setattr(namespaces, "lose", asked.lose)
    hosts._shape(asked, 0, Link(loss=0.1))
    assert [name for name, *_ in asked.requests] == ["host0", "set", "set"]


RATES = st.none() | st.sampled_from([1e-9, 4e-6, 1e-3, 34_000, 34_360, 100_000]) | st.floats(1, 1e4)
LINKS = st.builds(
    lambda mbit, ms: Link(mbit=mbit, delay_ms=ms), RATES, st.sampled_from([0, 5, 1e4])
)


@given(st.lists(LINKS, min_size=1, max_size=8), st.booleans(), st.booleans())
def test_any_links_after_each_other_are_possible(
    links: list[Link], rate: bool, delay: bool
) -> None:
    shaped(*links, rate=rate, delay=delay)


def test_after_a_link_that_the_kernel_refuses_the_next_one_is_possible() -> None:
    class Refusing(Asked):
        def tc(self, what: str, kind: str = "", index: int = 0, **settings: int) -> None:
            if settings.get("rate") == 125_000:
                raise OSError(12, "no memory")
            super().tc(what, kind, index, **settings)

    hosts, asked = made_up(), Refusing()
    for link in (Link(mbit=5), Link(delay_ms=5), Link(mbit=50)):
        with pytest.raises(OSError):
            hosts._shape(asked, 0, Link(mbit=1, delay_ms=link.delay_ms + 1))
        hosts._shape(asked, 0, link)
        up = ["netem"] * bool(link.delay) + ["tbf"] * bool(link.mbit)
        assert asked.there == {1: up, 2: ["tbf"] * bool(link.mbit)}


def test_a_system_that_refuses_a_network_is_told_with_its_reason_and_a_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(namespaces, "make_private", refuse)
    with pytest.raises(Unavailable, match=r"No space .*LOCKSTEP_NETWORK=loopback"):
        make_network(TWO_HOSTS, RunFacts(origin=0, network="hosts", rate="kernel", delay="kernel"))
    assert make_network(TWO_HOSTS, RunFacts(origin=0, network="loopback")) is None
