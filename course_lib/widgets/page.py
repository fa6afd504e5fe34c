"""A widget as a page of its own: the same script in one HTML file that needs no kernel and no
network.
"""

from __future__ import annotations

import base64
import json
from html import escape
from pathlib import Path
from typing import Any

import anywidget

FOLDER = Path(__file__).parent


def asset(*names: str) -> str:
    """The text of files in this folder and below, one after the other: a widget's script may be cut
    into parts that read well on their own.

    Lines come without their indentation, and lines that are empty or a `//` comment not at all: the
    rest travels to the browser with every widget.
    """
    lines = (
        line.lstrip()
        for name in names
        for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()
    )
    return "\n".join(line for line in lines if line and not line.startswith("//")) + "\n"


def html(widget: anywidget.AnyWidget, title: str, text: str = "") -> str:
    """The page of a widget in its present state; `text`, the same facts in words, can be unfolded
    below it.

    The script finds `model.get("standalone")` true there, and nobody answers what it saves or
    sends.
    """
    own = sorted(
        set(widget.keys)
        - set(anywidget.AnyWidget.class_trait_names(sync=True))
        - {"_anywidget_id", "_css", "_esm"}
    )
    state = {name: _plain(value) for name, value in widget.get_state(own).items()} | {
        "standalone": True
    }
    words = (
        f"<details><summary>The same as text</summary><pre>{escape(text)}</pre></details>"
        if text
        else ""
    )
    parts = {
        "TITLE": escape(title),
        "STYLE": str(getattr(widget, "_css", "")),
        "STATE": _embedded(state),
        "SCRIPT": _embedded(str(widget._esm)),
        "WORDS": words,
    }
    page = asset("page.html")
    for name, part in parts.items():
        page = page.replace(f"<!--{name}-->", part)
    return page


def save(widget: anywidget.AnyWidget, path: Path | str, title: str, text: str = "") -> Path:
    """Write the page of a widget and return where it is."""
    path = Path(path)
    path.write_text(html(widget, title, text), encoding="utf-8")
    return path


def _plain(value: Any) -> Any:
    """Bytes as base64, at any depth; all else as it is."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def _embedded(value: Any) -> str:
    """JSON that can stand inside a script element."""
    return json.dumps(value).replace("<", "\\u003c")
