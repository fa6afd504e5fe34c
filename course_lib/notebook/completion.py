"""What IPython completes between quotes in `start`, `race`, `allreduce` and their like: names of
strategies and algorithms, and the values that a field of `RunSpec` allows. The names of fields it
finds in their signatures.
"""

import itertools
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

Names = Callable[[str, str], Iterable[str]]
"""The names that a call takes for a field, or, where the field is "", in its place."""
CALL = re.compile(r"\b(start|race|machine_card|RunSpec|allreduce|compare|stage|AllReduceStage)\(")
FIELD = re.compile(r"""(\w+)["']?\s*[=:]\s*["'](\w*)$""")
NAME = re.compile(r"""[(,[]\s*["'](\w*)$""")


def values(code: str, names: Names) -> list[str]:
    """What may stand at the end of this code, where quotes are open in a call that takes fields."""
    *_, call, inside = ["", *CALL.split(code)]
    depths = itertools.accumulate((c == "(") - (c == ")") for c in inside)
    if not call or min(depths, default=0) < 0:  # the call is closed
        return []
    if found := FIELD.search(code):
        field, begun = found.groups()
    elif found := NAME.search(code):
        field, begun = "", found[1]
    else:
        return []
    return [name for name in names(call, field) if name.startswith(begun)]


def offer(names: Names) -> None:
    """Have the running IPython complete them; without one, nothing."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or any(map(_is_ours, shell.Completer.custom_matchers)):
        return
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher(identifier="lockstep")
    def lockstep(context: Any) -> Any:
        lines = context.full_text.split("\n")[: context.cursor_line]
        found = values("\n".join([*lines, context.text_until_cursor]), names)
        offered = [SimpleCompletion(text=value, type="value") for value in found]
        return {"completions": offered, "suppress": bool(found)}

    shell.Completer.custom_matchers.append(lockstep)


def _is_ours(matcher: Any) -> bool:
    return getattr(matcher, "matcher_identifier", "") == "lockstep"
