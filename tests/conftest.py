"""For all tests: a home of their own for runs, and at the end a look for whatever was left
behind.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.screens")
HOME = tempfile.mkdtemp(prefix="lockstep-tests-")
# also the mark by which our processes are known: all of them inherit it
os.environ["LOCKSTEP_HOME"] = HOME
# the home of the first of several processes (pytest -n): the others inherit it
SHARED = os.environ.setdefault("LOCKSTEP_TESTS", HOME)
SHM = Path("/dev/shm")
# folders in the order in which their tests run, and long files whose tests share little
FIRST = {"browser": 0, "processes": 1}
LONG = {"test_exchange", "test_network"}
# on a busy machine any example may take long; the examples are the same each time
settings.register_profile(
    "steady",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="LOCKSTEP_FUZZ" not in os.environ,
)
settings.load_profile("steady")
# a shell's background job ignores interrupts, and so would the processes that tests interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)


def processes_of(home: str) -> list[psutil.Process]:
    """Processes other than this one that run with `home` as their LOCKSTEP_HOME, zombies
    excepted.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get("LOCKSTEP_HOME") == home
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def gone_within(home: str, seconds: float) -> list[str]:
    """Command lines of the processes of `home` that are still there after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.02)
    lines = []
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):  # gone since it was found
            lines.append(f"{process.pid} {' '.join(process.cmdline())}")
    return lines


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_before] = set(SHM.iterdir()) if SHM.is_dir() else set()
    session.config.stash[_leaks] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over what a process of several (pytest -n) found at its end."""
    node.config.stash[_leaks] += getattr(node, "workeroutput", {}).get("leaks", [])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session if it leaves a process, a thread of ours, shared memory or temporary
    files; not as TESTS_FAILED, which may be tried once more.
    """
    from course_lib.cluster import nursery

    nursery.close()
    leaks = session.config.stash[_leaks]
    leaks += [f"process {line}" for line in gone_within(HOME, 10.0)]
    leaks += [f"thread {t.name}" for t in threading.enumerate() if t.name.startswith("lockstep-")]
    shutil.rmtree(HOME, ignore_errors=True)
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["leaks"] = leaks  # whose shared memory is there meanwhile nobody knows
        return
    leaks += [
        f"shared memory {p}"
        for p in (set(SHM.iterdir()) if SHM.is_dir() else set()) - session.config.stash[_before]
    ]
    if leaks:
        session.config.get_terminal_writer().line(
            "\nleft behind:\n  " + "\n  ".join(leaks), red=True
        )
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put first what takes longest, so that no process works alone at the end. Without NIGHTLY
    take out tests marked as `nightly`, and of those marked as `sample(n)` all but one case in n:
    the cases whose names have the lowest hashes, so the same ones each time.
    """
    items.sort(key=lambda item: FIRST.get(item.path.parent.name, len(FIRST)))
    if os.environ.get("NIGHTLY"):
        return
    out = {item for item in items if item.get_closest_marker("nightly")}
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in sorted(set(items) - out, key=lambda item: zlib.crc32(item.nodeid.encode())):
        cases[item.nodeid.partition("[")[0]].append(item)
    for group in cases.values():
        if sample := group[0].get_closest_marker("sample"):
            out |= set(group[-(-len(group) // sample.args[0]) :])
    if out:
        config.hook.pytest_deselected(items=sorted(out, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in out]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each process of `pytest -n` takes a file at a time, as the tests of a file share what was
    dear to make; a file of LONG by its functions.
    """
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return nodeid.partition("[")[0] if Path(file).stem in LONG else file

    config.option.loadscopereorder = False
    return ByFile(config, log)


def is_alone(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("alone") is not None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """A test that is marked as `alone` runs while no other process of `pytest -n` runs one, as it
    measures what that would disturb. Several in a row wait for the others only once.
    """
    kept = item.config.stash.get(_kept, False)
    if not kept:
        fcntl.flock(_gate, fcntl.LOCK_EX)  # so that nobody overtakes who waits for the others
        fcntl.flock(_room, fcntl.LOCK_EX if is_alone(item) else fcntl.LOCK_SH)
        fcntl.flock(_gate, fcntl.LOCK_UN)
    try:
        return (yield)
    finally:
        item.config.stash[_kept] = kept = is_alone(item) and is_alone(nextitem)
        if not kept:
            fcntl.flock(_room, fcntl.LOCK_UN)


_gate, _room = (os.open(Path(SHARED, name), os.O_RDWR | os.O_CREAT) for name in ("gate", "room"))
_kept = pytest.StashKey[bool]()
_before = pytest.StashKey[set[Path]]()
_leaks = pytest.StashKey[list[str]]()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A LOCKSTEP_HOME for a process of its own, apart from that of the other tests."""
    return tmp_path / "home"


@pytest.fixture(params=["fork", "spawn"])
def start_method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of starting tasks: from the warm zygote, and as fresh interpreters."""
    if request.param == "spawn":
        monkeypatch.setenv("LOCKSTEP_START", "spawn")
    return str(request.param)
