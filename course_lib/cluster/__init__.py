"""Processes: how the tasks of a run are started, watched, disturbed and ended.

    notebook kernel --- zygote --- keeper --- supervisor --- tasks

In the notebook's kernel:

    run         `Run`, what a notebook holds of a run; a thread of it hears the supervisor
    orders      what a learner can do to a run that goes on: kill, pause, slow, link, ...
    nursery     keeps one warm zygote for each framework, and gets a supervisor for each run; and
                the zygote itself, which has imported a framework, and forks

In processes of the run:

    keeper      ends what a supervisor leaves that was killed
    supervisor  starts the tasks, carries out orders, takes exit statuses, leaves nothing behind
    roster      what follows from the state of all tasks: restart, go on without one, the end;
                and its agenda: which fault is due, and what undoes it
    node        the processes of a run on one machine and their network, as the supervisor asks
                for them
    process     starts a task, and is its process: set up, run the role function, leave its value;
                meanwhile its supervisor has it do other things: another pace, a fault, leave
    task        `Task`, what a role function is given
    frameworks  what each framework needs around it

Everywhere:

    pipes       lifelines, with which processes end, and channels, over which they talk
"""
