"""The checks of the capstone: a model of the learner's own, and a plan for two racks with a thin
line between them. The plan is carried out; what it predicts is judged by the run's record.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from course_lib.course.answers import ExerciseTask, Unusable, Verdict
from course_lib.course.handed_in import Answer
from course_lib.errors import LockstepError, SpecError
from course_lib.launch import start
from course_lib.record.events import Traffic
from course_lib.record.saved import SavedRun
from course_lib.spec.fields import Link
from course_lib.text import kind_of
from course_lib.workloads.workload import Workload

Complaint = tuple[str, str]

EXAMPLES, BATCH = 5_120, 128
FEWEST, MOST = 50_000, 300_000  # parameters
DEVICE_MS = 2.5  # of emulated device time for an example
MBIT = 10.0
BUDGET = 6.0  # seconds: two workers with nothing to send take 6.4
PATIENCE = 60.0  # seconds for a run
ABOVE = 0.2  # above the share of the commonest class
LEVEL = 0.05  # below the accuracy of one device
TRIES = 3  # runs for a plan: other programs only ever add to the time
MACHINES = 4
# What a plan may choose. All else is the same for everybody: racks, line, device, work.
FREE = (
    *("workers", "global_batch", "learning_rate", "warmup_steps", "optimizer", "precision"),
    *("loss_scale", "accumulate", "all_reduce", "bucket_mb", "overlap", "sampler"),
    *("staleness_bound", "backups"),
)
# what is predicted -> how far it may be off, and its unit
CLOSE = {"memory_bytes": (0.1, "bytes"), "rack_bytes": (0.25, "bytes"), "step_ms": (0.25, "ms")}
WORDS = 20  # of the defence


def chosen(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a plan, with what it leaves out."""
    return {"global_batch": BATCH, "workers": MACHINES, **fields}


def conditions(fields: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the plan but for its batch and its workers."""
    batch, workers = fields["global_batch"], fields["workers"]
    alone = workers == 1
    return {
        "framework": "torch",
        "hosts": 1 if alone else 2,
        "steps": max(1, round(EXAMPLES / batch)),
        "device_ms": DEVICE_MS * batch / workers,
        **({} if alone else {"link": Link(mbit=MBIT)}),
    }


# --- my_workload ---

WORKLOAD_HINTS = (
    (
        "Begin with data that you can make: inputs of numpy's random numbers, and a rule for their"
        " classes. Which model of yours learns it?"
    ),
    (
        "Workload('mine', train=(x, y), test=(x_test, y_test), torch=make_model,"
        " learning_rate=0.1): x (examples, numbers) in float32, y (examples,) with classes from 0"
        " on. make_model has no arguments and returns a torch.nn.Module that ends with logits."
    ),
    (
        "y = rng.integers(0, 8, 6000); centers = rng.normal(size=(8, 32)); x = centers[y] + 1.5 *"
        " rng.normal(size=(6000, 32)) are points around eight centers. nn.Linear(32, 600) and"
        " nn.Linear(600, 60), with ReLUs between, have 55,000 parameters."
    ),
)


def trained_alone(learners: Any) -> dict[str, Any]:
    """Where the learner's code runs: train the workload on one device."""
    workload = learners()
    if not isinstance(workload, Workload):
        return {"returned": kind_of(workload)}
    return alone(workload)


def alone(workload: Workload) -> dict[str, Any]:
    fields = {"framework": "torch", "global_batch": BATCH, "steps": EXAMPLES // BATCH}
    with start("one_device", workload=workload, **fields) as run:
        run.wait(PATIENCE)
    _, classes = workload.test.take(range(min(1_000, len(workload.test))))
    commonest = np.unique(classes, return_counts=True)[1].max() / len(classes)
    return {"run": run, "commonest": float(commonest)}


def judge_workload(task: str, answer: Answer) -> Verdict:
    seen = carried_out(answer, trained_alone)
    if returned := seen.get("returned"):
        return Verdict(task, "not yet", f"It returns {returned}.", "Return a Workload.")
    result = seen["run"].result
    parameters, accuracy = result["parameters"], result.get("test_accuracy")
    if accuracy is None:
        text, cure = "It has no accuracy.", "The targets must be classes: whole numbers from 0 on."
    elif not FEWEST <= parameters <= MOST:
        text = f"The model has {parameters:,} parameters."
        cure = (
            f"Take {FEWEST:,} to {MOST:,}: enough that sending them takes time, and not more than"
            " a laptop computes."
        )
    elif accuracy < seen["commonest"] + ABOVE:
        text = (
            f"After {EXAMPLES:,} examples on one device the test accuracy is {accuracy:.0%}; always"
            f" saying the commonest class gives {seen['commonest']:.0%}, so"
            f" {seen['commonest'] + ABOVE:.0%} is asked for."
        )
        cure = "So it has learned hardly anything. Try another learning_rate, or an easier task."
    else:
        text = (
            f"{parameters:,} parameters, S = {4 * parameters:,} bytes. After {EXAMPLES:,} examples"
            f" on one device the test accuracy is {accuracy:.0%}."
        )
        return Verdict(task, "passed", text)
    return Verdict(task, "not yet", text, cure)


# --- plan ---

PLAN_HINTS = (
    (
        "What would the plain all-reduce take? Its ring sends 1.5 S from rack to rack in a step,"
        " and the line carries 10 Mbit/s, which are 1.25 MB in a second. Beside that stand 80 ms of"
        " computing. What can you change: what is sent, or how often?"
    ),
    (
        "Local SGD or DiLoCo send the parameters once in eight steps: 1.5 S / 8 a step on average."
        " Top-k sends 1 % of the gradient. A larger batch has fewer steps, and so fewer updates."
        " The pages in notebooks/strategies have the formulas; costs.ipynb has the figures."
    ),
    (
        "With local SGD and S = 4 * parameters there are 40 / 8 averages: rack_bytes = 5 * 1.5 * S;"
        " step_ms = 80 + 1000 * rack_bytes * 8 / 10e6 / 40; memory_bytes = 2 * S with sgd: values"
        " and"
        " gradients."
    ),
)
PARTS = ("workload", "strategy", "fields", *CLOSE, "because")


def planned(learners: Any) -> dict[str, Any]:
    """Where the learner's code runs: what is wrong with a plan, or what came of it, beside one
    device.
    """
    plan = learners()
    if wrong := plan_complaint(plan):
        return {"wrong": wrong}
    fields = chosen(plan["fields"])
    fields |= conditions(fields)
    runs = []
    for _ in range(TRIES):
        with start(plan["strategy"], workload=plan["workload"], **fields) as run:
            run.wait(PATIENCE)
        runs.append(run)
        found = measured(run)
        off = abs(plan["step_ms"] / found["step_ms"] - 1) / CLOSE["step_ms"][0]
        if found["seconds"] > 1.25 * BUDGET or (found["seconds"] <= BUDGET and not 1 < off < 2):
            break  # another run would not change the verdict
    best = min(runs, key=lambda run: measured(run)["seconds"])
    predicted = {name: float(plan[name]) for name in CLOSE}
    return {
        **alone(plan["workload"]),
        "best": best,
        "predicted": predicted,
        "because": plan["because"],
    }


def plan_complaint(plan: Any) -> list[str] | None:
    if not isinstance(plan, dict):
        return [
            f"It returns {kind_of(plan)}.",
            "Return a dictionary with the parts that the task lists.",
        ]
    if missing := [name for name in PARTS if name not in plan]:
        return [f"The plan has no {missing[0]}.", f"Its parts are {', '.join(PARTS)}."]
    if not isinstance(plan["workload"], Workload):
        return ["workload is no Workload.", "Call your function: my_workload()."]
    if not isinstance(plan["fields"], dict):
        return ["fields is no dictionary.", "Such as {'global_batch': 256}; it may be empty."]
    for name in plan["fields"]:
        if name not in FREE:
            cure = f"The conditions are the same for everybody. You choose {', '.join(FREE)}."
            return [f"fields has {name}.", cure]
    fields = chosen(plan["fields"])
    for name, most in (("workers", MACHINES), ("global_batch", EXAMPLES)):
        if type(fields[name]) is not int or not 1 <= fields[name] <= most:
            return [f"{name} is {fields[name]!r:.40}.", f"A whole number from 1 to {most:,}."]
    for name in CLOSE:
        value = plan[name]
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float | np.number)
            or not value > 0
        ):
            return [f"{name} is {value!r:.40}.", "A prediction is a number above 0."]
    if not isinstance(plan["because"], str) or len(plan["because"].split()) < WORDS:
        return [
            "Your reasons are missing, or too short.",
            f"because is a text of {WORDS} words or more: why this strategy, and where do your"
            " predictions come from? A person reads it.",
        ]
    return None


def measured(run: Any) -> dict[str, float]:
    """What a run needed: seconds for all examples, and what is to be predicted; NaN for bytes that
    nobody has counted.
    """
    result, spec = run.result, run.spec
    step = spec.batch / result["examples_per_second"]
    sent = [event.sent for event in run.trace.all(Traffic) if event.task.startswith("host:")]
    kinds = result["memory"]["worker:0"]
    return {
        "seconds": step * spec.steps,
        "step_ms": 1000 * step,
        "rack_bytes": max(sent, default=float("nan")),
        "memory_bytes": float(
            sum(kinds[kind] for kind in ("parameters", "gradients", "optimizer_state"))
        ),
    }


def judge_plan(task: str, answer: Answer) -> Verdict:
    seen = carried_out(answer, planned)
    if wrong := seen.get("wrong"):
        return Verdict(task, "not yet", *wrong)
    run, alone = seen["best"], seen["run"].result
    have = measured(run)
    if alone["parameters"] != run.result["parameters"] or not FEWEST <= alone["parameters"] <= MOST:
        return Verdict(
            task, "not yet", "It is not the model of the first task.", "Take my_workload()."
        )
    if wrong := goal_complaint(run, have, alone["test_accuracy"]):
        return Verdict(task, "not yet", *wrong, shown=run.trace)
    lines, mistakes = compared(run, have, seen["predicted"])
    if mistakes:
        return Verdict(task, "not yet", "\n".join(lines), mistakes[0], shown=run.trace)
    accuracy = run.result["test_accuracy"]
    lines.insert(
        0,
        f"{run.result['strategy']}: {EXAMPLES:,} examples in {have['seconds']:.1f} s, test accuracy"
        f" {accuracy:.0%}; one device reaches {alone['test_accuracy']:.0%}.",
    )
    return Verdict(task, "passed", "\n".join(lines), shown=run.trace)


def goal_complaint(run: SavedRun, have: dict[str, float], alone: float) -> Complaint | None:
    """What is wrong with what a plan reached, before its predictions count."""
    accuracy, phases = run.result["test_accuracy"], run.trace.phases
    computed = phases[phases["kind"] == "compute"]["duration"]
    together, needed = 1000 * computed.sum() / run.spec.steps, DEVICE_MS * run.spec.batch
    if together < 0.9 * needed:
        text = (
            f"All workers together compute for {together:.0f} ms in a step, and {run.spec.batch}"
            f" examples need {needed:.0f} ms."
        )
        return text, (
            "This strategy cuts the model, and divides the device time once more. Take one in"
            " which each worker has the whole model."
        )
    if have["seconds"] > BUDGET:
        computing = 1000 * computed.median()
        text = (
            f"{EXAMPLES:,} examples take {have['seconds']:.1f} s; the budget is {BUDGET:g} s. Of a"
            f" step of {have['step_ms']:.0f} ms a worker computes for {computing:.0f} ms."
        )
        if computing > 0.75 * have["step_ms"]:
            return text, (
                "It is computing that takes so long: more workers share a batch, up to four."
            )
        sent = have["rack_bytes"]
        counted = (
            f" A rack sends {sent / run.spec.steps:,.0f} bytes a step."
            if not math.isnan(sent)
            else ""
        )
        little = sent / run.spec.steps < 2 * run.result["parameters"]  # half of S, on average
        return f"{text}{counted}", (
            f"The rest is the line of {MBIT:g} Mbit/s, and waiting for it. "
            + (
                "Your plan sends little already: send more rarely still, or half the bytes"
                " (float16), or take a smaller model."
                if little
                else "Send less in a step, or do not send in each step."
            )
        )
    if accuracy < alone - LEVEL:
        text = f"In time, and the test accuracy is {accuracy:.0%}; one device reaches {alone:.0%}."
        if run.spec.batch > 2 * BATCH:
            return text, (
                f"A batch of {run.spec.batch} makes {run.spec.steps} updates of all examples, where"
                f" {BATCH} makes {EXAMPLES // BATCH}. Raise the learning rate with it, or take a"
                " smaller one."
            )
        return text, (
            "Two causes are likely: the learning rate or the optimizer in fields (momentum wants"
            " about a tenth of the rate of SGD), or updates that are missing, as too little is sent"
            " or too rarely. Try one_device with your fields: if it is no better, it is the rate."
        )
    return None


def compared(
    run: SavedRun, have: dict[str, float], predicted: dict[str, float]
) -> tuple[list[str], list[str]]:
    """A line for each prediction, and the mistakes behind those that are too far off."""
    lines, mistakes = list[str](), list[str]()
    for name, (close, unit) in CLOSE.items():
        if math.isnan(have[name]):
            lines.append(f"{name}: nobody counts bytes here, {run.result['network_why']}")
            continue
        off = predicted[name] / have[name] - 1
        word = "" if abs(off) <= close else f": more than {close:.0%}"
        lines.append(
            f"{name}: predicted {predicted[name]:,.0f} {unit}, measured {have[name]:,.0f}"
            f" ({off:+.0%}{word})"
        )
        if word:
            mistakes.append(
                mistake(name, predicted[name] / have[name], run.spec.workers, run.spec.steps)
            )
    return lines, mistakes


def mistake(name: str, ratio: float, workers: int, steps: int) -> str:
    """The name of the mistake by which a prediction is so many times what was measured."""
    near = {
        "rack_bytes": {
            8.0: "These are bits: a byte has eight.",
            1 / steps: "That is the mean of a step. The whole run is asked for.",
            2.0: "It is twice too much: what a rack sends does not count what it receives.",
            workers / 1.5: "It is what all workers send. Of a ring only one message in a round"
            " leaves the rack: 2(n-1)/n S in all.",
            0.25: "A parameter in float32 has 4 bytes.",
            2 / 3: "It is S, once. A ring sends 2(n-1)/n S, 1.5 S for four workers.",
            0.5: "It is half of it: an all-reduce sends each part twice, to be added up and back.",
        },
        "memory_bytes": {
            0.5: "It is half of it: is there a gradient for each parameter, too?",
            0.25: "A parameter in float32 has 4 bytes.",
            2.0: "It is twice too much: sgd keeps nothing beside values and gradients.",
        },
        "step_ms": {
            0.001: "These are seconds.",
            float(steps): "That is the time of all steps.",
        },
    }[name]
    best = min(near, key=lambda each: abs(np.log(ratio / each)))
    if abs(np.log(ratio / best)) < 0.15:
        return near[best]
    if name == "step_ms":
        return (
            "Look at the phases of the trace: which part is not as you thought, computing (80 ms"
            " for a share of 32) or the exchange (bytes of a step * 8 / 10 Mbit/s)?"
        )
    if name == "memory_bytes":
        return (
            'Print run.result["memory"]["worker:0"], and compare it with yours kind by kind: S for'
            " the values and S for the gradients; momentum keeps another S, AdamW 2 S, and a"
            " strategy may keep something of its own."
        )
    return "Find the formula on the strategy's page: what does a worker send, and how often?"


def carried_out(answer: Answer, function: Any) -> dict[str, Any]:
    """What came of it where the learner's code runs. Raises Unusable, in words."""
    try:
        return dict(answer.within(function))
    except NotImplementedError:
        raise
    except SpecError as error:
        raise Unusable(f"The run is refused: {error}") from None
    except LockstepError as error:
        raise Unusable(f"The run does not come to an end: {error}") from None
    except Exception as error:
        raise Unusable(f"{answer.__name__} raises {type(error).__name__}: {error}") from None


TASKS = (
    ExerciseTask(
        "my_workload",
        "my_workload",
        WORKLOAD_HINTS,
        judge_workload,
        section="02_global_batch#The same mistake, inside a loss",
    ),
    ExerciseTask(
        "plan",
        "plan",
        PLAN_HINTS,
        judge_plan,
        points=30,
        section="10_in_between#Change: your own situation",
    ),
)
