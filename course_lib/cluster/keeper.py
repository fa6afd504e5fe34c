"""The keeper: a process above each supervisor, which ends what that leaves if it dies before its
time.

    notebook kernel --- zygote --- keeper --- supervisor --- tasks --- what they have started

A supervisor ends all processes of its run before it exits. If it is killed, its tasks die with it,
as it holds their lifelines; what they have started does not. So its parent is a process that does
nothing but wait for it. On Linux both are subreapers: a process whose parent has ended becomes
their child, even if it has left the session (`setsid`) or its parent ended at once (double fork).
A namespace of process ids would hold the same processes together, but tasks would then see other
ids than `/proc` and psutil do: in many containers `/proc` cannot be mounted for a new namespace.
Source: PR_SET_CHILD_SUBREAPER(2const).
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable

import psutil

from course_lib.cluster import pipes
from course_lib.cluster.pipes import Channel
from course_lib.record.rundir import RunDir

_PR_SET_CHILD_SUBREAPER = 36


def keep(kernel: Channel, files: RunDir, lifeline: int | None) -> None:
    """Go on in a child of this process, as the supervisor of a run, or its node."""

    def lost(status: int) -> None:
        files.clear(orphaned=kernel.gone)
        kernel.send(lost=os.waitstatus_to_exitcode(status))

    watch_over(lifeline, lost)


def watch_over(lifeline: int | None, lost: Callable[[int], None]) -> None:
    """Go on in a child of this process. The process itself becomes its keeper, and never returns;
    if the child does not end in peace, what it leaves is ended, and `lost` is told its status.

    The keeper lets the child go on if somebody stops it, and is itself woken by the end of the
    kernel process (its `lifeline`), so neither outlives that. Does nothing where there are no
    subreapers. Raises `OSError` if the system allows no more processes.
    """
    if sys.platform != "linux":
        return
    descriptor = pipes.hold(lifeline, signal.SIGCONT) if lifeline is not None else None
    pipes.release(lifeline)
    _adopt_orphans()
    if not (supervisor := os.fork()):
        pipes.release(descriptor)
        _adopt_orphans()
        return
    for polite in (signal.SIGHUP, signal.SIGTERM):  # to the whole group: the supervisor ends first
        signal.signal(polite, signal.SIG_IGN)
    while os.WIFSTOPPED(status := os.waitpid(supervisor, os.WUNTRACED)[1]):
        os.kill(supervisor, signal.SIGCONT)
    end_descendants()
    if status:
        lost(status)
    os._exit(0)


def _adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> None:
    """Kill all descendants of this process; look again, since one may have been born meanwhile."""
    for _ in range(20):
        children = [p for p in psutil.Process().children(recursive=True) if lives(p)]
        if not children:
            return
        for child in children:
            with contextlib.suppress(psutil.Error):  # gone, or not ours to kill: the others are
                child.kill()
        psutil.wait_procs(children, timeout=0.1)


def lives(process: psutil.Process) -> bool:
    """Return whether a process is there, and not a zombie."""
    try:
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
