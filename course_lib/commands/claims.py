"""`lockstep claims`: published results that the lessons rest on, carried out."""

import importlib
import math
import statistics
import sys
from types import ModuleType
from typing import Annotated, Any

import typer

from course_lib.commands.terminal import Json, dump, progress, say, show
from course_lib.course.answers import ROOT
from course_lib.errors import SpecError, Unavailable

PAGES = ROOT / "notebooks" / "claims"
SHARE = 0.95  # of the seeds for which a claim holds
Name = Annotated[str | None, typer.Argument(help="Only this one, with its source.")]
Seeds = Annotated[int, typer.Option(min=1, max=1000, help="How often, with as many seeds.")]


def names() -> list[str]:
    """The claims, each a page in `notebooks/claims/`. Raises Unavailable without that folder."""
    if not PAGES.is_dir():
        why = f"there is no folder {PAGES}: an installed package has no notebooks"
        raise Unavailable("the claims", why, "Clone the repository, and use `make lab` there.")
    return sorted(page.stem for page in PAGES.glob("*.py"))


def page_of(name: str) -> ModuleType:
    """The page of a claim. Raises SpecError if there is none."""
    if name not in names():
        raise SpecError.unknown("claim", name, names())
    if str(PAGES.parent) not in sys.path:
        sys.path.insert(0, str(PAGES.parent))  # pages import strategies of the course
    return importlib.import_module(f"claims.{name}")


def carried_out(name: str, seeds: int) -> dict[str, Any]:
    """Measure a claim and its broken variant, once for each seed. `confirmed`: it holds for 19 of
    20 seeds, and the broken variant fails for as many.
    """
    page = page_of(name)
    values = [float(page.measure(seed)) for seed in range(seeds)]
    others = [float(page.broken(seed)) for seed in range(seeds)]
    holds, fails = sum(map(page.holds, values)), seeds - sum(map(page.holds, others))
    return {
        "claim": name,
        "says": str(page.__doc__).partition("\n")[0],
        "published": page.PUBLISHED,
        "unit": page.UNIT,
        "measured": statistics.median(values) * page.TIMES,
        "holds": holds,
        "broken": str(page.broken.__doc__),
        "measured_broken": statistics.median(others) * page.TIMES,
        "fails": fails,
        "seeds": seeds,
        "confirmed": min(holds, fails) >= math.floor(SHARE * seeds),
    }


def claims(name: Name = None, seeds: Seeds = 1, as_json: Json = False) -> int:
    """Carry out published results, each beside a variant that must fail.

    The exit code is 0 if all are confirmed, 1 if not.
    """
    with progress() as shown:
        chosen = [name] if name else names()
        results = [carried_out(each, seeds) for each in shown.track(chosen, description="claims")]
    if as_json:
        dump(results)
    else:
        if name:
            say(page_of(name).__doc__)
        rows = [
            [
                f"{each['claim']}: {each['says']}",
                each["published"],
                f"{each['measured']:.3g} {each['unit']}; holds for {each['holds']} of {seeds}",
                f"{each['broken']} {each['measured_broken']:.3g}; fails for {each['fails']}"
                f" of {seeds}",
                "confirmed" if each["confirmed"] else "NOT CONFIRMED",
            ]
            for each in results
        ]
        show(["claim", "published", "measured", "broken on purpose", ""], rows, lines=True)
    return 0 if all(each["confirmed"] for each in results) else 1
