"""A prediction as a page: the reader chooses, and sees the result of the run beside the guess."""

import json
import math
from html import escape
from pathlib import Path

from course_lib.widgets import Predict
from course_lib.widgets.kit import page

HERE = Path(__file__).parent


def page_of(card: Predict) -> str:
    """The page of a card whose result is known."""
    named = card.result if isinstance(card.result, dict) else {"": card.result}
    state = {
        "choices": card.choices,
        "numbers": {
            name: {"low": low, "high": high, "unit": unit, "step": card.inputs[name].step}
            for name, (low, high, unit) in card.ranges.items()
        },
        "result": {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in named.items()
        },
        "note": card.note,
        "tempting": card.tempting,
    }
    values = json.dumps(state, default=float).replace("<", "\\u003c")
    script = (HERE / "predictions.js").read_text(encoding="utf-8")
    style = page.asset("kit/theme.css") + (HERE / "predictions.css").read_text(encoding="utf-8")
    body = (
        f'<form class="ls guess"><p><b>Predict.</b> {escape(card.question)}</p></form>'
        f'<script type="application/json" id="card">{values}</script>'
        f'<script type="module">{script}</script>'
    )
    return page.document("Predict", body, style)
