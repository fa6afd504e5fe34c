"""The record on its way from node to driver: nothing twice, nothing half."""

from pathlib import Path

from course_lib.engines.ray.parcels import Parcels
from course_lib.record.rundir import RunDir


def ends(tmp_path: Path) -> tuple[RunDir, RunDir]:
    node, driver = RunDir(tmp_path / "node"), RunDir(tmp_path / "driver")
    node.events("worker:1").parent.mkdir(parents=True)
    driver.path.mkdir()
    return node, driver


def test_what_grows_is_brought_in_parts_and_events_in_whole_lines(tmp_path: Path) -> None:
    node, driver = ends(tmp_path)
    there, here = Parcels(node, ["worker:1"]), Parcels(driver)
    events, (stdout, _) = node.events("worker:1"), node.logs("worker:1")
    for lines, said in ((b"[1]\n[2", b"one"), (b"]\n[3]\n", b" two\n"), (b"", b"")):
        with events.open("ab") as file:
            file.write(lines)
        with stdout.open("ab") as file:
            file.write(said)
        here.keep(there.new())
    assert driver.events("worker:1").read_bytes() == b"[1]\n[2]\n[3]\n"
    assert driver.logs("worker:1")[0].read_bytes() == b"one two\n"
    assert there.new() == []


def test_a_parcel_that_comes_twice_changes_nothing(tmp_path: Path) -> None:
    node, driver = ends(tmp_path)
    node.events("worker:1").write_bytes(b"[1]\n")
    parcels = Parcels(node, ["worker:1"]).new()
    here = Parcels(driver)
    for _ in range(2):
        here.keep(parcels)
    assert driver.events("worker:1").read_bytes() == b"[1]\n"


def test_what_a_second_node_records_of_a_task_follows_what_the_first_has(tmp_path: Path) -> None:
    nodes = [RunDir(tmp_path / name) for name in ("a", "b")]
    driver = RunDir(tmp_path / "driver")
    for n, node in enumerate(nodes):
        here, there = Parcels(driver), Parcels(node, ["worker:1"])
        node.events("worker:1").parent.mkdir(parents=True)
        for part in range(2):
            with node.events("worker:1").open("a") as file:
                file.write(f"[{n}, {part}]\n")
            here.keep(there.new())
    assert driver.events("worker:1").read_text() == "[0, 0]\n[0, 1]\n[1, 0]\n[1, 1]\n"


def test_other_files_are_brought_whole_and_again_when_they_change(tmp_path: Path) -> None:
    node, driver = ends(tmp_path)
    there, here = Parcels(node, ["worker:1"]), Parcels(driver)
    for value in ({"a": 1}, {"b": 2}):
        node.leave_value("worker:1", value)
        here.keep(there.new())
        assert driver.values(["worker:1"]) == {"worker:1": value}
        assert there.new() == []


def test_what_a_task_leaves_to_be_found_reaches_all_others_once(tmp_path: Path) -> None:
    nodes = [RunDir(tmp_path / name) for name in ("a", "b")]
    driver = RunDir(tmp_path / "driver")
    for files in (*nodes, driver):
        files.meetings.mkdir(parents=True)
    there = [Parcels(files, [f"worker:{n}"]) for n, files in enumerate(nodes)]
    here = [Parcels(driver) for _ in nodes]
    (nodes[0].meetings / "all-1").mkdir()
    (nodes[0].meetings / "all-1" / "0.door").write_text("{}")
    for _ in range(2):
        for theirs, ours in zip(there, here, strict=True):
            ours.keep(theirs.new())
        brought = [ours.new() for ours in here]
        for theirs, parcels in zip(there, brought, strict=True):
            theirs.keep(parcels)
    assert (nodes[1].meetings / "all-1" / "0.door").read_text() == "{}"
    assert [theirs.new() for theirs in there] == [[], []]
    assert [ours.new() for ours in here] == [[], []]


def test_drafts_and_temporary_files_stay(tmp_path: Path) -> None:
    node, _ = ends(tmp_path)
    node.temporary("worker:1").mkdir()
    (node.temporary("worker:1") / "code.py").write_text("x")
    (node.events("worker:1").parent / ".value.draft").write_text("x")
    assert Parcels(node, ["worker:1"]).new() == []
