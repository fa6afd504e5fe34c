"""What the machine offers, read from fake cgroups and fake machines, and the plan that follows from
it.
"""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib import hardware, launch
from course_lib.errors import SpecError, Unavailable
from course_lib.hardware import Capability, Machine, Reason, limits
from course_lib.hardware.limits import Gpu
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.gate import Request
from tests.made_up import GB, LAPTOP

H200 = Gpu("H200", 140 * GB)
SERVER = replace(
    LAPTOP,
    cores=16,
    cores_total=16,
    memory=100 * GB,
    memory_total=128 * GB,
    gpus=(H200,) * 4,
    cuda_frameworks=("tensorflow", "torch"),
)
MACOS = replace(
    LAPTOP, system="macOS", fork=Capability(False, "the libraries of macOS start threads")
)

ABILITIES = ["warm fork", "private network", "hosts", "rate", "delay", "loss", "meter"]

Files = Callable[[dict[str, str]], Path]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Write files under a root of our own and return that root."""

    def write(texts: dict[str, str]) -> Path:
        for name, text in texts.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def why(spec: RunSpec, machine: Machine, what: str) -> Reason:
    """The reason that a plan gives for one decision."""
    (reason,) = [r for r in hardware.plan(spec, machine).reasons if r.what == what]
    return reason


# --- limits ---


def test_no_cgroup_no_limit(files: Files) -> None:
    root = files({})
    assert limits.cgroup_memory(root) is None
    assert limits.cgroup_cores(root) is None


def test_cgroup_v2_memory_counts_the_page_cache_as_free(files: Files) -> None:
    root = files(
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": f"{4 * GB}\n",
            "sys/fs/cgroup/memory.current": f"{3 * GB}\n",
            "sys/fs/cgroup/memory.stat": f"anon {GB}\ninactive_file {GB}\nactive_file {GB}\n",
        }
    )
    assert limits.cgroup_memory(root) == (3 * GB, 4 * GB)


def test_cgroup_v2_takes_the_tightest_of_the_groups_around_us(files: Files) -> None:
    """A hub that gives each user a systemd slice sets its limits on the slice, two levels above the
    process.
    """
    slice_ = "sys/fs/cgroup/user.slice/jupyter-ada.service"
    root = files(
        {
            "proc/self/cgroup": "0::/user.slice/jupyter-ada.service/kernel\n",
            f"{slice_}/kernel/memory.max": "max\n",
            f"{slice_}/kernel/memory.current": "1000\n",
            f"{slice_}/memory.max": f"{2 * GB}\n",
            f"{slice_}/memory.current": f"{GB}\n",
            f"{slice_}/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user.slice/memory.max": f"{16 * GB}\n",
            "sys/fs/cgroup/user.slice/memory.current": f"{8 * GB}\n",
            "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
        }
    )
    assert limits.cgroup_memory(root) == (GB, 2 * GB)
    assert limits.cgroup_cores(root) == 1.5


def test_cgroup_v2_memory_high_limits_too(files: Files) -> None:
    root = files(
        {
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": "max\n",
            "sys/fs/cgroup/a/memory.high": f"{3 * GB}\n",
            "sys/fs/cgroup/a/memory.current": f"{GB}\n",
        }
    )
    assert limits.cgroup_memory(root) == (2 * GB, 3 * GB)


def test_cgroup_v1_in_a_container_that_sees_its_own_group_as_the_top(files: Files) -> None:
    memory, cpu = "sys/fs/cgroup/memory", "sys/fs/cgroup/cpu"
    root = files(
        {
            "proc/self/cgroup": "4:memory:/docker/0123\n3:cpu,cpuacct:/docker/0123\n0::/\n",
            f"{memory}/memory.limit_in_bytes": f"{2 * GB}\n",
            f"{memory}/memory.usage_in_bytes": f"{GB}\n",
            f"{memory}/memory.stat": (
                f"cache 7\ntotal_inactive_file {GB // 2}\ntotal_active_file 0\n"
            ),
            f"{cpu}/cpu.cfs_quota_us": "50000\n",
            f"{cpu}/cpu.cfs_period_us": "100000\n",
        }
    )
    assert limits.cgroup_memory(root) == (GB + GB // 2, 2 * GB)
    assert limits.cgroup_cores(root) == 0.5


def test_cgroup_v1_without_a_limit(files: Files) -> None:
    root = files(
        {
            "proc/self/cgroup": "4:memory:/\n1:cpu:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        }
    )
    assert limits.cgroup_memory(root) is None
    assert limits.cgroup_cores(root) is None


def test_a_group_over_its_limit_has_nothing_free_and_a_path_outside_means_the_top(
    files: Files,
) -> None:
    root = files(
        {
            "proc/self/cgroup": "0::/../other\n",
            "sys/fs/cgroup/memory.max": f"{GB}\n",
            "sys/fs/cgroup/memory.current": f"{2 * GB}\n",
        }
    )
    assert limits.cgroup_memory(root) == (0, GB)


def test_usable_memory_is_the_smaller_of_machine_and_limit(files: Files) -> None:
    group = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.current": "0\n"}
    small = limits.usable_memory(files(group | {"sys/fs/cgroup/memory.max": "1048576\n"}))
    assert small[:2] == (1048576, 1048576)
    assert "limit" in small[2]
    huge = limits.usable_memory(files(group | {"sys/fs/cgroup/memory.max": f"{2**50}\n"}))
    assert huge[1] == psutil.virtual_memory().total
    assert "limit of" not in huge[2]


def test_cores_respect_a_quota_that_joblib_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    for quota, cores in ((None, 8), (0.5, 1), (1.5, 2), (64.0, 8)):
        monkeypatch.setattr(limits, "cgroup_cores", lambda quota=quota: quota)
        assert limits.usable_cores() == cores


# --- what else is here ---


def test_probe_imports_no_framework() -> None:
    code = """
import sys
from course_lib import hardware
hardware.plan(hardware.placement.RunSpec(), hardware.probe()), hardware.versions()
print({'tensorflow', 'torch', 'keras'} & set(sys.modules))
"""
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert out.stdout.strip() == "set()"


def test_probe_leaves_no_process_and_its_facts_survive_json() -> None:
    before = {child.pid for child in psutil.Process().children()}
    machine = hardware.probe()
    assert {child.pid for child in psutil.Process().children()} <= before
    assert json.loads(json.dumps(asdict(machine)))["cores"] == machine.cores >= 1
    assert 0 < machine.memory <= machine.memory_total


def test_probe_reads_memory_and_wishes_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKSTEP_START", raising=False)
    monkeypatch.setattr(limits, "usable_memory", lambda: (1, 2, "first"))
    assert hardware.probe().memory == 1
    monkeypatch.setattr(limits, "usable_memory", lambda: (7, 8, "then"))
    monkeypatch.setenv("LOCKSTEP_START", "spawn")
    monkeypatch.setenv("LOCKSTEP_NETWORK", "loopback")
    machine = hardware.probe()
    assert (machine.memory, machine.memory_total, machine.memory_why) == (7, 8, "then")
    assert not machine.fork.ok
    assert "LOCKSTEP_START=spawn" in machine.fork.why
    assert not machine.private_network.ok
    assert "LOCKSTEP_NETWORK=loopback" in machine.private_network.why


def test_probe_survives_a_machine_that_hides_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("hidden")

    for name in (
        "psutil.virtual_memory",
        "psutil.users",
        "joblib.cpu_count",
        "subprocess.Popen",
        "pathlib.Path.read_text",
        "pynvml.nvmlInit",
        "importlib.metadata.version",
    ):
        monkeypatch.setattr(name, broken)
    hardware.machine._facts.cache_clear()
    try:
        machine = hardware.probe()
    finally:
        hardware.machine._facts.cache_clear()
    assert machine.cores >= 1
    assert machine.memory == machine.memory_total == 0
    assert "cannot be read" in machine.memory_why
    assert machine.gpus == ()
    assert machine.system == "macOS" or "no process could try it" in machine.private_network.why
    assert set(hardware.versions().values()) == {"not installed"}
    assert why(RunSpec(), machine, "memory").choice == "not known"  # which refuses nothing


def test_other_people_are_looked_for_where_runs_are_open_to_them_unless_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "other_people", lambda: ("alice",))
    facts = hardware.machine._facts()
    for ok, asked, found in ((True, "", ()), (False, "", ("alice",)), (False, "loopback", ())):
        monkeypatch.setenv("LOCKSTEP_NETWORK", asked)
        now = facts | {"private_network": hardware.Capability(ok, "it is as it is")}
        monkeypatch.setattr(hardware.machine, "_facts", lambda now=now: now)
        assert hardware.probe().others == found


def test_people_are_those_who_are_logged_in_or_run_something_and_services_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def process(uid: int, name: str) -> Any:
        return SimpleNamespace(info={"uids": SimpleNamespace(real=uid), "username": name})

    me = psutil.Process().username()
    running = [(1000, "bob"), (1001, me), (0, "root"), (33, "www-data"), (65534, "nobody")]
    monkeypatch.setattr(psutil, "users", lambda: [SimpleNamespace(name="alice")])
    monkeypatch.setattr(psutil, "process_iter", lambda _: [process(*each) for each in running])
    assert limits.other_people() == ("alice", "bob")


@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_servers_of_the_frameworks_are_refused_where_others_could_reach_them(
    framework: str,
) -> None:
    shared = replace(LAPTOP, others=("alice", "bob", "carol", "dave"))
    several = RunSpec(framework=framework, workers=2)
    with pytest.raises(Unavailable) as refused:
        hardware.plan(several, shared)
    assert "alice, bob, carol" in str(refused.value)
    assert "LOCKSTEP_NETWORK=loopback" in str(refused.value)
    alone = RunSpec(strategy="one_device", framework=framework, workers=1)
    for spec in (alone, RunSpec(framework="python")):
        assert hardware.plan(spec, shared).network == "loopback"
    private = replace(shared, private_network=hardware.Capability(True, "a network of its own"))
    for machine in (LAPTOP, private):
        assert hardware.plan(several, machine).network


def test_open_servers_are_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKSTEP_NETWORK", raising=False)
    torch = RunSpec(strategy="work()", framework="torch", workers=2)
    alone = RunSpec(strategy="work()", framework="torch", workers=1)
    plain = RunSpec(strategy="work()", framework="python", workers=2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")  # as Python and notebooks have it
        for spec in (alone, plain, torch, torch):
            launch.prepare(Request(spec, programs={"worker": print}), LAPTOP)
    (warning,) = said
    assert "other users" in str(warning.message)


@pytest.mark.parametrize(
    ("system", "ok"), [("Linux", True), ("WSL2", True), ("macOS", False), ("Windows", False)]
)
def test_warm_fork_is_for_linux(system: str, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKSTEP_START", raising=False)
    can = hardware.machine.warm_fork(system)
    assert can.ok is ok
    assert bool(can.cure) is not ok


def test_a_private_network_is_not_tried_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware.machine, "_TRIAL", "print('ok')")
    can = hardware.machine.private_network("macOS", seconds=30)
    assert not can.ok
    assert "namespaces on macOS" in can.why


def test_a_trial_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware.machine, "_TRIAL", "import time; time.sleep(60)")
    before = {child.pid for child in psutil.Process().children()}
    can = hardware.machine.private_network("Linux", seconds=0.05)
    assert not can.ok
    assert "no process could try it within 0.05 s" in can.why
    assert {child.pid for child in psutil.Process().children()} <= before


@pytest.mark.parametrize(
    ("printed", "ok"), [("ok", True), ("Operation not permitted", False), ("", False)]
)
def test_the_answer_of_a_trial_decides(
    printed: str, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware.machine, "_TRIAL", f"print({printed!r})")
    can = hardware.machine.private_network("Linux", seconds=30)
    assert can.ok is ok
    assert ok or can.cure.startswith("Runs use loopback")


def test_a_refusal_names_the_setting_behind_it_and_its_cure(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    answer = "Operation not permitted"
    assert answer in hardware.machine.refused(answer, files({})).why
    assert "container" in hardware.machine.refused(answer, files({".dockerenv": ""})).why
    assert (
        "max_user_namespaces"
        in hardware.machine.refused(answer, files({"proc/sys/user/max_user_namespaces": "0\n"})).why
    )
    apparmor = hardware.machine.refused(
        answer, files({"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"})
    )
    assert "AppArmor" in apparmor.why
    assert "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" in apparmor.cure


@pytest.mark.parametrize(
    ("setting", "seen"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        ("1,9,0", [1]),
        ("GPU-bb", [1]),
        ("GPU-", []),
        ("0,0", [0]),
        ("MIG-aa", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    setting: str | None, seen: list[int]
) -> None:
    assert limits.visible(["GPU-aa", "GPU-bb", "GPU-cc"], setting) == seen


def test_a_tpu_needs_both_its_environment_and_its_device_file(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TPU_NAME", raising=False)
    monkeypatch.delenv("TPU_WORKER_ID", raising=False)
    monkeypatch.setenv("TPU_NAME", "local")
    assert not limits.has_tpu(files({}))
    # every machine with vfio has this one
    assert not limits.has_tpu(files({"dev/vfio/vfio": ""}))
    root = files({"dev/accel0": ""})
    assert limits.has_tpu(root)
    monkeypatch.delenv("TPU_NAME")
    assert not limits.has_tpu(root)


@pytest.mark.parametrize("tensorflow", ["", "2.21.0"])
@pytest.mark.parametrize(
    ("torch", "can"), [("", False), ("2.13.0+cpu", False), ("2.13.0", True), ("2.13.0+cu130", True)]
)
def test_the_build_of_a_framework_says_whether_it_can_use_a_gpu(
    torch: str, can: bool, tensorflow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {"torch": torch, "tensorflow": tensorflow, "nvidia-cudnn-cu12": "9.3"}
    monkeypatch.setattr(limits, "version", installed.__getitem__)
    assert limits.cuda_frameworks() == ("tensorflow",) * bool(tensorflow) + ("torch",) * can


def test_versions_tell_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hardware.versions()["numpy"][0].isdigit()
    monkeypatch.setattr(hardware.machine, "PACKAGES", ["no-such-package-at-all"])
    assert hardware.versions() == {"no-such-package-at-all": "not installed"}


@pytest.mark.parametrize(
    "machine",
    [
        LAPTOP,
        SERVER,
        MACOS,
        replace(LAPTOP, cores=1, memory_total=0),
        replace(SERVER, gpus=(H200,), cuda_frameworks=()),
    ],
)
def test_every_row_has_something_to_say_in_a_sentence(machine: Machine) -> None:
    rows = hardware.machine_rows(machine)
    assert [what for what, _, _ in rows] == ["system", "cores", "memory", "GPU", "TPU", *ABILITIES]
    for _, value, meaning in rows:
        assert value
        assert meaning[0].isupper()
        assert meaning.endswith(".")


def test_gigabytes_are_those_of_container_limits() -> None:
    assert limits.gigabytes(2 * GB) == "2.0 GB"
    assert (
        "4.0 GB free of 8.0 GB"
        in dict((what, value) for what, value, _ in hardware.machine_rows(LAPTOP))["memory"]
    )


# --- the plan ---


@pytest.mark.parametrize("framework", ["tensorflow", "torch", "python"])
@pytest.mark.parametrize("machine", [LAPTOP, SERVER, MACOS], ids=["laptop", "server", "macos"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_decision_has_one_sentence(framework: str, machine: Machine, workers: int) -> None:
    made = hardware.plan(RunSpec(framework=framework, workers=workers), machine)
    assert [r.what for r in made.reasons] == [
        "cores",
        "device",
        "all-reduce",
        "start",
        "memory",
        "network",
        "reality",
    ]
    for reason in made.reasons:
        assert reason.choice
        assert reason.why[0].isupper() or reason.why[0].isdigit()
        assert reason.why.endswith(".")
    assert set(made.devices) == {f"worker:{i}" for i in range(workers)}


def test_fewer_cores_than_workers_take_turns() -> None:
    spec = RunSpec(workers=4)
    assert hardware.plan(spec, LAPTOP).threads == 1
    turns = "2 cores for 4 workers: they take turns, so expect no speed-up from compute"
    assert why(spec, LAPTOP, "cores").why.startswith(turns)
    assert (
        why(RunSpec(workers=4, device_ms=20), LAPTOP, "cores").why
        == f"{turns}; device time is emulated."
    )


@pytest.mark.parametrize(
    ("workers", "threads", "says"),
    [(1, 2, "2 cores for 1 worker"), (2, 1, "each has 1 core to itself")],
)
def test_enough_cores_are_shared_out(workers: int, threads: int, says: str) -> None:
    spec = RunSpec(workers=workers)
    assert hardware.plan(spec, LAPTOP).threads == threads
    assert says in why(spec, LAPTOP, "cores").why


@pytest.mark.parametrize(
    ("framework", "backend"), [("tensorflow", "ring"), ("torch", "gloo"), ("python", "none")]
)
def test_without_gpus_each_framework_has_its_own_backend(framework: str, backend: str) -> None:
    made = hardware.plan(RunSpec(framework=framework), LAPTOP)
    assert (made.backend, made.device) == (backend, "cpu")
    assert set(made.devices.values()) == {"cpu"}


@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_a_gpu_for_every_worker_means_nccl(framework: str) -> None:
    made = hardware.plan(RunSpec(framework=framework, workers=4, ps=1), SERVER)
    assert (made.backend, made.device) == ("nccl", "gpu")
    assert made.devices == {
        "worker:0": "gpu:0",
        "worker:1": "gpu:1",
        "worker:2": "gpu:2",
        "worker:3": "gpu:3",
        "ps:0": "cpu",
    }


def test_a_gpu_that_is_not_used_is_explained() -> None:
    one = replace(SERVER, gpus=(H200,))
    cases = {
        "there is not one for each": (RunSpec(workers=2), one),
        "a build without CUDA": (
            RunSpec(framework="torch", workers=1),
            replace(one, cuda_frameworks=("tensorflow",)),
        ),
        "functions of your own": (RunSpec(framework="python", workers=1), SERVER),
    }
    for says, (spec, machine) in cases.items():
        made = hardware.plan(spec, machine)
        assert says in why(spec, machine, "device").why
        assert (made.device, set(made.devices.values())) == ("cpu", {"cpu"})
        assert made.backend != "nccl"


def test_one_worker_uses_one_gpu_and_needs_no_nccl() -> None:
    made = hardware.plan(RunSpec(strategy="one_device", workers=1), SERVER)
    assert made.devices == {"worker:0": "gpu:0"}
    assert made.backend == "ring"


def test_sixteen_bits_on_cpus_may_be_slower_and_the_plan_says_so() -> None:
    half = RunSpec(precision="float16")
    said = "Where a CPU has no instructions for float16, this is slower than float32."
    assert why(half, LAPTOP, "precision") == Reason("precision", "float16", said)
    for spec, machine in ((half, SERVER), (RunSpec(), LAPTOP)):
        assert "precision" not in [r.what for r in hardware.plan(spec, machine).reasons]


def test_without_fork_tasks_start_as_fresh_processes_and_the_reason_says_why() -> None:
    assert hardware.plan(RunSpec(), LAPTOP).start_method == "fork"
    assert hardware.plan(RunSpec(), MACOS).start_method == "spawn"
    assert why(RunSpec(), MACOS, "start").why.startswith("The libraries of macOS")


def test_whatever_is_imposed_makes_a_run_emulated() -> None:
    assert hardware.plan(RunSpec(), LAPTOP).reality == "measured"
    for spec in (RunSpec(device_ms=5), RunSpec(slow={"worker:1": 3})):
        assert hardware.plan(spec, LAPTOP).reality == "emulated"
    assert (
        "worker:1 is slowed to 3 times its time"
        in why(RunSpec(slow={"worker:1": 3}), LAPTOP, "reality").why
    )


def test_more_tasks_than_memory_allows_are_refused_with_both_numbers() -> None:
    with pytest.raises(
        SpecError,
        match=(
            r"tensorflow needs about \d+\.\d GB for 200 tasks, this machine has 4\.0 GB free: at"
            r" most \d+ workers"
        ),
    ) as caught:
        hardware.plan(RunSpec(workers=200), LAPTOP)
    assert (caught.value.field, caught.value.value) == ("workers", 200)
    with pytest.raises(SpecError, match="one worker fits"):
        hardware.plan(RunSpec(workers=1), replace(LAPTOP, memory=100 * 2**20))
    with pytest.raises(SpecError, match="or smaller sizes"):
        hardware.plan(RunSpec(workers=4, workload="wide"), LAPTOP, parameters=50_000_000)


def test_where_devices_of_one_process_do_not_fit_the_refusal_says_how_many_workers_would() -> None:
    def planned(devices: int) -> None:
        hardware.plan(
            RunSpec(
                strategy="mirrored",
                workers=1,
                replicas=devices,
            ),
            LAPTOP,
            parameters=20_000_000,
        )

    with pytest.raises(SpecError, match=r"32 devices .*: at most ") as caught:
        planned(32)
    assert (caught.value.field, caught.value.value) == ("workers", 32)
    most = int(caught.value.allowed.partition("at most ")[2].split()[0])
    planned(most)
    with pytest.raises(SpecError, match=f"at most {most} worker"):
        planned(most + 1)


@given(
    framework=st.sampled_from(["tensorflow", "torch", "python"]),
    ps=st.integers(0, 3),
    memory=st.integers(0, 40 * GB),
    parameters=st.integers(1_000, 50_000_000),
    workload=st.sampled_from(["digits", "wide"]),
    fork=st.booleans(),
)
def test_the_number_that_a_refusal_names_is_the_largest_that_runs(
    framework: str, ps: int, memory: int, parameters: int, workload: str, fork: bool
) -> None:
    machine = replace(
        LAPTOP, memory=memory, memory_total=64 * GB, fork=Capability(fork, "so it is")
    )

    def refusal(workers: int) -> str:
        spec = RunSpec(framework=framework, ps=ps, workload=workload, workers=workers)
        try:
            hardware.plan(spec, machine, parameters=parameters)
        except SpecError as error:
            return error.allowed
        return ""

    if not (text := refusal(256)):
        return
    most = int(text.partition("at most ")[2].split()[0]) if "at most" in text else 0
    assert most == 0 or not refusal(most)
    assert refusal(most + 1)


def fitting(spec: RunSpec, machine: Machine, warm: bool = False) -> int:
    """How many tasks a plan says that the free memory would hold."""
    reasons = {r.what: r.why for r in hardware.plan(spec, machine, warm=warm).reasons}
    return int(reasons["memory"].partition("would hold ")[2].split()[0])


def test_a_zygote_that_runs_already_is_not_counted_twice() -> None:
    assert fitting(RunSpec(), LAPTOP, warm=True) > fitting(RunSpec(), LAPTOP)
    # no fork, no zygote
    assert fitting(RunSpec(), MACOS, warm=True) == fitting(RunSpec(), MACOS)


def test_forked_tasks_need_less_memory_than_fresh_ones() -> None:
    for framework in ("tensorflow", "torch", "python"):
        spec = RunSpec(framework=framework)
        assert fitting(spec, LAPTOP) > fitting(spec, MACOS)
