"""Card: a picture in plain HTML, which needs no kernel and no script, folds, filters and prints.

Every public class in a file of `widgets/cards/` is offered by `course_lib.widgets`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from course_lib.widgets.kit import page


class Card(ABC):
    """Something that shows itself in a notebook as HTML, on a page of its own, and as text."""

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
        styles = page.asset("kit/theme.css", "kit/card.css") + self.style()
        return f'<style>{styles}</style><div class="ls ls-card">{_own_keys(self.body())}</div>'

    def to_html(self, path: Path | str) -> Path:
        """Write a page with the same card, which needs no kernel and no network."""
        narrow = "body { max-width: 1240px; }"
        return page.save(path, page.document(self.title, self._repr_html_(), narrow))


def _own_keys(body: str) -> str:
    """Elements that can have the focus keep their keys: in JupyterLab, "b" would add a cell."""
    for tag in ("summary", "select"):
        body = body.replace(f"<{tag}", f'<{tag} data-lm-suppress-shortcuts="true"')
    return body
