"""The command line: `lockstep` or `python -m course_lib`. A thin shell over the same functions that
notebooks call.

Exit codes: 0 fine, 1 a run that failed, 2 bad input or something this machine cannot do, 130
interrupted.
"""

import io
import signal
import sys
from importlib import metadata
from typing import Any, NoReturn

import typer

from course_lib.commands.allreduce import allreduce, stage
from course_lib.commands.claims import claims
from course_lib.commands.exercises import check, exercises, lab
from course_lib.commands.machine import cluster, doctor, strategies
from course_lib.commands.terminal import Command, say
from course_lib.commands.training import EXAMPLES, check_strategy, race, run
from course_lib.commands.watch import export, picture, runs, watch
from course_lib.errors import Damaged, LockstepError, SpecError, Stalled, Unavailable

INTERRUPTED = 130

HELP: Any = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    add_completion=False,
    help="Learn distributed training by running it.",
    rich_markup_mode=None,
    context_settings=HELP,
)
TRAINING, READING = (run, race, check_strategy), (runs, watch, picture, export)
COURSE = (check, claims, exercises, lab)
COMMANDS = (*TRAINING, *READING, allreduce, stage, doctor, strategies, *COURSE)
for command in COMMANDS:
    short = " ".join(str(command.__doc__).split()).partition(". ")[0].removesuffix(".")
    further: Any = {"allow_extra_args": True, "ignore_unknown_options": True}
    how: Any = {"context_settings": HELP | further if command is lab else HELP}
    how |= {"cls": Command, "epilog": EXAMPLES.get(command.__name__)}
    app.command(short_help=f"{short}.", **how)(command)
app.add_typer(cluster, name="cluster")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; every error is one readable text on stderr."""
    arguments = arguments or sys.argv[1:] or ["--help"]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clear up as after an interrupt
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if arguments == ["--version"]:
        print(f"lockstep {metadata.version('lockstep-course')}")
        sys.exit()
    try:
        code = app(arguments, standalone_mode=False) or 0
        if code == INTERRUPTED:  # typer has caught it already
            raise KeyboardInterrupt
        sys.exit(code)
    except (SpecError, Unavailable, Damaged) as error:
        _fail(" ".join(str(error).splitlines()), 2)
    except Stalled as stalled:
        why = "stands still" if stalled.standing else "not over in time (--timeout)"
        _fail(stalled if stalled.stopping else f"{why}, so it was stopped: {stalled.words}", 1)
    except LockstepError as error:
        _fail(error, 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted; nothing that this command has started goes on", INTERRUPTED)
    except Exception as error:
        if not hasattr(error, "format_message"):  # what the option parser raises has one
            raise
        _fail(error.format_message().partition(", unable to parse")[0], 2)


def _fail(error: object, code: int) -> NoReturn:
    say(f"lockstep: {error}", stderr=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
