"""The field's terms, each explained in one sentence, for tooltips and for the list below a card."""

import re
import tomllib
from collections.abc import Iterable

from course_lib.widgets.kit import Markup, element, join
from course_lib.widgets.kit.page import asset
from course_lib.widgets.kit.palette import REALITY

TERMS: dict[str, str] = tomllib.loads(asset("kit/glossary.toml"))
# A term may begin a sentence; of two that begin alike, the longer one is meant.
_MEANING = TERMS | {term[:1].upper() + term[1:]: meaning for term, meaning in TERMS.items()}
_LONGEST_FIRST = sorted(map(re.escape, _MEANING), key=len, reverse=True)
_KNOWN = re.compile(rf"(?<![\w-])({'|'.join(_LONGEST_FIRST)})(?![\w-])")


def explained(text: str) -> Markup:
    """Text as HTML, in which the first use of each known term has its explanation as tooltip."""
    seen: set[str] = set()
    parts: list[str] = []
    for i, part in enumerate(_KNOWN.split(text)):  # every other part is a known term
        first = i % 2 and part.lower() not in seen
        parts.append(element("abbr", part, title=_MEANING[part]) if first else part)
        seen |= {part.lower()} if first else set()
    return join(parts)


def glossary(texts: Iterable[str], realities: Iterable[str] = ()) -> str:
    """The known terms in some texts with their explanations, as an HTML list that can be unfolded.
    It is for those who use no mouse, and so see no tooltips.
    """
    present = {term for text in texts for term in _KNOWN.findall(text)}
    used = {term: TERMS[term] for term in present if term in TERMS}
    used |= {word: REALITY[word][2] for word in realities}
    if not used:
        return ""
    rows = [
        (element("dt", term), element("dd", used[term])) for term in sorted(used, key=str.lower)
    ]
    summary = element("summary", "Words used here")
    return element("details", summary, element("dl", rows), class_="ls-words")
