"""The first file that a kernel of `lockstep lab` runs: PYTHONSTARTUP names it. So the words below a
NameError are there in a notebook of which no cell has run yet.

It runs among a learner's names and leaves none there, nor in the environment of the kernel's tasks.
A learner's own PYTHONSTARTUP runs as well.
"""


def _begin() -> None:
    import contextlib
    import os
    from pathlib import Path

    own = os.environ.pop("LOCKSTEP_PYTHONSTARTUP", "")
    del os.environ["PYTHONSTARTUP"]
    with contextlib.suppress(Exception):  # as in the kernel of an environment without the course
        from course_lib.notebook import shell

        shell.explain_missing_names()
    if own:
        os.environ["PYTHONSTARTUP"] = own
        exec(compile(Path(own).read_bytes(), own, "exec"), globals())


_begin()
del _begin
