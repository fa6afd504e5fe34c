"""The command line: `lockstep` or `python -m course_lib`. A thin shell over the same functions that
notebooks call.

Exit codes: 0 fine, 1 a run that failed, 2 bad input or something this machine cannot do, 130
interrupted.
"""

import codecs
import io
import signal
import sys
from importlib import metadata
from typing import Annotated, Any, NoReturn

import typer

from course_lib.commands.allreduce import allreduce, stage
from course_lib.commands.exercises import check, exercises, lab
from course_lib.commands.machine import cluster, doctor, strategies
from course_lib.commands.terminal import say
from course_lib.commands.training import race, run
from course_lib.commands.watch import export, picture, watch
from course_lib.errors import Damaged, LockstepError, SpecError, Stalled, Unavailable
from course_lib.text import ascii_for

INTERRUPTED = 130

app = typer.Typer(
    add_completion=False, help="Learn distributed training by running it.", rich_markup_mode=None
)
READING = (watch, picture, export)
COMMANDS = (run, race, *READING, allreduce, stage, check, doctor, strategies, exercises)
for command in (*COMMANDS, lab):
    short = " ".join(str(command.__doc__).split()).partition(". ")[0].removesuffix(".")
    further: Any = ({}, {"allow_extra_args": True, "ignore_unknown_options": True})[command is lab]
    app.command(short_help=f"{short}.", context_settings=further)(command)
app.add_typer(cluster, name="cluster")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"lockstep {metadata.version('lockstep-course')}")
        raise typer.Exit


@app.callback()
def begin(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Learn distributed training by running it."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; every error is one readable text on stderr."""
    codecs.register_error("similar", ascii_for)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clear up as after an interrupt
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="similar")
    try:
        code = app(arguments or sys.argv[1:] or ["--help"], standalone_mode=False) or 0
        if code == INTERRUPTED:  # typer has caught it already
            raise KeyboardInterrupt
        sys.exit(code)
    except (SpecError, Unavailable, Damaged) as error:
        _fail(" ".join(str(error).splitlines()), 2)
    except Stalled as stalled:
        if stalled.stopping:
            _fail(stalled, 1)
        why = "not over in time (--timeout)"
        if stalled.standing:
            why = f"has stood still for {stalled.seconds:.1f} s"
        _fail(f"{why}, so it was stopped: {stalled.words}", 1)
    except LockstepError as error:
        _fail(error, 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted; what this command had started was stopped", INTERRUPTED)
    except Exception as error:
        if not hasattr(error, "format_message"):  # what the option parser raises has one
            raise
        _fail(error.format_message().partition(", unable to parse")[0], 2)


def _fail(error: object, code: int) -> NoReturn:
    say(f"lockstep: {error}", stderr=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
