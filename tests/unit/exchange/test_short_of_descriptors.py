"""A rank that has no file descriptors left says so itself: its peers are not gone."""

import errno
import gc
import os
import resource
import socket

import pytest

from course_lib.exchange.connection import Connection
from course_lib.exchange.memory import Counters


def refusing(number: int) -> object:
    def send_fds(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return send_fds


def test_what_this_process_may_not_send_is_no_sign_that_the_peer_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, _theirs = socket.socketpair()
    monkeypatch.setattr(socket, "send_fds", refusing(errno.ETOOMANYREFS))
    with pytest.raises(OSError, match="Too many references"):
        Connection(0, 1, mine, Counters(2))
    monkeypatch.setattr(socket, "send_fds", refusing(errno.EPIPE))
    assert Connection(0, 1, mine, Counters(2)).gone


def test_a_descriptor_that_this_process_has_no_room_for_is_said_to_be_missing() -> None:
    mine, theirs = socket.socketpair()
    here, _there = Connection(0, 1, mine, Counters(2)), Connection(1, 0, theirs, Counters(2))
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (mine.fileno() + 1, usual[1]))
    blockers = []
    gc.collect()  # which would make room later
    try:
        while True:
            blockers.append(os.dup(0))
    except OSError:
        pass
    try:
        with pytest.raises(OSError, match="Too many open files"):
            here.hear()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        for fd in blockers:
            os.close(fd)
    assert not here.gone
