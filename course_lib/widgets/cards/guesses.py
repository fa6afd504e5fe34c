"""A lesson's guesses beside the results, as a card for its end."""

from course_lib import text
from course_lib.widgets.cards.predict import ASKED
from course_lib.widgets.kit import element, join, page

HEADS = "question", "your guess", "result", "how near"


class Guesses(page.Card):
    """A card of all questions that this kernel has asked, in their order: guess, result, and how
    near they are.
    """

    title = "Your guesses"

    def body(self) -> str:
        if not ASKED:
            return self.table()
        rows = [element("tr", [element("th", each, scope="col") for each in HEADS])]
        for *cells, how in (card.row() for card in ASKED.values()):
            near = element("td", how, class_="solved" if how in ("right", "near") else "quiet")
            rows.append(element("tr", [element("td", each) for each in cells], near))
        parts = element("thead", rows[0]), element("tbody", rows[1:])
        return join([element("h3", self.title), element("table", *parts)])

    def table(self) -> str:
        rows = [card.row() for card in ASKED.values()]
        return text.table([HEADS, *rows]) if rows else "No question was asked in this kernel yet."

    def style(self) -> str:
        return page.asset("cards/verdict.css")
