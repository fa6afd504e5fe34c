"""The network of a run, made in the process that will be the parent of all its tasks."""

from __future__ import annotations

from course_lib.errors import Unavailable
from course_lib.network import namespaces
from course_lib.network.hosts import Hosts
from course_lib.record.rundir import RunFacts
from course_lib.spec import RunSpec


def build(spec: RunSpec, facts: RunFacts) -> Hosts | None:
    """Move this process into the network that was planned for a run; the hosts, if it has some.

    Raises `Unavailable` where the system refuses now what it allowed before.
    """
    if facts.network == "loopback":
        return None
    try:
        namespaces.make_private()
        if facts.network == "private":
            return None
        links = {host: spec.link_of(host) for host in spec.all_hosts}
        return Hosts(spec.places, links, facts.rate == "kernel", facts.delay == "kernel")
    except Exception as error:  # pyroute2 has errors of its own besides OSError
        cure = "Set LOCKSTEP_NETWORK=loopback to do without, or run fewer clusters at a time."
        raise Unavailable(
            "a network of the run's own", f"the system refuses it now ({error})", cure
        ) from error
