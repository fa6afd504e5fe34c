"""Pages and cards: HTML that needs no kernel and no network."""

import base64
import json
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from html import escape
from pathlib import Path

import anywidget

from course_lib.widgets.kit import REALITY, Markup, element, join, svg, unfold

COMMENT = re.compile(r"//|/\*.*\*/$")


def asset(*names: str) -> str:
    """The text of files below `widgets/`, one after the other: a script may be split into several.

    Indentation, empty lines and lines of comment are left out, because the text is sent to the
    browser with every widget.
    """
    texts = ((Path(__file__).parents[1] / name).read_text(encoding="utf-8") for name in names)
    lines = (line.lstrip() for text in texts for line in text.splitlines())
    return "\n".join(line for line in lines if line and not COMMENT.match(line)) + "\n"


TERMS: dict[str, str] = tomllib.loads(asset("kit/glossary.toml"))
"""The field's terms, each explained in one sentence."""


def glossary(texts: Iterable[str], realities: Iterable[str] = ()) -> str:
    """The terms in some texts with their explanations, as an HTML list that can be unfolded."""
    text = " ".join(texts)
    terms = {term: rf"(?i)(?<![\w-]){re.escape(term)}(?![\w-])" for term in TERMS}
    used = {term: TERMS[term] for term, pattern in terms.items() if re.search(pattern, text)}
    used |= {word: REALITY[word][2] for word in realities}
    if not used:
        return ""
    rows = [(element("dt", term), element("dd", used[term])) for term in sorted(used)]
    return unfold("Words used here", element("dl", rows), class_="ls-words")


def document(title: str, body: str, style: str = "") -> str:
    """A page with a body in HTML."""
    page = asset("kit/page.html")
    for name, part in {"TITLE": escape(title), "STYLE": style, "BODY": body}.items():
        page = page.replace(f"<!--{name}-->", part)
    return page


def paper(width: float, height: float) -> Markup:
    """The back of an SVG picture and the colours of what is on it, light or dark."""
    style = element("style", Markup(asset("kit/still.css")))
    return join((style, svg.rect(0, 0, width, height, class_="paper")))


class Card(ABC):
    """A picture in plain HTML without a script; it can fold, filter and be printed. It is shown in
    a notebook, on a page of its own, or as text.
    """

    title: str

    @abstractmethod
    def body(self) -> str:
        """The card's HTML, without its styles."""

    @abstractmethod
    def table(self) -> str:
        """The same facts as text."""

    def style(self) -> str:
        """Styles of this card only, besides those in `card.css`."""
        return ""

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return card(self.body(), self.style())

    def to_html(self, path: Path | str) -> Path:
        """Write a page with the same card, which needs no kernel and no network."""
        return save(path, document(self.title, self._repr_html_(), "body { max-width: 1240px; }"))


def card(body: str, style: str = "") -> str:
    """A body with the styles of cards and a `style` of its own."""
    for tag in ("summary", "select"):  # keep their keys: in JupyterLab, "b" would add a cell
        body = body.replace(f"<{tag}", f'<{tag} data-lm-suppress-shortcuts="true"')
    styles = asset("kit/theme.css", "kit/card.css") + style
    return f'<style>{styles}</style><div class="ls ls-card">{body}</div>'


def html(widget: anywidget.AnyWidget, title: str, text: str) -> str:
    """The page of a widget in its present state, with `text`, the same facts in words, below.

    There the widget's script finds `model.get("standalone")` true, and what it saves or sends is
    dropped.
    """
    inherited = {*anywidget.AnyWidget.class_trait_names(sync=True), "_anywidget_id", "_css", "_esm"}
    state = widget.get_state(sorted(set(widget.keys) - inherited)) | {"standalone": True}
    values = json.dumps(state, default=lambda data: {"$bytes": base64.b64encode(data).decode()})
    body = [
        element("h1", title),
        element("div", id="widget"),
        unfold("The same as text", element("pre", text), class_="same"),
        _script("state", values),
        _script("script", json.dumps(str(widget._esm))),
        f'<script type="module">\n{asset("kit/standalone.js")}</script>',
    ]
    return document(title, "\n".join(body), str(widget._css))


def save(path: Path | str, text: str) -> Path:
    """Write a page or a picture and return where it is."""
    path = Path(path)
    path.write_text(text, encoding="utf-8")
    return path


def _script(name: str, values: str) -> str:
    """JSON in a script element, which no text inside it can end."""
    safe = values.replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{safe}</script>'
