"""The page of the stage that needs no kernel: all all-reduces for 2 to 16 workers on 1 to 4 hosts
as data, and a simulator in JavaScript, `stage.js`.

Pyodide would run the simulator of the library itself, but its core is 13 MB, and numpy for it is on
neither npm nor PyPI.
"""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

from course_lib.collectives import build
from course_lib.collectives.algorithms import ALGORITHMS, FOILS
from course_lib.collectives.cost import Topology
from course_lib.widgets.kit import Markup, element
from course_lib.widgets.kit import page as kit
from course_lib.widgets.stage import AllReduceStage
from course_lib.widgets.stage.scene import ITEMSIZE, Played, Staged

TITLE = "All-reduce algorithms, round by round"
MOST = {"workers": 16, "hosts": 4}
HERE = Path(__file__).parent
WHY = "Simulated by a script: Pyodide is 13 MB, and numpy for it is on neither npm nor PyPI."
STYLE = """
.algorithms { display: flex; flex-wrap: wrap; gap: 2px 16px; }
.algorithms { margin: 0 0 10px; padding: 0; border: 0; }
.algorithms legend { float: left; margin-right: 16px; padding: 0; font-weight: 600; }
.algorithms label { white-space: nowrap; cursor: pointer; }
.algorithms label:has(:disabled) { opacity: 0.7; cursor: not-allowed; }
"""


def page() -> str:
    """A page that asks for nothing else: a choice of algorithms, the stage and its sliders."""
    shown = AllReduceStage("ring", "hierarchical")
    shown.most = MOST
    state = shown.get_state(list(AllReduceStage.class_own_traits(sync=True)))
    values = {"state": _json(state | {"standalone": True}), "script": _json(str(shown._esm))}
    values["schedules"] = _json(zlib.compress(_json(schedules()).encode(), 9))
    code = kit.asset("kit/standalone.js", "stage/words.js") + (HERE / "stage.js").read_text("utf-8")
    body = [
        Markup(f"<!-- {WHY} -->"),
        element("h1", TITLE),
        element("div", id="widget"),
        *(kit.script(name, text) for name, text in values.items()),
        element("script", Markup(code), type="module"),
    ]
    return kit.document(TITLE, "\n".join(body), str(shown._css) + STYLE)


def schedules() -> dict[str, Any]:
    """The constants of the model, and for each algorithm and number of workers, from 2 on: the host
    of each rank for each number of hosts, from 1 on, and the schedule for each of these; a single
    one if it is the same for all.
    """
    every = {
        name: [_of(name, workers) for workers in range(2, MOST["workers"] + 1)]
        for name in [*ALGORITHMS, *FOILS]
    }
    usual = Topology()
    inside = {"alpha": usual.intra.alpha, "delay": usual.intra.delay}
    return {"every": every, "inside": inside, "gamma": usual.gamma, "itemsize": ITEMSIZE}


def _of(name: str, workers: int) -> dict[str, Any]:
    hosts = range(1, min(workers, MOST["hosts"]) + 1)
    panels = [Staged(name, Played(build(name, workers, h)), {}).panel(0) for h in hosts]
    places = [panel.pop("hosts") for panel in panels]
    same = all(panel == panels[0] for panel in panels)
    return {"hosts": places, "schedules": panels[:1] if same else panels}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=_bytes)


def _bytes(data: bytes) -> Any:
    return {"$bytes": base64.b64encode(data).decode()}
