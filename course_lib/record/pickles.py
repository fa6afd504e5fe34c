"""Pickles of a learner's functions and objects, which travel into the tasks of a run: as
cloudpickle's bytes.

A function of a notebook is pickled as what it is made of: its code, and the global names that it
uses with their values. So is one of a learner's own modules, which cloudpickle would only name: the
tasks import such a module anew, and would not see what has been set in it since, as by
`settings.WIDTH = 64`. They import it all the same, for what else that does.
"""

import contextlib
import copyreg
import dis
import functools
import importlib
import os
import pickle
import sys
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import cloudpickle.cloudpickle

# A class inside a function reads global names, such as those of annotations, with LOAD_NAME. As
# cloudpickle 3.1 does not look for that instruction, they would be missing in the tasks.
cloudpickle.cloudpickle.GLOBAL_OPS += (dis.opmap["LOAD_NAME"],)


def _code(code: CodeType) -> tuple[Any, ...]:
    """Pickle code with the name of its file, which tracebacks show, and which cloudpickle
    leaves out from 3.1.3 on.
    """
    make, parts = cloudpickle.cloudpickle._code_reduce(code)
    return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts)


cloudpickle.Pickler._dispatch_table[CodeType] = _code


def _cached(function: Any) -> str | tuple[Any, ...]:
    """Pickle a function with @cache: one of a notebook as what it is made of, as tasks do
    not have the notebook; any other by its name.
    """
    if cloudpickle.cloudpickle._lookup_module_and_qualname(function):
        return str(function.__qualname__)
    return _made_cached, (function.__wrapped__, function.cache_parameters())


def _made_cached(function: Callable[..., Any], how: dict[str, Any]) -> Any:
    return lru_cache(**how)(function)


copyreg.pickle(type(lru_cache(len)), _cached)


def dumps(value: Any) -> bytes:
    """A value as bytes. What cannot be pickled together with the values in a learner's modules,
    such as a lock, is pickled by the names there.
    """
    known = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    own = [each for name, each in [*sys.modules.items()] if name not in known and _own(each)]
    with contextlib.suppress(Exception), contextlib.ExitStack() as stack:
        for module in own:
            cloudpickle.register_pickle_by_value(module)
            stack.callback(cloudpickle.unregister_pickle_by_value, module)
        data = cloudpickle.dumps(value)
        # a function names its module, as a short string: its length, then its letters
        names = (module.__name__ for module in own)
        return pickle.dumps((data, [n for n in names if bytes([len(n)]) + n.encode() in data]))
    return pickle.dumps((cloudpickle.dumps(value), []))


def loads(data: bytes) -> Any:
    """The value of which `dumps` made these bytes."""
    content, names = pickle.loads(data)
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return pickle.loads(content)


def _own(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(module, ModuleType) and bool(file) and is_own(str(file).rpartition(os.sep)[0])


@functools.cache
def is_own(folder: str | Path) -> bool:
    """Tell whether a folder is a learner's: not that of Python, a package or ours."""
    path, ours = Path(folder).resolve(), Path(__file__).resolve().parents[1]
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    others = ours, sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib")
    inside = any(path.is_relative_to(each) for each in others)
    return path.is_dir() and path != ours.parent and not inside
