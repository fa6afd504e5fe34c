"""The kinds of network that a run can have."""

from typing import Literal

Kind = Literal["hosts", "private", "loopback"]
"""`hosts`: each task has an address of its own, on one of several hosts. `private`: all tasks share
a loopback that is theirs alone. `loopback`: they share that of the machine."""

Imposer = Literal["kernel", "exchange"]
"""Who keeps messages to a link's rate, or delays them: the kernel all of them, or our own exchange
those that go through it.
"""
