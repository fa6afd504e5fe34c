"""The record of a run: what is kept of it, and what that says.

What is kept:

    events       what happened, as records of nine kinds, their clock, and how a task records them
    trace        all events of a run on one clock
    export       a trace as pandas frames, and in other formats
    rundir       what lies where in a run directory; where these are, and which make room
    files        how its files are written and read; what tasks print, held to a size
    pickles      how a learner's functions travel
    checkpoints  what a run can go on from
    beats        what each task of a live run entered last; calls of collectives that never end

What it says:

    waits        who waited for whom, and which exchanges nobody waited for
    life         what happened to each task and host; steps that were done again, which count once
    measures     figures of a whole trace, and what takes up the memory
    curves       losses and accuracies over time and examples
    digest       all these, kept up to date while a run goes on
    verdict      who is ahead in a race, and who has won it
    ledger       what became of every gradient
    standstill   who waits for whom in a run that goes on, from its files
    progress     the line that says how far a wait is
    reality      whether a run was measured or emulated, and why
    saved        a run read from its directory, and the first failure of one
"""
