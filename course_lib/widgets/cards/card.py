"""Cards: pictures that are plain HTML.

They need no kernel once they are shown, fold and filter without a script, and print.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from html import escape
from pathlib import Path

from course_lib.widgets import page


class Card(ABC):
    """Something that shows itself in a notebook as HTML, on a page of its own (`to_html`), and as
    text (`table`).
    """

    title: str

    @abstractmethod
    def body(self) -> str:
        """The card's HTML, without its styles."""

    @abstractmethod
    def table(self) -> str:
        """The same facts as text."""

    def style(self) -> str:
        """Styles of this card's own, besides those of `card.css`."""
        return ""

    def _repr_html_(self) -> str:
        styles = page.asset("theme.css", "cards/card.css") + self.style()
        return f'<style>{styles}</style><div class="ls ls-card">{_own_keys(self.body())}</div>'

    def to_html(self, path: Path | str) -> Path:
        """Write a page with the same card, which needs no kernel and no network."""
        path = Path(path)
        head = (
            '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,"><title>{escape(self.title)}</title>'
        )
        look = "body { margin: 0 auto; padding: 12px 20px; max-width: 1240px; background: #fff; }"
        look += "@media (prefers-color-scheme: dark) { body { background: #15181c; } }"
        text = f'<!doctype html><html lang="en"><head>{head}<style>{look}</style></head><body>{self._repr_html_()}</body></html>'
        path.write_text(text, encoding="utf-8")
        return path


def _own_keys(body: str) -> str:
    """What can have the focus keeps its keys: in JupyterLab b would add a cell, for one."""
    for tag in ("summary", "select"):
        body = body.replace(f"<{tag}", f'<{tag} data-lm-suppress-shortcuts="true"')
    return body
