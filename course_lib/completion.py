"""What IPython completes between quotes in `start`, `race`, `allreduce` and their like: names of
strategies and algorithms, and the values that a field of `RunSpec` allows. The names of fields it
finds in their signatures.
"""

import itertools
import re
import sys
import typing
from collections.abc import Iterator
from typing import Any

from course_lib import workloads
from course_lib.collectives import ALGORITHMS
from course_lib.spec import NATIVE, RunSpec
from course_lib.strategies.catalog import STRATEGIES

CALL = re.compile(r"\b(start|race|machine_card|RunSpec|allreduce|compare|stage|AllReduceStage)\(")
REDUCE = ("allreduce", "compare", "stage", "AllReduceStage")  # which take names of algorithms
FIELD = re.compile(r"""(\w+)["']?\s*[=:]\s*["'](\w*)$""")
NAME = re.compile(r"""[(,[]\s*["'](\w*)$""")


def values(code: str) -> list[str]:
    """What may stand at the end of this code, where quotes are open in a call that takes fields."""
    *_, call, inside = ["", *CALL.split(code)]
    depths = itertools.accumulate((c == "(") - (c == ")") for c in inside)
    if not call or min(depths, default=0) < 0:  # the call is closed
        return []
    if found := FIELD.search(code):
        names = allowed(found[1])
    elif found := NAME.search(code):
        names = list(ALGORITHMS if call in REDUCE else STRATEGIES)
    return [name for name in names if name.startswith(found[found.re.groups])] if found else []


def allowed(field: str) -> list[str]:
    """The texts that a field may be set to, if they can be listed."""
    listed = {
        "strategy": STRATEGIES,
        "all_reduce": [NATIVE, *ALGORITHMS],
        "workload": [*workloads.WORKLOADS, *workloads.OWN],
    }
    if field in listed:
        return list(listed[field])
    return list(_texts(typing.get_type_hints(RunSpec).get(field)))


def _texts(kind: Any) -> Iterator[str]:
    for part in typing.get_args(kind):
        if isinstance(part, str):
            yield part
        else:
            yield from _texts(part)


def offer() -> None:
    """Have the running IPython complete them; without one, nothing."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or any(map(_is_ours, shell.Completer.custom_matchers)):
        return
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher(identifier="lockstep")
    def lockstep(context: Any) -> Any:
        lines = context.full_text.split("\n")[: context.cursor_line]
        found = values("\n".join([*lines, context.text_until_cursor]))
        offered = [SimpleCompletion(text=value, type="value") for value in found]
        return {"completions": offered, "suppress": bool(found)}

    shell.Completer.custom_matchers.append(lockstep)


def _is_ours(matcher: Any) -> bool:
    return getattr(matcher, "matcher_identifier", "") == "lockstep"
