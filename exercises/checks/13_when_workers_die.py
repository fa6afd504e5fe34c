"""The checks of exercise 13: who holds a run up, a checkpoint that outlives a crash, a training
that is resumed bit for bit, and how often to save.
"""

from __future__ import annotations

import functools
import math
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from course_lib.course.answers import ExerciseTask, Unusable, Verdict
from course_lib.course.handed_in import Answer
from course_lib.launch import start
from course_lib.record.events import Phase
from course_lib.record.trace import Trace

from .calls import NOTHING, asked
from .processes import World, carry_out, ended

Complaint = tuple[str, str]

# --- culprit: the worker for which all others wait ---

CULPRIT_HINTS = (
    (
        "First find out which of the two cases it is: count the compute rows of each worker. If one"
        " has fewer, you are done. If all have as many: who never has to wait for the others?"
    ),
    (
        "For each worker, the seconds of read and compute in each step, and the median of them over"
        " the steps. The worker with the largest median is the culprit."
    ),
    (
        "count = phases[phases.kind == 'compute'].groupby('task').size(); if count.nunique() > 1:"
        " return count.idxmin(). Else work = phases[phases.kind.isin(['read', 'compute'])];"
        " work.groupby(['task', 'step']).duration.sum().groupby('task').median().idxmax()"
    ),
)
ROLES = ("culprit", "fast", "last", "odd", "long")  # of worker:1 to worker:5, in some order
STANDS = ("stopped", "has read")  # the made-up runs that stand still; the others are over
OVER = ("slow", "hiccup", "reads slowly")
PATIENCE = 30.0  # seconds for a real run to begin, or to stand still


def made_up(kind: str, roles: dict[str, str]) -> list[Phase]:
    """The phases of a synchronous run of six workers. `fast` waits longest, `last` writes the last
    row, the steps of `long` are longest by a hair, and `odd` does what misleads in this kind: in a
    slow one it waits least of those who wait.
    """
    steps, rows = 21 + secrets.randbelow(9), list[Phase]()
    workers = ["worker:0", *sorted(roles)]
    now = dict.fromkeys(workers, 0.0)
    for step in range(steps):
        final, came = step == steps - 1, dict[str, float]()
        for name in workers:
            role = roles.get(name, "")
            read, compute = 0.002, 0.02 + secrets.randbelow(1000) * 1e-6
            if role == "fast":
                compute = 0.015
            if role == "culprit" and kind in ("slow", "hiccup"):
                compute *= 3
            if role == "culprit" and kind == "reads slowly":
                read, compute = 0.04, 0.019
            if role == "odd" and kind == "slow":
                compute = 0.025
            if role == "odd" and (kind in STANDS or (kind == "hiccup" and step == 7)):
                compute = 0.06 if kind in STANDS else 3.0
            if role == "last" and final:
                compute += 0.09 if kind in STANDS else 0.01
            stopped = role == "culprit" and final and kind in STANDS
            if not stopped or kind == "has read":
                rows.append(Phase(name, step, "read", now[name], now[name] + read))
            came[name] = now[name] + read + compute
            if not stopped:
                rows.append(Phase(name, step, "compute", now[name] + read, came[name]))
        for name in workers if not (final and kind in STANDS) else ():
            # the last step is the longest of all workers, so that of `last` changes no median
            role, over = roles.get(name, ""), max(came.values()) + 0.004 + 0.01 * final
            over += 1e-4 * (role == "long") + 1e-3 * (role == "last" and final)
            now[name] = over + 2e-4 * (1 + step / 10 * (role == "long"))
            rows.append(Phase(name, step, "reduce", came[name], over))
            rows.append(Phase(name, step, "apply", over, now[name]))
    place = {name: k for k, name in enumerate(workers)}
    place |= {name: 9 for name in workers if roles.get(name) == "last"}
    return sorted(rows, key=lambda row: (place[row.task], row.step))


def loop(task: Any) -> None:
    """What the workers of a real run do."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    gradient = torch.ones(100)
    for step in range(100_000):
        with task.phase("compute", step):
            time.sleep(0.04)
        with task.phase("reduce", step):
            dist.all_reduce(gradient)


@functools.cache  # one run for all answers
def paused() -> tuple[list[Phase], str]:
    """The phases of a real run that stands still, and the worker that was paused."""
    for _ in range(3):  # a pause in the middle of an exchange leaves no trace of who it was
        with start(loop, framework="torch", workers=3) as run:
            victim, until = f"worker:{secrets.randbelow(3)}", time.monotonic() + PATIENCE
            while max(computed(run.trace.refresh().all(Phase)).values(), default=0) < 8:
                if time.monotonic() > until:
                    raise Unusable("The real run has not begun in time. Check once more.")
                time.sleep(0.05)
            run.inject(f"pause {victim}")
            while run.standstill() is None and time.monotonic() < until + PATIENCE:
                time.sleep(0.1)
            rows = run.trace.refresh().all(Phase)
        count = computed(rows)
        if count[victim] < min(count[name] for name in count if name != victim):
            return rows, victim
    raise Unusable("Three real runs were paused in the middle of an exchange. Check once more.")


def computed(rows: Sequence[Phase]) -> Counter[str]:
    return Counter(row.task for row in rows if row.what == "compute")


def named(learners: Any, rows: Sequence[Sequence[Any]]) -> Any:
    """Where the learner's code runs: the answer for the frame of these phases."""
    return learners(Trace(Phase(*row) for row in rows).phases)


def judge_culprit(task: str, answer: Answer) -> Verdict:
    for kind in ("slow", "stopped", "hiccup", "has read", "reads slowly"):
        names = secrets.SystemRandom().sample([f"worker:{k}" for k in range(1, 6)], 5)
        roles = dict(zip(names, ROLES, strict=True))
        rows = made_up(kind, roles)
        given = name_in(asked(answer, named, [[*row] for row in rows]), rows)
        if given != names[0]:
            text = case_in_words(kind, names[0], rows)
            cure = culprit_mistake(kind, roles.get(given, ""), given)
            return Verdict(task, "not yet", f"{text} It returns {given}.", cure)
    rows, victim = paused()
    case = f"A real run in which {victim} was paused:"
    try:
        given = name_in(asked(answer, named, [[*row] for row in rows]), rows)
    except Unusable as problem:
        raise Unusable(f"{case} it has rows of {kinds_of(rows)} alone. {problem}") from None
    if given != victim:
        text = f"{case} it returns {given}."
        cure = "Which worker has the fewest compute rows? Kinds of rows may be missing altogether."
        return Verdict(task, "not yet", text, cure, Trace(rows))
    text = f"Five made-up runs, and a real one in which {victim} was paused: named each time."
    return Verdict(task, "passed", text, shown=Trace(rows))


def kinds_of(rows: Sequence[Phase]) -> str:
    return ", ".join(sorted(set(Trace(rows).phases.kind)))


def name_in(given: Any, rows: Sequence[Phase]) -> str:
    names = sorted({row.task for row in rows})
    if given is None:
        raise Unusable(NOTHING)
    if given not in names:
        what = str(given)[:60] if isinstance(given, str | int | float | list) else type(given)
        what = f"a {what.__name__}" if isinstance(what, type) else what
        raise Unusable(f"It returns {what}. Return the name of a worker, such as 'worker:2'.")
    return str(given)


def case_in_words(kind: str, culprit: str, rows: Sequence[Phase]) -> str:
    count = computed(rows)
    if kind in STANDS:
        most, read = max(count.values()), " and has read its next batch" * (kind == "has read")
        return (
            f"A run that stands still: {culprit} has computed {count[culprit]} steps{read}, the"
            f" five others have computed {most}."
        )
    work = Counter[tuple[str, int]]()
    for row in rows:
        if row.what in ("read", "compute"):
            work[row.task, row.step] += row.end - row.start  # type: ignore[assignment]
    typical = {
        name: 1000 * float(np.median([s for (task, _), s in work.items() if task == name]))
        for name in count
    }
    return (
        f"A run of {count[culprit]} steps: from the beginning of read to the end of compute"
        f" {culprit} takes {typical.pop(culprit):.0f} ms in the median step, and no other worker"
        f" more than {max(typical.values()):.0f} ms."
    )


def culprit_mistake(kind: str, role: str, given: str) -> str:
    """The mistake by which somebody names the worker with this role."""
    if kind == "has read":
        return (
            "All workers have a row of the last step, so the largest step does not tell. Reading"
            " comes before computing: count compute rows alone."
        )
    if kind == "reads slowly":
        return (
            "The culprit computes as fast as the others, and its batches come late. Add read and"
            " compute of a step, or look at who waits least."
        )
    if role == "last":
        return (
            "It has the last row, or the latest end. That tells nothing about who holds others up."
        )
    if kind == "stopped" and role == "odd":
        return (
            f"{given} is the slowest, but it has arrived: it has computed the last step, and waits"
            " like the others. In a run that stands still, look for who has not arrived."
        )
    if kind == "stopped":
        return "Who waits has arrived. The worker without a compute row of the last step has not."
    if role == "odd" and kind == "hiccup":
        return (
            "One single step of it took 3 s. That is enough for the largest mean, sum or maximum;"
            " the median over the steps hardly changes by it."
        )
    if role == "fast" and kind == "slow":
        return "It waits longest, so it is the fastest. Others wait for the one that waits least."
    if role == "long" and kind == "slow":
        return (
            "Its steps, or its exchanges, are longest by less than a millisecond. In a synchronous"
            " run all steps end together and take as long: compare the work in them."
        )
    if role == "odd" and kind == "slow":
        return (
            f"{given} waits least of all that have a wait row. Who never waits has none, so groupby"
            " leaves that worker out: count no row as 0 seconds."
        )
    if given == "worker:0":
        return (
            "worker:0 is the first in the frame, and nothing else. If all values are equal, idxmin"
            " and min give the first: then compare how long each worker works."
        )
    return "Compare what each worker does before its reduction: read and compute, step by step."


# --- save: a crash in the middle loses nothing ---

SAVE_HINTS = (
    (
        "As long as the new checkpoint is not whole, the name must belong to the old one. So the"
        " new one is written under another name. Which call gives it the right name in one step?"
    ),
    (
        "Write path + '.part', in the same folder. file.flush() hands Python's buffer to the"
        " system, os.fsync(file.fileno()) waits until it is on the disk. Then os.replace."
    ),
    (
        "with open(path + '.part', 'wb') as file: torch.save(state, file); file.flush();"
        " os.fsync(file.fileno()). After the with: os.replace(path + '.part', path)."
    ),
)
WRITING = ("open", "os.rename", "os.remove", "os.truncate", "os.link", "os.symlink")
CHILD = 15.0  # seconds for one save


def save_role(task: Any, learners: Any, seed: int) -> dict[str, Any]:
    """Save in processes of their own, which die in different moments; see what is left each time.

    A limit on the size of files ends a save after so many bytes: by a signal, which is a crash, or
    by an error, which is a full disk.
    """
    import contextlib
    import json
    import os
    import re
    import resource
    import select
    import signal
    import sys
    import tempfile
    from pathlib import Path

    import torch

    def state(k: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed + k)
        weights = torch.randn(200, 250, generator=generator)
        return {"step": 10 * k, "model": {"weight": weights}, "losses": [0.5 / k, 0.25 / k]}

    old, new = state(1), state(2)

    def content(path: str) -> str:
        if not Path(path).exists():
            return "missing"
        try:
            kept = torch.load(path)
            for word, known in (("old", old), ("new", new)):
                same = torch.equal(kept["model"]["weight"], known["model"]["weight"])
                rest = all(kept[name] == known[name] for name in ("step", "losses"))
                if same and rest and kept.keys() == known.keys():
                    return word
        except Exception:
            return "broken"
        return "other"

    def within(
        what: Any, path: str, limit: int, full: bool, stop: int, after: bool, into: int
    ) -> None:
        """In the child: save, with this limit, and die before event number `stop`, or after it."""
        events, folder, watching = list[list[Any]](), str(Path(path).parent), True

        def noted(event: str, args: Any) -> None:
            if not watching or event not in WRITING:
                return
            names = args[:1] if event == "open" else args[:2]  # of open the second is the mode
            places = [os.fsdecode(each) for each in names if isinstance(each, str | bytes)]
            writes = event != "open" or args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if (
                not places
                or not writes
                or "__pycache__" in places[0]
                or "/dev/" == places[0][:5] != folder[:5]
            ):
                return
            if len(events) == stop and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            events.append([event, *places])

        def called(frame: Any, event: str, function: Any) -> None:
            if event == "c_return" and after and len(events) > stop:
                os.kill(os.getpid(), signal.SIGKILL)
            if event == "c_call" and function.__name__ in ("fsync", "fdatasync", "sync"):
                files = [each for each in os.scandir(folder) if each.path != path]
                events.append(["sync", *(f.stat(follow_symlinks=False).st_size for f in files)])

        def name(match: re.Match[str]) -> str:
            return match[1] if match[1].startswith("last.pt") else "a temporary file"

        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        if limit:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN if full else signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        sys.addaudithook(noted)
        sys.setprofile(called)
        error = ""
        try:
            learners(what, path)
        except BaseException as problem:
            words = re.sub("'[^']*/([^'/]*)'", name, str(problem))
            error = f"{type(problem).__name__}: {words}"[:300]
        watching = False
        sys.setprofile(None)
        os.write(into, json.dumps({"error": error, "events": events[:60]}).encode())

    def saved(
        what: Any,
        path: str,
        limit: int = 0,
        full: bool = False,
        stop: int = -1,
        after: bool = False,
    ) -> Any:
        """What a child reports; nothing if it died."""
        out, into = os.pipe()
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                within(what, path, limit, full, stop, after, into)
            os._exit(0)
        os.close(into)
        ready, _, _ = select.select([out], [], [], CHILD)
        report = os.read(out, 60_000) if ready else b'{"error": "late", "events": []}'
        os.kill(child, signal.SIGKILL)  # it may be over, and is not yet waited for
        os.waitpid(child, 0)
        os.close(out)
        return json.loads(report) if report else None

    def trial(**trouble: Any) -> dict[str, Any]:
        """Save over an old checkpoint: with this trouble, and then once more without."""
        with tempfile.TemporaryDirectory(dir=base) as folder:
            path = f"{folder}/last.pt"
            torch.save(old, path)
            report, kept = saved(new, path, **trouble), content(path)
            again = (saved(new, path) or {"error": "it died"})["error"]
            return {
                "report": report,
                "kept": kept,
                "again": again,
                "then": content(path),
                **trouble,
            }

    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # another file system than /tmp
    with tempfile.TemporaryDirectory(dir=base) as folder:
        path = f"{folder}/last.pt"
        first = saved(old, path)
        if first and first["error"].startswith("NotImplementedError"):
            raise NotImplementedError
        kept, names = content(path), sorted(each.name for each in Path(folder).iterdir())
        size = Path(path).stat().st_size if kept == "old" else 0
    seen = {"first": first, "kept": kept, "names": names, "size": size, "path": "last.pt"}
    if not size or not first or first["error"]:
        return seen
    plain = trial()
    crashes = [trial(limit=part) for part in (1, size // 3, size - 50)]
    count = len((plain["report"] or first)["events"][:12])
    crashes += [trial(stop=k, after=after) for k in range(count) for after in (False, True)]
    full = trial(limit=size // 3, full=True)
    return seen | {"plain": plain, "crashes": crashes, "full": full}


def judge_save(task: str, answer: Answer) -> Verdict:
    for done in ended(carry_out(answer, save_role, secrets.randbelow(10**6), worlds=[ONE])):
        if wrong := save_complaint(done.values[0]):
            return Verdict(task, "not yet", *wrong)
        crashes = sum(each["report"] is None for each in done.values[0]["crashes"])
    text = (
        f"{crashes} processes were killed in the middle of a save, and one had a full disk: each"
        " time a whole checkpoint was left, and the next save went well."
    )
    return Verdict(task, "passed", text)


ONE = {"workers": 1}


def save_complaint(seen: dict[str, Any]) -> Complaint | None:
    if wrong := first_complaint(seen):
        return wrong
    plain = seen["plain"]
    if plain["report"] is None or plain["report"]["error"] or plain["kept"] != "new":
        error = (plain["report"] or {"error": "the process died"})["error"]
        what = f"it raises {error}" if error else "load(path) still gives the first"
        return f"The second save: {what}.", (
            "The path belongs to the checkpoint before, each time but the first. os.replace puts"
            " the new one in its place."
        )
    events = plain["report"]["events"]
    if wrong := elsewhere(events):
        return wrong
    for crash in seen["crashes"]:
        when = (
            f"after {crash['limit']:,} of {seen['size']:,} bytes"
            if "limit" in crash
            else f"right {'after' if crash['after'] else 'before'} {moment(events[crash['stop']])}"
        )
        if crash["kept"] not in ("old", "new"):
            what = {"missing": "there is no checkpoint"}.get(crash["kept"], "load(path) fails")
            return f"Killed {when}: {what}.", crash_mistake(events)
        if crash["again"] or crash["then"] != "new":
            why = crash["again"] or "the checkpoint is still the old one"
            return f"Killed {when}; the next save fails: {why}.", (
                "What a crash has left behind must not stop the next save. Open the temporary file"
                " with 'wb', which overwrites it."
            )
    return full_complaint(seen["full"]) or sync_complaint(events, seen["size"])


def first_complaint(seen: dict[str, Any]) -> Complaint | None:
    first = seen["first"]
    if first is None:
        return "The process ends in the middle of the first save.", (
            "save must return. Is there an os._exit in it, or a signal?"
        )
    if first["error"] == "late":
        return f"It had not come back after {CHILD:g} s.", "Does a loop in it never end?"
    if "Errno 18" in first["error"]:
        return f"It raises {first['error']}.", (
            "The temporary file lies on another file system, and only a copy could get from there"
            " to here. Write it in the folder of path."
        )
    if first["error"]:
        text = f"The first save, with no file at path yet, raises {first['error']}."
        return text, error_mistake(first["error"])
    if seen["kept"] == "missing":
        names = ", ".join(seen["names"]) or "nothing"
        return f"After a save to last.pt the folder has {names}.", (
            "The checkpoint must have the name that was asked for: os.replace(temporary, path)."
        )
    if seen["kept"] != "old":
        return "load(path) does not give the state that was saved.", (
            "Give torch.save the whole state, and close or flush the file before it gets its name."
        )
    return None


def error_mistake(error: str) -> str:
    """Why a save fails if there is no file at path yet."""
    if error.startswith("TypeError") and "must be str" in error:
        return "A checkpoint is bytes, not text: open the file with 'wb'."
    if not error.startswith("FileNotFoundError"):
        return ""
    if "last.pt" not in error:
        return (
            "A temporary file is gone when it is used. Where NamedTemporaryFile is used: its with"
            " removes the file at the end, unless it has delete=False."
        )
    return (
        "There is no older checkpoint the first time: remove and rename nothing that need not be"
        " there. os.replace(temporary, path) takes the new file first, then the name that it gets."
    )


def moment(event: Sequence[Any]) -> str:
    if event[0] == "sync":
        return "os.fsync"
    words = {"open": "opening", "os.rename": "renaming", "os.remove": "removing"}
    last = [str(place).rpartition("/")[2] for place in event[1:]]
    shown = [name if name.startswith("last.pt") else "a temporary file" for name in last]
    return f"{words.get(event[0], event[0])} {' to '.join(map(str, shown))}"


def crash_mistake(events: Sequence[Sequence[Any]]) -> str:
    """Why a crash leaves no whole checkpoint."""
    done = {(event[0], str(event[1]).rpartition("/")[2]) for event in events if len(event) > 1}
    if ("os.remove", "last.pt") in done:
        return (
            "The old checkpoint is removed before the new one has its name. Remove nothing:"
            " os.replace puts the new one in its place, in one step."
        )
    if ("os.rename", "last.pt") in done:
        return (
            "The old checkpoint is moved aside, and for a moment nothing has the name. os.replace"
            " needs no room made: it replaces in one step."
        )
    if ("open", "last.pt") in done and len({name for event, name in done if event == "open"}) > 1:
        return (
            "It writes at path itself, if only by a copy, and a crash may come in the middle of"
            " that. os.replace gives a finished temporary file the name in one step, and copies"
            " nothing."
        )
    if any(event[0] == "os.rename" for event in events):
        return (
            "The file gets its name before it is whole: rename it after it is written and closed."
        )
    return (
        "It writes at path itself, so the old checkpoint is gone as soon as the new one begins."
        " Write a temporary file beside it, and give it the name when it is whole."
    )


def full_complaint(full: dict[str, Any]) -> Complaint | None:
    case = "The disk is full in the middle of a save:"
    if full["kept"] != "old":
        return f"{case} the old checkpoint is lost.", (
            "The half-written file gets the name in spite of the error. Is os.replace in a finally,"
            " or after an except? Only a file that was written without one may replace."
        )
    if full["report"] is not None and not full["report"]["error"]:
        return f"{case} save returns as if it had saved.", (
            "Nobody learns that there is no new checkpoint. Let the error pass on."
        )
    if full["again"] or full["then"] != "new":
        return f"{case} the next save fails: {full['again'] or 'nothing is replaced'}.", (
            "Clean up after an error, or overwrite what it has left."
        )
    return None


def elsewhere(events: Sequence[Sequence[Any]]) -> Complaint | None:
    for event in events:
        folders = {str(place).rpartition("/")[0] for place in event[1:]}
        if event[0] == "os.rename" and len(folders) > 1:
            return "The temporary file lies in another folder than the checkpoint.", (
                "There it may be on another file system, and os.replace fails, or a copy takes its"
                " place. Write it in the folder of path."
            )
    return None


def sync_complaint(events: Sequence[Sequence[Any]], size: int) -> Complaint | None:
    kinds = [event[0] for event in events]
    before = events[: kinds.index("os.rename")] if "os.rename" in kinds else events
    syncs = [event[1:] for event in before if event[0] == "sync"]
    text = "When the file gets its name, its content need not be on the disk."
    if not syncs and "sync" in kinds:
        return text, "os.fsync comes too late: call it for the file, before os.replace."
    if not syncs:
        return text, (
            "The system writes when it likes. If the power fails, the name may be there without the"
            " bytes: file.flush() and os.fsync(file.fileno()) come before os.replace."
        )
    longest = max(length for sizes in syncs for length in [0, *sizes])
    if longest < size:
        return f"At os.fsync the file has {longest:,} bytes of {size:,}.", (
            "What comes later is not on the disk. First torch.save, then file.flush(), which hands"
            " the rest in Python's buffer to the system, then os.fsync."
        )
    return None


# --- resume: bit for bit ---

RESUME_HINTS = (
    (
        "Read Trainer.step line by line, and ask of each name on the right: could it be different"
        " in a new process? The functions that draw random numbers have a state as well."
    ),
    (
        "model.state_dict() and optimizer.state_dict(); epoch, index and order; the states of"
        " shuffle, of torch (torch.get_rng_state) and of random (random.getstate). The state"
        " dicts hold the tensors themselves: copy.deepcopy them."
    ),
    (
        "restore: load_state_dict of model and optimizer; trainer.order, epoch and index;"
        " trainer.shuffle.set_state(...), torch.set_rng_state(...), random.setstate(...)."
    ),
)
BATCH, EXAMPLES, STEPS = 8, 40, 24
PARTS = {
    "parameters": (
        "the parameters",
        "Load the model's state_dict, into the model that the trainer has.",
    ),
    "buffers": (
        "the buffers of the model",
        "Batch normalisation keeps a running mean and variance, which are no parameters."
        " model.state_dict() has both.",
    ),
    "optimizer": (
        "the optimizer's state",
        "Adam keeps two means for each parameter, and the number of steps. They are in"
        " optimizer.state_dict().",
    ),
    "order": (
        "the order of the examples in this epoch",
        "trainer.order was drawn when the epoch began. The state of shuffle is that after the draw,"
        " so the order itself must be saved.",
    ),
    "index": ("index, the position in the epoch", "The next batch begins at trainer.index."),
    "epoch": ("the epoch", "The learning rate depends on trainer.epoch: save it, and set it."),
    "shuffle": (
        "the state of shuffle, which draws the order of the next epoch",
        "Save trainer.shuffle.get_state(), and give it to trainer.shuffle.set_state(...).",
    ),
    "torch": (
        "torch's random state, which draws the dropout",
        "Save torch.get_rng_state(), and give it to torch.set_rng_state(...), after all that draws."
        " A seed brings back the beginning, not this moment.",
    ),
    "python": (
        "Python's random state, which draws the flips",
        "Save random.getstate(), and give it to random.setstate(...).",
    ),
}


def trainer_of(seed: int) -> Any:
    """A trainer like the one in the notebook."""
    import random

    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, 4, generator=generator)
    labels = inputs.square().sum(1, keepdim=True)

    class Trainer:
        def __init__(self) -> None:
            torch.manual_seed(seed)
            random.seed(seed)
            layers = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)
            self.model = nn.Sequential(*layers, nn.Linear(16, 1))
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
            self.shuffle = torch.Generator().manual_seed(seed)
            self.order = torch.randperm(EXAMPLES, generator=self.shuffle)
            self.epoch, self.index = 0, 0

        def step(self) -> float:
            if self.index >= EXAMPLES:
                self.order = torch.randperm(EXAMPLES, generator=self.shuffle)
                self.epoch, self.index = self.epoch + 1, 0
            batch = self.order[self.index : self.index + BATCH]
            self.index += BATCH
            flip = random.choice([-1, 1])
            for group in self.optimizer.param_groups:
                group["lr"] = 0.01 * 0.8**self.epoch
            loss = (self.model(flip * inputs[batch]) - labels[batch]).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return float(loss)

    return Trainer()


def resume_role(task: Any, learners: Any, seed: int, cut: int) -> dict[str, Any]:
    """Worker 0 trains, takes a snapshot and goes on; worker 1 trains undisturbed, and then resumes
    from the snapshot with another trainer. It says what was not as it was.
    """
    import copy
    import io
    import random

    import torch
    import torch.distributed as dist

    def parts(trainer: Any) -> dict[str, Any]:
        """All that the next step depends on."""
        parameters = list(trainer.model.parameters())
        adam = [trainer.optimizer.state.get(p, {}) for p in parameters]
        values = {
            "parameters": parameters,
            "buffers": list(trainer.model.buffers()),
            "optimizer": [value for each in adam for value in each.values()],
            "order": [trainer.order],
            "index": trainer.index,
            "epoch": trainer.epoch,
            "shuffle": [trainer.shuffle.get_state()],
            "torch": [torch.get_rng_state()],
            "python": random.getstate(),
        }
        return copy.deepcopy(values)

    def same(one: Any, two: Any) -> bool:
        if not isinstance(one, list):
            return bool(one == two)
        pairs = zip(one, two, strict=False)
        return len(one) == len(two) and all(torch.equal(a, b) for a, b in pairs)

    def written(state: Any) -> bytes:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        return buffer.getvalue()

    dist.init_process_group("gloo")
    whole = trainer_of(seed)
    losses = [whole.step() for _ in range(cut)]
    if task.index == 0:
        made = learners()
        state, seen, sent = made.snapshot(whole), dict[str, Any](), [b""]
        try:
            sent = [written(state)]
            torch.load(io.BytesIO(sent[0]))
        except Exception as error:
            words = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            seen["unreadable"] = words.partition(". ")[0]
            sent = [b""]
        dist.broadcast_object_list(sent)
        losses += [whole.step() for _ in range(STEPS - cut)]
        # the same objects are written as the same bytes
        seen["changed"] = bool(sent[0]) and sent[0] != written(state)
        return seen | {"losses": losses, "none": state is None or state == {}}
    before = parts(whole)
    losses += [whole.step() for _ in range(STEPS - cut)]
    end, trainer, received = parts(whole), trainer_of(seed + 1), [b""]
    for _ in range(5):  # to the end of an epoch, where no snapshot is taken
        trainer.step()
    dist.broadcast_object_list(received)
    state = torch.load(io.BytesIO(received[0])) if received[0] else None
    if state is None or state == {}:
        return {"losses": losses}
    learners().restore(trainer, state)
    now, moved = parts(trainer), trainer.index - before["index"]
    mine = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    apart = mine != {id(p) for p in trainer.model.parameters()}
    rest = [trainer.step() for _ in range(STEPS - cut)]
    final = parts(trainer)
    return {
        "losses": losses,
        "rest": rest,
        "wrong": [name for name in before if not same(now[name], before[name])],
        "end": all(same(final[name], end[name]) for name in ("parameters", "buffers")),
        "apart": apart,
        "moved": moved,
    }


def judge_resume(task: str, answer: Answer) -> Verdict:
    cut = 5 * secrets.choice((1, 2)) + 2 + secrets.randbelow(2)  # in the middle of an epoch
    worlds = carry_out(answer, resume_role, secrets.randbelow(10**6), cut, worlds=[{"workers": 2}])
    for done in ended(worlds):
        if wrong := resume_complaint(done, cut):
            return Verdict(task, "not yet", *wrong)
    text = (
        f"A new process went on from step {cut} of a training with dropout and random flips: its"
        f" {STEPS - cut} losses, and the model in the end, are the same bit for bit."
    )
    return Verdict(task, "passed", text)


def resume_complaint(done: World, cut: int) -> Complaint | None:
    one, two = done.values
    if one["none"]:
        return "snapshot returns nothing, or an empty dict.", (
            "Return a dict with all parts of the checkpoint. Another process restores it, to which"
            " nothing comes that is kept in self."
        )
    if why := one.get("unreadable"):
        return f"torch.save and torch.load do not bring the snapshot back: {why}.", (
            "Whole objects, such as a model or a generator, are code and data in one. Take their"
            " state: state_dict(), get_state()."
        )
    if one["losses"] != two["losses"]:
        return "The training that took a snapshot goes on otherwise than one that took none.", (
            "A snapshot only reads. Does it seed, draw a random number, take a step, or call"
            " model.eval()?"
        )
    if one["changed"]:
        return "The snapshot has changed while the training went on.", (
            "state_dict() gives the tensors themselves, and the next step changes what is in them."
            " Copy them: copy.deepcopy(...)."
        )
    if two["rest"] == two["losses"][cut:] and two["end"]:
        return None
    at = next((k for k, x in enumerate(two["rest"]) if x != two["losses"][cut + k]), STEPS - cut)
    text = (
        f"Resumed at step {cut}: the loss of step {cut + at} is {two['rest'][at]:.6f}, undisturbed"
        f" it is {two['losses'][cut + at]:.6f}."
        if at < STEPS - cut
        else "All losses are equal, but not the model in the end."
    )
    if two["apart"]:
        return text, (
            "The optimizer steps other tensors than those of trainer.model: it still has the old"
            " ones. Load values into the tensors that are there, with load_state_dict."
        )
    if two["wrong"] == ["index"]:
        return text, position(two["moved"])
    names = [PARTS[name][0] for name in two["wrong"]]
    if not names:
        return text, "Right after restore all is as it was. Is the model in train mode?"
    return f"{text} Not as it was: {'; '.join(names)}.", PARTS[two["wrong"][0]][1]


def position(moved: int) -> str:
    if moved == BATCH:
        return "A batch is left out: index says where the next one begins, so add nothing to it."
    if moved == -BATCH:
        return "A batch is done twice: index says where the next one begins, so subtract nothing."
    return (
        "trainer.index is not as it was. Is it saved, and set by restore? It counts examples, not"
        " batches, from the beginning of the epoch."
    )


# --- interval: how often to save ---

INTERVAL_HINTS = (
    (
        "If one machine fails once in 1,000 days on average, how often does something fail in a"
        " cluster of 1,000? That mean time is M. Then lesson 13 has the formula."
    ),
    (
        "Saving takes the share save_seconds / interval of the time, a failure loses half an"
        " interval in each M. The sum is smallest where both parts are equal."
    ),
    "mean = machine_seconds / machines; return (2 * save_seconds * mean) ** 0.5",
)
MOST = 1.05  # times the time lost with the best interval
FAILURES = 20_000
HOUR = 3600.0


def lost(interval: float, save: float, gaps: Any) -> float:
    """The share of the time that a machine loses which fails after these gaps, in seconds: to
    saving, and to work since the last checkpoint.
    """
    useful = np.floor(gaps / (interval + save)) * interval
    return float(1 - useful.sum() / gaps.sum())


def judge_interval(task: str, answer: Answer) -> Verdict:
    cases = [
        (25.0, 11_000 * 16_384.0, 16_384),
        (5.0, 40 * HOUR, 1),
        (20.0 + secrets.randbelow(40), (3e7 + secrets.randbelow(10**7)), 900),
        (2.0 + secrets.randbelow(6), (4e6 + secrets.randbelow(10**6)), 64),
    ]
    for save, machine, machines in cases:
        given = asked(answer, called, save, machine, machines)
        if given is None:
            raise Unusable(NOTHING)
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise Unusable(f"It returns a {type(given).__name__}. Return a number of seconds.")
        words = f"A save takes {save:g} s, and each of {machines:,} machines fails once in"
        words = f"{words} {machine / HOUR:,.0f} h: it returns {given:,.1f} s."
        if not math.isfinite(given) or given <= 0:
            return Verdict(task, "not yet", words, "An interval is a positive number of seconds.")
        if name := interval_mistake(given, save, machine, machines):
            return Verdict(task, "not yet", words, name)
        gaps = np.random.default_rng().exponential(machine / machines, FAILURES)
        young = math.sqrt(2 * save * machine / machines)
        trials = {x: lost(x, save, gaps) for x in young * np.geomspace(0.5, 2, 41)}
        best = min(trials, key=trials.__getitem__)
        if lost(given, save, gaps) > MOST * trials[best]:
            text = (
                f"{words} With {FAILURES:,} random failures {lost(given, save, gaps):.1%} of the"
                f" time is lost; saving every {best:,.0f} s loses {trials[best]:.1%}."
            )
            rare = given > best
            cure = f"It saves too {'rarely' if rare else 'often'}."
            return Verdict(
                task, "not yet", text, f"{cure} Compare it with the formula of lesson 13."
            )
    text = (
        f"Four clusters with {FAILURES:,} random failures each: by trial no interval loses clearly"
        " less time."
    )
    return Verdict(task, "passed", text)


def called(learners: Any, save: float, machine: float, machines: int) -> Any:
    return learners(save, machine, machines)


def interval_mistake(given: float, save: float, machine: float, machines: int) -> str:
    """The name of the mistake by which this interval comes out."""
    mean = machine / machines
    right = math.sqrt(2 * save * mean)
    known = {
        "The mean time between failures is that of one machine. Any of the machines may fail, so"
        " divide it by their number.": math.sqrt(2 * save * machine),
        "machine_seconds is multiplied by the number of machines. With more machines something"
        " fails more often: divide.": math.sqrt(2 * save * machine * machines),
        "The root is divided by the number of machines. It is M that is divided, under the"
        " root.": math.sqrt(2 * save * machine) / machines,
        "The 2 is missing: a failure loses half an interval on average, not a whole"
        " one.": math.sqrt(save * mean),
        "The 2 is outside the root, where it counts twice as much.": 2 * math.sqrt(save * mean),
        "The 2 divides: set the derivative of save / t + t / (2 M) to zero once more.": math.sqrt(
            save * mean / 2
        ),
        "The square root is missing: it is the square of the interval.": 2 * save * mean,
        "The time between failures is divided by the time of a save, which gives a number without"
        " a unit. Multiply the two.": math.sqrt(2 * mean / save),
        "The time of a save is divided by the time between failures, which gives a number without"
        " a unit. Multiply the two.": math.sqrt(2 * save / mean),
        "Only M is under the root. 2 and the time of a save belong there as well.": 2
        * save
        * math.sqrt(mean),
        "The time of a save is not in it. The longer a save takes, the more rarely it"
        " pays.": math.sqrt(2 * mean),
        "It is half the time between failures, whatever a save costs. The cheaper a save is, the"
        " more often it pays.": mean / 2,
        "It is the time between failures: about every second failure would find no new"
        " checkpoint.": mean,
        "These are minutes. Return seconds.": right / 60,
        "These are hours. Return seconds.": right / 3600,
        "It is the number of saves between two failures, not the time between two saves.": mean
        / right,
    }
    if math.isclose(given, right, rel_tol=1e-6):
        return ""
    return next((name for name, x in known.items() if math.isclose(given, x, rel_tol=1e-4)), "")


TASKS = (
    ExerciseTask("culprit", "culprit", CULPRIT_HINTS, judge_culprit),
    ExerciseTask("save", "save", SAVE_HINTS, judge_save),
    ExerciseTask("resume", "Checkpoint", RESUME_HINTS, judge_resume),
    ExerciseTask("interval", "interval", INTERVAL_HINTS, judge_interval),
)
