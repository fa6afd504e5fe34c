"""Faults as text, and when which of them is due."""

from __future__ import annotations

import pytest

from course_lib import hardware
from course_lib.__main__ import main
from course_lib.cluster.roster import Agenda
from course_lib.errors import SpecError
from course_lib.racing.entrants import line_up, parse_entrant
from course_lib.spec.faults import Fault
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import RunSpec
from tests.helpers import judged
from tests.screens import refusals, says

EVERY = [
    "kill worker:2 at step 40",
    "kill host:1 at 2.5s",
    "pause worker:1 at step 5 for 2s",
    "pause worker:1 at step 5",
    "raise ps:0 at step 3",
    "exit worker:1 at step 3",
    "oom chief:0 at step 3",
    "slow worker:1=4 at step 3 for 1s",
    "jitter worker:1=exponential:20ms at step 3",
    "cut host:1 at step 3 for 500ms",
    "link host:1=50,2.5 at step 3",
    "link host:1=,,0.01 at step 3 for 2s",
]
SPEC = {"workers": 3, "ps": 1, "hosts": 2, "chief": True}


def spec(*faults: str, **fields: object) -> RunSpec:
    return RunSpec(**SPEC | fields, faults=faults)


@pytest.mark.parametrize("text", EVERY)
def test_a_fault_gives_its_text_back_also_through_the_json_of_a_spec(text: str) -> None:
    given = spec(text)
    assert str(given.faults[0]) == text
    assert RunSpec.model_validate_json(given.model_dump_json()) == given
    assert Fault.of(f"  {text.replace(' ', '   ')} ") == given.faults[0]


def test_what_a_fault_says() -> None:
    slow = Fault.of("slow worker:1=4 at step 3 for 1.5s")
    assert (slow.do, slow.who, slow.factor, slow.step, slow.lasts) == (
        "slow",
        "worker:1",
        4,
        3,
        1.5,
    )
    link = Fault.of("link host:1=50,2.5 at 250ms")
    assert (link.host, link.link, link.seconds) == (1, Link(mbit=50, delay_ms=2.5), 0.25)
    assert Fault.of("link host:1=50,0,0.05 at 2s").link == Link(mbit=50, loss=0.05)


@pytest.mark.parametrize(
    "text",
    [
        "kil worker:1 at step 3",
        "",
        None,
        7,
        "kill worker:1 in step 3",
        "kill worker at step 3",
        "kill worker:9 at step 3",
        "kill host:9 at step 3",
        "cut worker:1 at step 3",
        "raise host:1 at step 3",
        "slow worker:1 at step 3",
        "slow worker:1=fast at step 3",
        "slow worker:1=0.5 at step 3",
        "slow ps:0=4 at step 3",
        "kill worker:1=4 at step 3",
        "jitter worker:1=soon at step 3",
        "jitter worker:1=lognormal:1 at step 3",
        "link host:1=-5 at step 3",
        "link host:1=fast at step 3",
        "link host:1=50,0,1 at step 3",
        "kill worker:1 at step 200",
        "kill worker:1",
        "kill worker:1 at step 3 for 2s",
        "kill worker:1 at step " + "9" * 5000,
        "kill worker:1 at " + "9" * 5000 + "s",
    ],
)
def test_what_is_wrong_with_a_fault_is_said_with_the_cure(text: object) -> None:
    with pytest.raises(SpecError) as raised:
        judged(RunSpec(**SPEC, faults=[text]))
    assert raised.value.field == "faults"
    assert len(str(raised.value).splitlines()) == 1
    says("faults", text, raised.value)


def test_a_host_is_cut_off_only_where_there_is_another() -> None:
    says("faults", "one host", refusals(lambda: judged(RunSpec(faults="cut host:0 at step 3"))))


def test_own_functions_may_have_any_number_of_steps() -> None:
    judged(RunSpec(strategy="work()", faults="kill worker:1 at step 5000"))


# --- when ---


def test_the_named_worker_tells_its_step_or_the_first_one_after_it() -> None:
    agenda = Agenda(spec("kill worker:1 at step 3", chief=False))
    assert agenda.at_step("worker:0", 3) == []
    assert agenda.at_step("worker:1", 2) == []
    assert list(map(str, agenda.at_step("worker:1", 5))) == ["kill worker:1 at step 3"]
    assert agenda.at_step("worker:1", 5) == [], "once, also if the step is done again"


def test_any_worker_tells_the_step_for_those_that_count_none() -> None:
    agenda = Agenda(spec("kill ps:0 at step 3", "kill host:1 at step 4", chief=False))
    assert len(agenda.at_step("worker:2", 3)) == 1
    assert agenda.at_step("worker:0", 3) == []
    assert len(agenda.at_step("worker:0", 4)) == 1


def test_where_a_chief_hands_out_the_steps_it_tells_them() -> None:
    agenda = Agenda(spec("kill worker:1 at step 3"))
    assert agenda.at_step("worker:0", 3) == []
    assert len(agenda.at_step("chief:0", 3)) == 1


def test_of_two_faults_alike_one_happens_at_a_time() -> None:
    agenda = Agenda(spec(*["kill worker:1 at step 3"] * 2, chief=False))
    assert [len(agenda.at_step("worker:1", 3)) for _ in range(3)] == [1, 1, 0]


def test_times_count_from_when_all_tasks_run_for_the_first_time() -> None:
    agenda = Agenda(spec("kill worker:1 at 2s", "pause worker:0 at 1s"))
    assert agenda.moments == []
    agenda.all_run(100.0)
    agenda.all_run(300.0)
    assert sorted(agenda.moments) == [101.0, 102.0]
    assert [f.who for f in agenda.at_time(101.5)] == ["worker:0"]
    assert [f.who for f in agenda.at_time(102.0)] == ["worker:1"]
    assert agenda.moments == []


@pytest.mark.parametrize(
    ("text", "order", "undone"),
    [
        ("pause worker:1", {"do": "pause"}, {"do": "resume"}),
        ("slow worker:1=4", {"do": "slow", "factor": 4.0}, {"do": "slow", "factor": 2.0}),
        (
            "jitter worker:1=exponential:20ms",
            {"do": "jitter", "jitter": "exponential:20ms"},
            {"do": "jitter", "jitter": "one_in:9:9ms"},
        ),
    ],
)
def test_what_is_done_to_a_task_is_undone_as_the_spec_has_it(
    text: str, order: dict[str, object], undone: dict[str, object]
) -> None:
    agenda = Agenda(spec(slow={"worker:1": 2}, jitter={"worker:1": "one_in:9:9ms"}))
    (found,) = agenda.orders(Fault.of(f"{text} for 2s"), 10.0)
    assert found.items() >= ({"task": "worker:1"} | order).items()
    assert agenda.moments == [12.0]
    (back,) = agenda.at_time(12.0)
    (found,) = agenda.orders(back, 12.0)
    assert found.items() >= ({"task": "worker:1"} | undone).items()
    assert agenda.moments == []


def test_what_is_done_to_a_host() -> None:
    agenda = Agenda(spec(link=Link(mbit=100)))
    (cut,) = agenda.orders(Fault.of("cut host:1 for 1s"), 0.0)
    assert (cut["do"], cut["host"]) == ("partition", 1)
    (heal,) = agenda.orders(*agenda.at_time(1.0), 1.0)
    assert (heal["do"], heal["host"]) == ("heal", 1)
    (link,) = agenda.orders(Fault.of("link host:1=50,0,0.1 for 1s"), 0.0)
    assert (link["link"]["mbit"], link["link"]["loss"]) == (50, 0.1)
    (back,) = agenda.orders(*agenda.at_time(1.0), 1.0)
    assert (back["link"]["mbit"], back["link"]["loss"]) == (100, 0)
    on_it = [task for task, host in agenda.spec.places.items() if host == 1]
    assert [order["task"] for order in agenda.orders(Fault.of("kill host:1"), 0.0)] == on_it


# --- on the command line, and in a race ---


def test_the_command_line_takes_faults_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    typed = RunSpec(faults=["kill worker:1 at step 3"], slow=["worker:1=3"], placement=["ps:0=1"])
    assert [str(fault) for fault in typed.faults] == ["kill worker:1 at step 3"]
    assert (typed.slow, typed.placement) == ({"worker:1": 3.0}, {"ps:0": 1})
    with pytest.raises(SystemExit) as ended:
        main(["run", "mirrored", "--framework", "torch", "--fault", "kil worker:1 at step 3"])
    assert ended.value.code == 2
    assert "faults='kil': " in capsys.readouterr().err


def test_an_entrant_has_faults_of_its_own() -> None:
    own = parse_entrant("parameter_server,framework=torch,fault=kill ps:0 at step 3")
    assert own["faults"] == ["kill ps:0 at step 3"]
    found, _ = line_up([own, "one_device"], {"framework": "torch", "steps": 9}, hardware.probe())
    assert [len(request.spec.faults) for request in found.values()] == [1, 0]
