"""Build the course as a static site: `python notebooks/book/build.py`.

Lessons run first, two at a time; then Sphinx makes the pages. What has not changed is taken from
the build before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pages
from runs import HERE, ROOT, Kept, run_all, slug
from sphinx.cmd.build import build_main

CONF = HERE / "conf.py"


def assemble(source: Path, kept: dict[Path, Kept]) -> None:
    """Put together what Sphinx reads. A file that stays the same is not written: its page stays."""
    texts = {**pages.sources(kept), "conf.py": CONF.read_text(encoding="utf-8")}
    texts |= {f"_static/book.{kind}": (HERE / f"book.{kind}").read_text() for kind in ("css", "js")}
    texts["_extra/playground.html"] = pages.playground()
    copies = {p: source / p.relative_to(ROOT) for p in (ROOT / "notebooks/pictures").iterdir()}
    plotly = Path(str(files("plotly"))) / "package_data/plotly.min.js"
    copies[plotly] = source / "_static/plotly.min.js"
    for path, one in kept.items():
        for page in one.widgets.iterdir():
            copies[page] = source / "_extra/widgets" / slug(path) / page.name
    wanted = {source / name for name in texts} | {*copies.values()}
    for stale in [path for path in source.rglob("*") if path.is_file() and path not in wanted]:
        stale.unlink()
    for name, text in texts.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for origin, path in copies.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != origin.read_bytes():
            shutil.copyfile(origin, path)


def build(folder: Path, names: list[str] | None = None) -> Path:
    """Build the book in a folder and return its first page. `names`: the only notebooks to be run;
    the others are shown without outputs.
    """
    chosen = [path for path in pages.RUN if names is None or path.stem in names]
    with tempfile.TemporaryDirectory(prefix="lockstep-book-") as home:
        os.environ["LOCKSTEP_HOME"] = home  # runs go when the book is built
        kept = run_all(chosen, folder / "runs")
    assemble(folder / "source", kept)
    site = folder / "site"
    shutil.rmtree(site / "widgets", ignore_errors=True)  # Sphinx copies, and takes nothing away
    options = ["-q", "-W", "--keep-going", "-d", str(folder / "doctrees")]
    if build_main([*options, str(folder / "source"), str(site)]):
        raise SystemExit("Sphinx complains, above: the book is not complete.")
    return site / "index.html"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "_book")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these notebooks only")
    options = parser.parse_args()
    began = time.monotonic()
    page = build(options.to.resolve(), options.only)
    print(f"The book is built, {time.monotonic() - began:.0f} s: open {page} in a browser.")


if __name__ == "__main__":
    main()
