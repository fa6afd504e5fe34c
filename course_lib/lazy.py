"""Names of a package that are looked up on first use, so that importing it stays quick and loads
only what is used.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def names(
    package: str, places: dict[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package: `places` maps each public name to its
    `module:name`.
    """

    def __getattr__(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = places[name].partition(":")
        return getattr(import_module(module), attribute)

    return __getattr__, lambda: sorted(places)
