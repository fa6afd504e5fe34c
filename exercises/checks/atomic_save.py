"""The judge of a save: it is killed in the middle, has a full disk, and must leave a whole
checkpoint each time.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from course_lib.course.answers import Verdict
from course_lib.course.handed_in import Answer

from .processes import carry_out, ended

Complaint = tuple[str, str]


HINTS = (
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


def role(task: Any, learners: Any, seed: int) -> dict[str, Any]:
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


def judge(task: str, answer: Answer) -> Verdict:
    for done in ended(carry_out(answer, role, secrets.randbelow(10**6), worlds=[ONE])):
        if wrong := complaint(done.values[0]):
            return Verdict(task, "not yet", *wrong)
        crashes = sum(each["report"] is None for each in done.values[0]["crashes"])
    text = (
        f"{crashes} processes were killed in the middle of a save, and one had a full disk: each"
        " time a whole checkpoint was left, and the next save went well."
    )
    return Verdict(task, "passed", text)


ONE = {"workers": 1}


def complaint(seen: dict[str, Any]) -> Complaint | None:
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
