"""Messages over a connection arrive whole and in order, and nobody waits for whoever does not
read.
"""

import socket

import numpy as np
import pytest

from course_lib.exchange.messages import Peer, ready

LARGE = 1 << 22  # more than the system keeps for a socket


def pair() -> tuple[Peer, Peer]:
    a, b = socket.socketpair()
    return Peer("a", a), Peer("b", b)


def all_of(text: str, peer: Peer, other: Peer) -> np.ndarray:
    """The block of the next message, while the other end goes on sending."""
    for _ in range(10_000):
        ready([peer, other], 1.0)
        if (message := peer.receive()) is not None:
            assert message[0] == text
            return message[1]
    raise AssertionError("it never came whole")


@pytest.mark.parametrize("size", [0, 1, 1000, LARGE])
def test_a_message_comes_whole_whatever_its_size(size: int) -> None:
    here, there = pair()
    block = np.arange(size, dtype=np.uint8)
    half = size // 2
    here.send("first", [memoryview(block[:half]), memoryview(block[half:])])
    here.send("second")
    np.testing.assert_array_equal(all_of("first", there, here), block)
    assert len(all_of("second", there, here)) == 0
    assert there.receive() is None


def test_sending_to_whoever_does_not_read_does_not_wait() -> None:
    here, there = pair()
    here.send("first", [memoryview(bytes(LARGE))])
    assert here.sending
    assert len(all_of("first", there, here)) == LARGE
    assert not here.sending


def test_a_peer_that_is_gone_is_told_at_once_also_in_the_middle_of_a_message() -> None:
    here, there = pair()
    here.send("first", [memoryview(bytes(LARGE))])
    there.receive()
    here.sock.close()
    assert ready([there], 1.0) == [there]
    with pytest.raises(ConnectionError, match="b is gone"):
        while there.receive() is None:
            ready([there], 1.0)


def test_whoever_sends_to_a_peer_that_is_gone_hears_of_it_when_it_receives() -> None:
    here, there = pair()
    there.sock.close()
    here.send("first", [memoryview(bytes(LARGE))])
    assert not here.sending
    with pytest.raises(ConnectionError):
        here.receive()
