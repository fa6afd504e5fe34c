"""Names of a package that are looked up on first use, so that importing it loads only what is used;
and files of a package that are found by themselves.
"""

import ast
import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package. Its public names are those that it imports as
    themselves (`from m import X as X`) under `if TYPE_CHECKING:`; type checkers and editors take
    these for public as well.
    """
    tree = ast.parse(Path(str(sys.modules[package].__file__)).read_text())
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    aliases = ((str(node.module), alias) for node in imports for alias in node.names)
    places = {alias.asname: (module, alias.name) for module, alias in aliases if alias.asname}

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return sorted(places)
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = places[name]
        return getattr(import_module(module), attribute)

    return __getattr__, lambda: sorted(places)


def modules(package: str) -> list[ModuleType]:
    """The modules of a package, in order of name: whoever adds a file need not name it anywhere."""
    path = import_module(package).__path__
    return [import_module(f"{package}.{module.name}") for module in pkgutil.iter_modules(path)]
