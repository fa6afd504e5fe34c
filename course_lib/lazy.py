"""Names of a package that are looked up on first use, so that importing it loads only what is used;
and files of a package that are found by themselves.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
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


def modules(package: str) -> list[ModuleType]:
    """The modules of a package, in order of name: whoever adds a file need not name it anywhere."""
    path = import_module(package).__path__
    return [import_module(f"{package}.{found.name}") for found in pkgutil.iter_modules(path)]
