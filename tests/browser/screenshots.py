"""Screenshots of every widget in JupyterLab, light and dark, and of its page: `python -m
tests.browser.screenshots [NAME ...] [--to FOLDER]`.

Each widget shows a real run, made now. The pictures are to be looked at, so their folder is not
committed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from tests.browser.lab import CHROMIUM, NONE, Lab, Tab, chromium, jupyter, notebook

RUN = """run = start("multi_worker_mirrored", framework="torch", workers=4, steps={steps},
            device_ms=20, slow={{"worker:3": 4}})"""

# Name -> the code of a cell. Its last line shows the widget; one called `shown` is saved as a page,
# too.
CELLS = {
    "stage": """
from course_lib.widgets.stage import AllReduceStage
shown = AllReduceStage("ring", "hierarchical")
shown""",
    "training_board": f"""
from course_lib import start
from course_lib.widgets.board import TrainingBoard
{RUN.format(steps=120)}
shown = TrainingBoard(run.wait())
shown""",
    "training_board_faults": """
from course_lib import start
from course_lib.errors import TaskFailed
from course_lib.widgets.board import TrainingBoard
run = start("multi_worker_mirrored", framework="torch", workers=4, steps=120, device_ms=20,
            faults=["slow worker:3=4 at step 20 for 500ms", "pause worker:1 at step 60 for 400ms",
                    "jitter worker:0=exponential:20ms at step 103",
                    "pause worker:1 at step 106 for 60ms", "raise worker:2 at step 109"])
try:
    run.wait()
except TaskFailed as failure:
    pass
shown = TrainingBoard(run)
shown""",
    "race_board": """
from course_lib import race
from course_lib.widgets.board import RaceBoard
entrants = race("multi_worker_mirrored", "parameter_server", framework="torch", workers=4,
                steps=80, device_ms=30, slow={"worker:3": 4})
shown = RaceBoard(entrants.wait())
shown""",
    "timeline": f"""
from course_lib import start
from course_lib.widgets import Timeline
{RUN.format(steps=60)}
shown = Timeline(run.wait())
shown""",
    "timeline_faults": f"""
import time
from course_lib import start
from course_lib.errors import TaskFailed
from course_lib.widgets import Timeline
{RUN.format(steps=10_000)}
run.wait_running()
time.sleep(1)
run.pause("worker:1")
time.sleep(0.3)
run.resume("worker:1")
time.sleep(0.3)
run.kill("worker:2")
try:
    run.wait()
except TaskFailed as failure:
    pass
shown = Timeline(run)
shown""",
    "timeline_messages": """
from course_lib.collectives import build, simulate
from course_lib.widgets import Timeline
shown = Timeline(simulate(build("ring", 8, hosts=2), 4 * 2**20, trace=True))
shown""",
    "machine_card": """
from course_lib import hardware
from course_lib.widgets.cards import MachineCard
here = hardware.probe()
shown = MachineCard(hardware.machine_rows(here))
shown""",
    "strategy_table": """
from course_lib import hardware
from course_lib.strategies import catalog
from course_lib.widgets.cards import StrategyTable
shown = StrategyTable(catalog.rows(hardware.probe()))
shown""",
    "predict": """
from course_lib import start
from course_lib.record.digest import Digest
from course_lib.widgets import Predict
shown = Predict("How many examples a second do four workers train, with and without a slow one?",
                numbers={"all equal": (0, 8000, "examples/s"), "one slow": (0, 8000, "examples/s")})
shown.inputs["all equal"].value, shown.inputs["one slow"].value = 6000, 4800
shown.lock()
speed = {}
for name, slow in {"all equal": {}, "one slow": {"worker:3": 4}}.items():
    run = start("multi_worker_mirrored", framework="torch", workers=4, steps=40,
                device_ms=20, slow=slow).wait()
    speed[name] = Digest(run.spec, run.trace).update(over=True).losses.rate()
shown.reveal(speed, "The slow one sets the pace of all.")
shown""",
}
SAVE = "shown.to_html('{name}.html') if hasattr(shown, 'to_html') else None;"


def photograph(lab: Lab, name: str, folder: Path) -> None:
    """Run the notebook that is open and keep what its first output looks like in both themes."""
    page = lab.page
    page.keyboard.press("Control+b")  # without the list of files
    lab.run(2)
    # the second cell has run, so the first has
    page.get_by_text("[2]:", exact=True).first.wait_for(timeout=120_000)
    page.locator(".jp-Cell").first.locator(".jp-InputCollapser").click()
    for theme in ("Light", "Dark"):
        lab.theme(theme)
        page.wait_for_timeout(1500)  # for sheets and canvases to take the theme
        page.screenshot(path=folder / f"{name}-{theme.lower()}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which widgets, all if not given: {', '.join(CELLS)}",
    )
    parser.add_argument("--to", type=Path, default=Path("screenshots"))
    options = parser.parse_args()
    if unknown := set(options.names) - set(CELLS):
        parser.error(
            f"no widget is called {', '.join(sorted(unknown))}; there are {', '.join(CELLS)}"
        )
    if CHROMIUM is None:
        parser.error(NONE)
    options.to.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-screenshots-") as temporary,
        chromium() as browser,
    ):
        books = Path(temporary)
        os.environ["LOCKSTEP_HOME"] = str(books / "home")  # its runs go with it
        with jupyter(books) as address:
            for name in options.names or CELLS:
                notebook(books / f"{name}.ipynb", CELLS[name], SAVE.format(name=name))
                lab = Lab(browser, f"{address}/lab/workspaces/{name}/tree/{name}.ipynb")
                photograph(lab, name, options.to)
                lab.page.close()
                for scheme in ("light", "dark"):
                    if (books / f"{name}.html").exists():
                        page = Tab(browser, color_scheme=scheme).open(books / f"{name}.html")
                        page.wait_for_timeout(700)
                        page.screenshot(path=options.to / f"{name}-page-{scheme}.png")
                        page.close()
                print(name, flush=True)


if __name__ == "__main__":
    main()
