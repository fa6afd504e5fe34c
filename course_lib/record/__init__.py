"""The record of a run: what is kept of it, and what that says.

What is kept:

    events       what happened, as records of eight kinds, and how a task records them
    trace        all events of a run on one clock; chrome exports it
    rundir       what lies where in a run directory; home: where these are, and which make room
    files        how its files are written and read
    logs         what tasks print, held to a size
    checkpoints  what a run can go on from
    beats        what each task of a live run entered last

What it says:

    waits        who waited for whom, and which exchanges nobody waited for
    life         what happened to each task and host; steps that were done again, which count once
    measures     figures of a whole trace; memory: of what takes up the memory
    curves       losses and accuracies over time and examples
    digest       all these, kept up to date while a run goes on
    verdict      who is ahead in a race, and who has won it
    ledger       what became of every gradient
    standstill   who waits for whom in a run that goes on; calls: collectives that never end
    monitor      the same at this moment, from the files of a run
    reality      whether a run was measured or emulated, and why
    saved        a run read from its directory, and the first failure of one
"""
