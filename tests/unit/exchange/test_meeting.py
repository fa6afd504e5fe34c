"""Who may take part in an exchange over TCP."""

import os
import socket
from pathlib import Path

from course_lib.exchange.group import Meeting


def test_who_does_not_know_the_secret_is_not_let_in(tmp_path: Path) -> None:
    first, second = (Meeting(tmp_path, rank, (0, 1)) for rank in (0, 1))
    try:
        (door,) = first.doors
        for said in (b"", b"\0" * 20, os.urandom(20)):
            with socket.create_connection(door.getsockname()) as stranger:
                stranger.sendall(said)
                stranger.shutdown(socket.SHUT_WR)
                assert first.answer(door) is None
        with second.call(0) or socket.socket():
            found = first.answer(door)
            assert found and found[0] == 1
            found[1].close()
    finally:
        first.close()
        second.close()
