"""Network namespaces of Linux. A namespace has interfaces, addresses and ports of its own; a
process outside can neither reach nor see what listens there. Only processes and file descriptors
keep a namespace alive: when they are gone, however they ended, it is gone too.

Run as a program, this file tries what the system allows, which only a process of its own can do, as
it cannot be undone. It prints "ok" and the parts of the kernel that are there, or why there is no
private network. With arguments, it becomes another program in a namespace that there is:
`PID FD COMMAND...`, see `join`. It imports nothing of this library, so that it takes no longer than
Python's start.
Sources: network_namespaces(7), user_namespaces(7), and for `lose` linux/netfilter/nf_tables.h.
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

LINKS, QDISCS, NFTABLES = ("veth", "bridge"), ("tbf", "netem"), "nftables"
# a request that wants an answer and makes something that is not there yet
_NEWLINK, _NEWQDISC, _NEW = 16, 36, 0x605
_LINKINFO, _KIND, _ROOT = 18, 1, 0xFFFFFFFF
_LOOPBACK = 1

# nftables: messages, of which the kernel takes all between begin and end or none, and numbers in
# them. Attributes of each kind are numbered from 1.
_NETFILTER, _NFTABLES, _NETDEV = 12, 10, 5
_BEGIN, _END = 16, 17
_NEWTABLE, _DELTABLE, _NEWCHAIN, _NEWRULE = (_NFTABLES << 8 | kind for kind in (0, 2, 3, 6))
_ADD = 0x401  # a request that makes something, or changes it
_VERDICT, _REGISTER, _RANDOM, _LESS, _DROP = 0, 1, 1, 2, 0


def make_private() -> None:
    """Move this process, and what it will fork, into a network namespace of its own, in which there
    is only loopback.

    A user who may not do that gets a user namespace as well, and keeps user and group in it; that
    takes a process with one thread. Raises `OSError` where the system refuses.
    """
    uid, gid = os.getuid(), os.getgid()
    try:
        _call("unshare", _NEWNET)
    except PermissionError:
        _call("unshare", _NEWUSER | _NEWNET)
        maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
        for name, text in maps.items():
            Path(f"/proc/self/{name}").write_text(text)
    bring_up("lo")


def another() -> int:
    """Move this process into a new namespace, in which there is only loopback, and return a
    descriptor of that.
    """
    _call("unshare", _NEWNET)
    bring_up("lo")
    return current()


def current() -> int:
    """A descriptor of the namespace that this process is in."""
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter(fd: int) -> None:
    """Move this process, and what it will fork, into the namespace that `fd` is a descriptor of."""
    _call("setns", fd, _NEWNET)


def join(pid: int, fd: int) -> None:
    """Move this process, which must have one thread, into the namespace that another process of
    this user has as its descriptor `fd`.
    """
    user, net = (os.open(f"/proc/{pid}/{name}", os.O_RDONLY) for name in ("ns/user", f"fd/{fd}"))
    if os.fstat(user).st_ino != Path("/proc/self/ns/user").stat().st_ino:
        _call("setns", user, _NEWUSER)
    enter(net)
    os.close(user)
    os.close(net)


def bring_up(interface: str) -> None:
    """Switch an interface of this namespace on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh22x", interface.encode(), _IFF_UP))


def _call(name: str, *arguments: int) -> None:
    """Call a function of the C library; Python has these two from 3.12 on."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def parts() -> list[str]:
    """The kinds of interface and of queueing discipline that the kernel has, and nftables if it
    has what `lose` needs, found by making them in the namespace that this process is in.
    """
    known = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        for kind in LINKS:
            info = bytes(16) + _attribute(_LINKINFO, _attribute(_KIND, kind))
            known += [kind] if _ask(kernel, _message(_NEWLINK, _NEW, info)) == 0 else []
        # without its settings the kernel makes none; its error tells whether it knows the kind
        for kind in QDISCS:
            info = struct.pack("4xiIII", _LOOPBACK, 0, _ROOT, 0) + _attribute(_KIND, kind)
            known += [kind] if _ask(kernel, _message(_NEWQDISC, _NEW, info)) != -2 else []
    with contextlib.suppress(OSError):
        lose("trial", ["lo"], 0.5)
        known.append(NFTABLES)
    return known


def lose(name: str, interfaces: Sequence[str], share: float) -> None:
    """Have the kernel drop this share of the packets that come in at interfaces of this namespace,
    in place of what was last said under this name. Raises `OSError`; nothing has changed then.

    A number of 32 bits is drawn for each packet, which is dropped if that is below the share's. All
    bits are random, so it does not matter that a comparison takes them for big-endian.
    """
    table, chain = _attribute(1, name), "loss"
    messages = [(_BEGIN, b""), (_NEWTABLE, table), (_DELTABLE, table)]  # what it may have said
    if share:
        devices = _attribute(4, *(_attribute(1, interface) for interface in interfaces))
        ingress = _attribute(4, _attribute(1, 0), _attribute(2, 0), devices)  # hook and priority
        rule = (
            _expression("numgen", _REGISTER, 2**32 - 1, _RANDOM),
            _expression("cmp", _REGISTER, _LESS, _attribute(1, int(share * 2**32))),
            _expression("immediate", _VERDICT, _attribute(2, _attribute(1, _DROP))),
        )
        messages += [
            (_NEWTABLE, table),
            (_NEWCHAIN, table + _attribute(3, chain) + ingress + _attribute(7, "filter")),
            (_NEWRULE, table + _attribute(2, chain) + _attribute(4, *rule)),
        ]
    head = struct.pack(">BBH", _NETDEV, 0, _NFTABLES)
    batch = [_message(kind, _ADD, head + body) for kind, body in (*messages, (_END, b""))]
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER)
    with kernel, contextlib.suppress(BlockingIOError):  # it answers at once, if it refuses
        number = -_ask(kernel, *batch, flags=socket.MSG_DONTWAIT)
        raise OSError(number, f"nftables: {os.strerror(number)}")


def _ask(kernel: socket.socket, *messages: bytes, flags: int = 0) -> int:
    """The kernel's first answer: 0, or the negative of an errno."""
    kernel.sendall(b"".join(messages))
    return int(struct.unpack_from("i", kernel.recv(65536, flags), 16)[0])


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0) + body


def _attribute(kind: int, *values: bytes | str | int) -> bytes:
    """An attribute: a text, a number as nftables has them, or attributes in it."""
    value = b"".join(map(_packed, values))
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _packed(value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return value.to_bytes(4, "big")
    return value.encode() + b"\0" if isinstance(value, str) else value


def _expression(name: str, *values: bytes | int) -> bytes:
    """A part of a rule of nftables, with its first attributes."""
    inner = (_attribute(kind, value) for kind, value in enumerate(values, 1))
    return _attribute(1, _attribute(1, name), _attribute(2, *inner))


if __name__ == "__main__":
    if sys.argv[1:]:
        join(int(sys.argv[1]), int(sys.argv[2]))
        os.execvp(sys.argv[3], sys.argv[3:])
    try:
        make_private()
        print("ok")
        print(*parts())
    except OSError as error:
        print(os.strerror(error.errno or 0))
