"""Plain text that several rooms print: aligned tables, and numbers in words."""

import math
import re
from collections.abc import Sequence
from itertools import zip_longest


def table(rows: Sequence[Sequence[str]], right: bool = False) -> str:
    """Rows of cells as lines of aligned columns, two spaces apart; a cell may hold several lines.

    `right`: all columns but the first are aligned to the right, as numbers are.
    """
    cells = ([cell.split("\n") for cell in row] for row in rows)
    lines = [line for row in cells for line in zip_longest(*row, fillvalue="")]
    texts = list[list[str]]()
    for column in zip(*lines, strict=True):
        width, side = max(map(len, column)), ">" if right and texts else "<"
        texts.append([f"{part:{side}{width}}" for part in column])
    return "\n".join("  ".join(line).rstrip() for line in zip(*texts, strict=True))


_NUMBERS = r"[-+\d\s.,:()\[\]{}eEjnaifTrulsFpot]"  # also nan, inf, True, 1j, np.float64(1.0)
_LONG = re.compile(rf"({_NUMBERS}{{30,60}}?\s){_NUMBERS}{{100,}}(\s{_NUMBERS}{{10,40}})")


def shortened(text: str, most: int) -> str:
    """A text with the first and the last numbers of each long array in it; of one that is longer
    than `most` even so, the beginning and the end.
    """
    text = _LONG.sub(r"\1...\2", text)
    return text if len(text) <= most else f"{text[: most // 3]} [...] {text[-most * 2 // 3 :]}"


def amount(nbytes: int) -> str:
    """A number of bytes for people: 3670016 is "3.5 MiB"."""
    power = next((i for i in (3, 2, 1) if nbytes >= 1024**i), 0)
    return f"{nbytes / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def count(number: int, noun: str) -> str:
    """A number of things: "1 worker", "3 workers"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def a(noun: str) -> str:
    """A noun, or the name of a type, with its article: "a list", "an int", "an ndarray"."""
    return f"{'an' if noun.startswith(('nd', *'aeioAEIO')) else 'a'} {noun}"


def kind_of(value: object) -> str:
    """Name what a function returned: "a list", or "nothing" for None."""
    return "nothing" if value is None else a(type(value).__name__)


def round_up(value: float, digits: Sequence[float] = (1, 2, 5, 10)) -> float:
    """The smallest round number that is not below `value`: one of 1, 2, 5, 10, 20, 50, ... (and
    0.5, 0.2, ...), or of other `digits` times a power of ten.
    """
    power = 10.0 ** math.floor(math.log10(value))
    return next(digit * power for digit in digits if digit * power >= value * (1 - 1e-9))
