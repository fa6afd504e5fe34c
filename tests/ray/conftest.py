"""A Ray cluster of three nodes on this machine, as `lockstep cluster up` makes it."""

from collections.abc import Iterator

import pytest

from course_lib.engines.ray import raylets


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of the cluster."""
    there = raylets.up(nodes=3, cpus=8, gpus=2)
    try:
        raylets.meant(there.address)  # before any test loads Ray
        yield there.address
    finally:
        import ray  # not before the cluster is up: it reads the token when it is loaded

        ray.shutdown()
        there.end()
