"""Whether this system lets us fork warm processes and make a private network, each with the reason
in words.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from course_lib.hardware.limits import read, safely
from course_lib.network import namespaces

LINUX = ("Linux", "WSL2")


@dataclass(frozen=True)
class Capability:
    """Whether something can be done here, `why` (or why not), and the `cure` if it cannot ("" if
    there is nothing to cure). `parts`: the parts of the kernel that a private network found.
    """

    ok: bool
    why: str
    cure: str = ""
    parts: tuple[str, ...] = ()


def warm_fork(system: str) -> Capability:
    """Whether tasks can be forked from a process that has imported the framework."""
    if system not in LINUX:
        threads = "start threads, and a process with threads cannot be forked safely"
        cure = "Tasks start as fresh processes instead; on Linux or WSL2 they would be forked."
        return Capability(False, f"the libraries of {system} {threads}", cure)
    if os.environ.get("LOCKSTEP_START") == "spawn":
        why = "LOCKSTEP_START=spawn asks for fresh processes"
        return Capability(False, why, "Unset LOCKSTEP_START.")
    return Capability(True, "tasks are copied from one process that has imported the framework")


_TRIAL = f"import runpy; runpy.run_path({namespaces.__file__!r}, run_name='__main__')"


def begin_trial(system: str) -> subprocess.Popen[str] | None:
    """Begin to try whether a private network can be made; `end_trial` waits for the answer.

    None where there is nothing to try.
    """
    if system not in LINUX:
        return None
    command, no = [sys.executable, "-I", "-S", "-c", _TRIAL], subprocess.DEVNULL
    begin = partial(subprocess.Popen, command, text=True, stdin=no, stderr=no)
    return safely(lambda: begin(stdout=subprocess.PIPE), None)


def end_trial(system: str, trial: subprocess.Popen[str] | None, seconds: float = 2.0) -> Capability:
    """Whether a private network can be made; waits at most `seconds` for the trial, and leaves no
    process behind.
    """
    if system not in LINUX:
        why = f"there are no network namespaces on {system}"
        return Capability(False, why, "Runs use loopback; Linux or WSL2 has them.")
    if trial is None:
        return refused("no process could be started to try it")
    try:
        answer = trial.communicate(timeout=seconds)[0].strip() or "the trial died"
    except subprocess.TimeoutExpired:
        answer = f"no answer within {seconds:g} s"
    finally:
        trial.kill()
        trial.communicate()
    said, _, parts = answer.partition("\n")
    if said != "ok":
        return refused(said)
    why = "a run has a network of its own, which nobody else can reach or see"
    return Capability(True, why, parts=tuple(parts.split()))


# What a private network offers -> the part of the kernel that it needs beside veth and bridge, what
# it means, and what happens without it.
_OFFERS = {
    "hosts": ("", "each task has an address of its own, and hosts are switches between them", ""),
    "rate": (
        "tbf",
        "the kernel's token bucket (tbf) holds links to their rate",
        "Our own exchange keeps to it; what frameworks send is not held back.",
    ),
    "delay": (
        "netem",
        "the kernel (netem) delays what goes over a link",
        "Our own exchange delays; what frameworks send is not.",
    ),
    "meter": (
        "",
        "the kernel counts what each task and each host sends and receives",
        "Bytes on the wire are not counted.",
    ),
}


def network_parts(can: Capability) -> dict[str, Capability]:
    """What a run's own network can have here, each with the reason: hosts, the rate of their links,
    their delay, and the meter.
    """
    if not can.ok:
        one = "Workers on several hosts share one; ours talk over TCP between them."
        cures = {name: cure for name, (_, _, cure) in _OFFERS.items()} | {"hosts": one}
        why = "there is no private network"
        return {name: Capability(False, why, cure) for name, cure in cures.items()}
    found = {}
    for name, (need, why, cure) in _OFFERS.items():
        needs = filter(None, ("veth", "bridge", need))
        missing = " or ".join(part for part in needs if part not in can.parts)
        lacks = Capability(False, f"this kernel has no {missing}", cure)
        found[name] = lacks if missing else Capability(True, why)
    return found


def refused(answer: str, root: Path = Path("/")) -> Capability:
    """Why there is no private network: the kernel's `answer`, or the setting under `root` that is
    behind it.
    """
    apparmor = "kernel/apparmor_restrict_unprivileged_userns"
    for setting, bad, good, who in (
        (apparmor, "1", "0", "AppArmor restricts user namespaces here"),
        (
            "kernel/unprivileged_userns_clone",
            "0",
            "1",
            "this kernel keeps user namespaces for root",
        ),
        ("user/max_user_namespaces", "0", "10000", "no user namespaces are allowed here"),
    ):
        if read(root / "proc/sys" / setting) == bad:
            name = setting.replace("/", ".")
            cure = f"Runs use loopback; to allow it: sudo sysctl -w {name}={good}"
            return Capability(False, f"{who} ({name}={bad})", cure)
    inside = (root / ".dockerenv").exists() or "KUBERNETES_SERVICE_HOST" in os.environ
    who = "this container's security profile" if inside else "this system"
    why = f"{who} does not let us make a network namespace ({answer})"
    return Capability(False, why, "Runs use loopback.")
