"""What a system lets us do or refuses: to fork warm processes, to make a private network. Each with the reason in words."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from course_lib.hardware.limits import read, safely

LINUX = ("Linux", "WSL2")


@dataclass(frozen=True)
class Capability:
    """Whether something can be had here, `why` (or why not), and the `cure` where it cannot ("" where none is needed)."""

    ok: bool
    why: str
    cure: str = ""


def warm_fork(system: str) -> Capability:
    """Whether tasks can be forked from a process that has imported the framework."""
    if system not in LINUX:
        why = f"the libraries of {system} start threads, and a process with threads cannot be forked safely"
        return Capability(False, why, "Tasks start as fresh processes instead; on Linux or WSL2 they would be forked.")
    if os.environ.get("LOCKSTEP_START") == "spawn":
        return Capability(False, "LOCKSTEP_START=spawn asks for fresh processes", "Unset LOCKSTEP_START.")
    return Capability(True, "tasks are copied from one process that has imported the framework")


# Tried in a process of its own, as it cannot be undone. A namespace in which nothing may be set up is of no use, so its loopback is brought up too.
_TRIAL = """
import ctypes, fcntl, os, socket, struct
NEWUSER, NEWNET, SIOCSIFFLAGS, IFF_UP = 0x10000000, 0x40000000, 0x8914, 1
libc, uid, gid = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
try:
    if uid != 0 or libc.unshare(NEWNET):
        if libc.unshare(NEWUSER | NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        for name, text in ("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1"):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    fcntl.ioctl(socket.socket(), SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
    print("ok")
except OSError as error:
    print(os.strerror(error.errno))
"""


def begin_trial(system: str) -> subprocess.Popen[str] | None:
    """Begin to try whether a private network can be made; `end_trial` waits for the answer. None where there is nothing to try."""
    if system not in LINUX:
        return None
    command = [sys.executable, "-I", "-S", "-c", _TRIAL]
    return safely(
        lambda: subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True), None
    )


def end_trial(system: str, trial: subprocess.Popen[str] | None, seconds: float = 2.0) -> Capability:
    """Whether a private network can be made; waits at most `seconds` for the trial, and leaves no process behind."""
    if system not in LINUX:
        return Capability(False, f"there are no network namespaces on {system}", "Runs use loopback; Linux or WSL2 has them.")
    if trial is None:
        return refused("no process could be started to try it")
    try:
        answer = trial.communicate(timeout=seconds)[0].strip() or "the trial died"
    except subprocess.TimeoutExpired:
        answer = f"no answer within {seconds:g} s"
    finally:
        trial.kill()
        trial.communicate()
    if answer == "ok":
        return Capability(True, "hosts and links of its own can be made for a run, seen by nobody else")
    return refused(answer)


def refused(answer: str, root: Path = Path("/")) -> Capability:
    """The refusal of a private network in words: `answer` is the kernel's, the settings under `root` often tell more."""
    for setting, bad, good, who in (
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0", "AppArmor restricts user namespaces here"),
        ("kernel/unprivileged_userns_clone", "0", "1", "this kernel keeps user namespaces for root"),
        ("user/max_user_namespaces", "0", "10000", "no user namespaces are allowed here"),
    ):
        if read(root / "proc/sys" / setting) == bad:
            name = setting.replace("/", ".")
            return Capability(False, f"{who} ({name}={bad})", f"Runs use loopback; to allow it: sudo sysctl -w {name}={good}")
    inside = (root / ".dockerenv").exists() or "KUBERNETES_SERVICE_HOST" in os.environ
    who = "this container's security profile" if inside else "this system"
    return Capability(False, f"{who} does not let us make a network namespace ({answer})", "Runs use loopback.")
