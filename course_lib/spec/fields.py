"""The parts of a spec: its fields, errors that name them, links, and jitter.

A factor (`slow`) makes every step of a task longer, always by as much. Real machines have hiccups:
another program, a collection of garbage, a lost packet. Jitter draws a delay for each task and
step:

    lognormal:0.5       the emulated device time times exp(0.5 z), z normal: its median stays
    exponential:20ms    20 ms more in the mean, often less, sometimes much more
    one_in:100:200ms    200 ms more in one step of a hundred, which one is left to chance

What is drawn depends on the run's seed, the task and the step, and on nothing else. So a run that
is repeated has the same delays, whatever the machine does, and so do all strategies in a race. A
worker that computes several pieces of one step, as a fast one under `parameter_server` does, has
the same delay in each.
"""

import functools
import math
import re
import typing
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from course_lib.errors import SpecError

FORMS = (
    "lognormal:SIGMA (up to 2), exponential:MEAN or one_in:STEPS:DELAY (times up to 10s), "
    "such as lognormal:0.5, exponential:20ms or one_in:100:200ms"
)
_NUMBER = r"(\d*\.?\d+)"
_TIME = rf"{_NUMBER}(ms|s)"
_STREAM = 4  # keeps these random numbers apart from others that are made from the same seed
_BLOCK = 256  # steps


def field(default: Any, title: str, allowed: str, **limits: Any) -> Any:
    """A field of a model: its title, and what is `allowed`, in words and as pydantic's `limits`."""
    return Field(default, title=title, description=allowed, **limits)


def whole(default: int | None, low: int, high: int, title: str) -> Any:
    """A field that is a whole number from `low` to `high`."""
    return field(default, title, f"a whole number from {low} to {high}", ge=low, le=high)


def number(default: float | None, high: int, title: str, unit: str, zero: bool = False) -> Any:
    """A field that is a number up to `high`, above 0 or, with `zero`, from 0."""
    low: dict[str, Any] = {"ge": 0} if zero else {"gt": 0}
    allowed = f"{unit}, from 0 to {high}" if zero else f"{unit}, above 0, at most {high}"
    return field(default, title, allowed, **low, le=high, allow_inf_nan=False)


def flag(default: bool, title: str) -> Any:
    """A field that is true or false."""
    return field(default, title, "true or false")


class Strict(BaseModel):
    """A frozen model that takes only its own fields. Raises `SpecError` for the first wrong one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise self._refusal(error) from None

    @classmethod
    def _refusal(cls, error: ValidationError) -> SpecError:
        """The first of pydantic's complaints as an error of ours."""
        first = error.errors(include_url=False)[0]
        cause = first.get("ctx", {}).get("error")
        name = str(first["loc"][0]) if first["loc"] else "spec"
        if isinstance(cause, SpecError):
            return cause
        if first["type"] == "extra_forbidden":
            return SpecError.unknown("field", name, cls.model_fields)
        kind = cls.model_fields[name]
        allowed = texts(kind.annotation)
        return SpecError.unknown(name, first["input"], allowed, str(kind.description))


def texts(kind: Any) -> list[str]:
    """The texts that a field of such a type may be set to, where only some are allowed."""
    if isinstance(kind, str):
        return [kind]
    return [text for part in typing.get_args(kind) for text in texts(part)]


def check_factor(factor: float) -> float:
    """Return a slow-down factor (1: full speed) if it is one, else raise `SpecError`."""
    if not (isinstance(factor, (int, float)) and 1 <= factor <= 1000):
        raise SpecError("factor", factor, "a factor from 1 (full speed) to 1000")
    return float(factor)


def parse_bytes(text: str | int) -> int:
    """`4MiB`, `64 KiB`, `1MB` or `100` as a number of bytes: KiB is 1024 bytes, KB 1000."""
    match = re.fullmatch(
        r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([kmg])(i)?)?b?\s*", str(text), re.IGNORECASE
    )
    if not match:
        raise SpecError("bytes", text, "a number of bytes, such as 4MiB, 64KiB or 1000")
    number, unit, binary = match.groups()
    size = Fraction(number) * (1024 if binary else 1000) ** " kmg".index((unit or " ").lower())
    if size.denominator != 1 or size >= 2**63:
        raise SpecError("bytes", text, "a whole number of bytes, less than 2**63")
    return int(size)


_FIGURE = r"\s*(-?\d*\.?\d+)?\s*"
_LINK = re.compile(rf"(?=.*\d){_FIGURE}(?:,{_FIGURE})?(?:,{_FIGURE})?")


class Link(Strict):
    """The link between a host and the switch that joins all hosts.

    `mbit`: megabits a second in each direction; None: no limit. `delay_ms`: the delay added to
    everything that leaves the host. `loss`: the share of packets that are lost in each direction.
    A topology's link with the same speed and delay is
    `collectives.AlphaBeta(0, 1 / link.bytes_per_second, link.delay)`; it loses nothing.
    """

    mbit: float | None = number(
        None, 100_000, "the link of each host, no limit if not given", "megabits a second"
    )
    delay_ms: float = number(0.0, 10_000, "the delay of each host's link", "milliseconds", True)
    loss: float = field(
        0.0, "what each host's link loses", "a share of packets, from 0, less than 1", ge=0, lt=1
    )

    @classmethod
    def of(cls, text: str) -> Self:
        """The link that is written as `50`, `50,2.5` or `50,2.5,0.01`: Mbit/s, ms and the share
        that is lost; what is left empty is as usual. Raises `SpecError` for other texts.
        """
        if not (match := _LINK.fullmatch(text)):
            form = "Mbit/s, ms of delay and the share that is lost, or the first of these"
            raise SpecError("link", text, f"{form}, such as 50 or 50,2.5,0.01")
        figures = zip(cls.model_fields, match.groups(), strict=True)
        return cls(**{name: float(figure) for name, figure in figures if figure})

    def check_lossless(self) -> None:
        """Raise `SpecError` if it loses packets, where a formula or the simulation needs it."""
        if self.loss:
            text = "formulas and simulation know no loss: measure it in a run, start(..., link=...)"
            raise SpecError("loss", self.loss, text)

    @property
    def bytes_per_second(self) -> float:
        """Bandwidth; infinity where there is no limit."""
        return float("inf") if self.mbit is None else self.mbit * 125_000

    @property
    def delay(self) -> float:
        """Seconds."""
        return self.delay_ms / 1000

    def __str__(self) -> str:
        rate = "any number of" if self.mbit is None else f"{self.mbit:g}"
        lost = f", {100 * self.loss:g} % lost" if self.loss else ""
        return f"{rate} Mbit/s, {self.delay_ms:g} ms{lost}"


def _one(link: object) -> object:
    """A link that is written as text or given as a dict. Python's own error for names that are no
    strings has no field.
    """
    if isinstance(link, dict) and not all(isinstance(name, str) for name in link):
        raise ValueError("mbit, delay_ms and loss are names")
    return Link.of(link) if isinstance(link, str) else link


def _by_host(given: object) -> object:
    """Links by host, which may be written as texts, `200,0.5` and `1=50`. One that is given by
    itself is that of `ALL` hosts.
    """
    if isinstance(given, list):
        parts = [str(text).rpartition("=") for text in given]
        return {host.strip() or ALL: link for host, _, link in parts}
    names = given.keys() if isinstance(given, dict) else ()
    one = isinstance(given, str | Link) or bool({*names} & Link.model_fields.keys())
    return {ALL: given} if one else given or {}


def by_name(given: object) -> object:
    """Values by name, which may be written as `worker:1=3,worker:2=4`, or as several such texts."""
    texts = given.split(",") if isinstance(given, str) else given
    if not (isinstance(texts, list) and all("=" in str(text) for text in texts)):
        return given
    parts = (str(text).rpartition("=") for text in texts)
    return {name.strip(): value.strip() for name, _, value in parts}


ALL: Final = "*"
ByName = BeforeValidator(by_name)
Host = Literal["*"] | Annotated[int, Field(ge=0)]
Links = Annotated[dict[Host, Annotated[Link, BeforeValidator(_one)]], BeforeValidator(_by_host)]


def _anywhere(path: Path) -> Path:
    """The path in a form that means the same wherever it is read."""
    try:
        return path.expanduser().resolve()
    except (OSError, RuntimeError) as error:  # a loop of links, ~nobody
        raise ValueError(str(error)) from None


AnyPath = Annotated[Path, AfterValidator(_anywhere)]


class Jitter(NamedTuple):
    """The delay of a task's steps: the device time times exp(`sigma` z), and in addition
    `mean` seconds times an exponential random number, and `delay` seconds with a `chance`.
    """

    sigma: float = 0.0
    mean: float = 0.0
    chance: float = 0.0
    delay: float = 0.0

    @staticmethod
    @functools.lru_cache
    def of(text: str) -> "Jitter":
        """The jitter that is written so; "" is none. Raises `SpecError` for any other text."""
        jitter = Jitter()
        if m := re.fullmatch(rf"lognormal:{_NUMBER}", text):
            jitter = Jitter(sigma=float(m[1]))
        elif m := re.fullmatch(rf"exponential:{_TIME}", text):
            jitter = Jitter(mean=seconds(m[1], m[2]))
        elif m := re.fullmatch(rf"one_in:0*([1-9]\d*):{_TIME}", text):
            jitter = Jitter(chance=1 / int(m[1]), delay=seconds(m[2], m[3]))
        most = jitter.sigma <= 2 and jitter.mean <= 10 and jitter.delay <= 10
        if text and not (most and (jitter.sigma or jitter.mean or jitter.delay)):
            raise SpecError("jitter", text, FORMS)
        return jitter

    def of_step(self, seed: int, task: str, step: int) -> tuple[float, float]:
        """Return what a step of a task gets: a factor for its device time, and seconds besides."""
        if not any(self):
            return 1.0, 0.0
        normal, exponential, uniform = _block(seed, task, step // _BLOCK)[step % _BLOCK].tolist()
        late = self.mean * exponential + self.delay * (uniform < self.chance)
        return math.exp(self.sigma * normal), late


STEADY = Jitter()


def check_jitter(text: object) -> str:
    """Return the text if it is a jitter, else raise `SpecError`."""
    if not (isinstance(text, str) and any(Jitter.of(text))):
        raise SpecError("jitter", text, FORMS)
    return text


@functools.lru_cache(maxsize=512)
def _block(seed: int, task: str, number: int) -> np.ndarray:
    """The random numbers of many steps, shape (steps, 3), as one by one they would take longer: a
    standard normal, a standard exponential, and one between 0 and 1. Each form of jitter uses
    another of them.
    """
    rng = np.random.default_rng([_STREAM, seed, number, *task.encode()])
    drawn = rng.standard_normal(_BLOCK), rng.standard_exponential(_BLOCK), rng.random(_BLOCK)
    return np.stack(drawn, axis=1)


def seconds(number: str, unit: str) -> float:
    """A time that is written as a number of `ms` or `s`."""
    return float(number) / (1000 if unit == "ms" else 1)


Delays = Annotated[str, AfterValidator(check_jitter)]
