"""Pages and cards: HTML that needs no kernel and no network."""

import base64
import json
from abc import ABC, abstractmethod
from html import escape
from pathlib import Path

import anywidget

from course_lib.widgets.kit import Markup, element, join, svg

WIDGETS = Path(__file__).parents[1]


def asset(*names: str) -> str:
    """The text of files below `widgets/`, one after the other: a script may be split into several.

    Indentation, empty lines and `//` comment lines are left out, because the text is sent to the
    browser with every widget.
    """
    texts = ((WIDGETS / name).read_text(encoding="utf-8") for name in names)
    lines = (line.lstrip() for text in texts for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//")) + "\n"


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


def same_as_text(text: str) -> Markup:
    """A text table that can be unfolded below its picture."""
    return element(
        "details", element("summary", "The same as text"), element("pre", text), class_="same"
    )


class Card(ABC):
    """A picture in plain HTML without a script; it can fold, filter and be printed. It is shown in
    a notebook, on a page of its own, or as text.

    Every public class in a file of `widgets/cards/` is offered by `course_lib.widgets`.
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

    def _repr_html_(self) -> str:
        body = self.body()
        for tag in ("summary", "select"):  # keep their keys: in JupyterLab, "b" would add a cell
            body = body.replace(f"<{tag}", f'<{tag} data-lm-suppress-shortcuts="true"')
        return card(body, self.style())

    def to_html(self, path: Path | str) -> Path:
        """Write a page with the same card, which needs no kernel and no network."""
        narrow = "body { max-width: 1240px; }"
        return save(path, document(self.title, self._repr_html_(), narrow))


def card(body: str, style: str = "") -> str:
    """A body with the styles of cards and a `style` of its own."""
    styles = asset("kit/theme.css", "kit/card.css") + style
    return f'<style>{styles}</style><div class="ls ls-card">{body}</div>'


def html(widget: anywidget.AnyWidget, title: str, text: str) -> str:
    """The page of a widget in its present state, with `text`, the same facts in words, below.

    There the widget's script finds `model.get("standalone")` true, and what it saves or sends is
    dropped.
    """
    inherited = {*anywidget.AnyWidget.class_trait_names(sync=True), "_anywidget_id", "_css", "_esm"}
    state = widget.get_state(sorted(set(widget.keys) - inherited)) | {"standalone": True}
    body = [
        element("h1", title),
        element("div", id="widget"),
        same_as_text(text),
        _script("state", json.dumps(state, default=_base64)),
        _script("script", json.dumps(str(widget._esm))),
        f'<script type="module">\n{asset("kit/standalone.js")}</script>',
    ]
    return document(title, "\n".join(body), str(widget._css))


def save(path: Path | str, text: str) -> Path:
    """Write a page or a picture and return where it is."""
    path = Path(path)
    path.write_text(text, encoding="utf-8")
    return path


def _base64(value: bytes | memoryview) -> dict[str, str]:
    """Bytes as JSON, in the form that the page reads."""
    return {"$bytes": base64.b64encode(value).decode()}


def _script(name: str, values: str) -> str:
    """JSON in a script element, which no text inside it can end."""
    safe = values.replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{safe}</script>'
