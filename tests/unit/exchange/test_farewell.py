"""How a rank leaves: what it has sent must arrive, also if that takes long."""

import socket
import threading
import time

import numpy as np

from course_lib.exchange.connection import Connection


def pair() -> tuple[Connection, Connection]:
    """Both ends of a far connection, with little room for what the other has not read."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        here = socket.socket()
        here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        here.connect(door.getsockname())
        there, _ = door.accept()
    there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    return Connection(0, 1, here, None), Connection(1, 0, there, None)


def test_what_is_on_its_way_when_a_rank_leaves_arrives_though_its_peer_says_something() -> None:
    mine, theirs = pair()
    piece = np.arange(1 << 18, dtype=np.uint8)
    theirs.offer([memoryview(piece)])
    theirs.leave()
    now = time.monotonic()
    leaving = threading.Thread(target=theirs.close, args=(now + 0.1, now + 30))
    leaving.start()
    time.sleep(0.5)  # as if it had been lost a few times
    mine.offer([])
    time.sleep(0.1)
    mine.hear()
    came = np.zeros_like(piece)
    views = [memoryview(came)]
    while not mine.take(views) and not mine.gone and time.monotonic() < now + 30:
        mine.wait(0.1)
    assert not mine.gone and (came == piece).all()
    mine.close(0, 0)
    leaving.join(30)
    assert not leaving.is_alive()


def test_a_rank_does_not_wait_for_one_that_reads_nothing_beyond_its_patience() -> None:
    mine, theirs = pair()
    theirs.offer([memoryview(bytes(1 << 18))])
    theirs.leave()
    begun = time.monotonic()
    theirs.close(begun, begun + 0.3)
    assert 0.3 <= time.monotonic() - begun < 10
    mine.close(0, 0)


def test_a_rank_whose_bytes_have_all_arrived_waits_for_no_more_than_the_farewell() -> None:
    mine, theirs = pair()
    theirs.leave()
    begun = time.monotonic()
    theirs.close(begun + 0.2, begun + 60)
    assert time.monotonic() - begun < 30
    mine.close(0, 0)
