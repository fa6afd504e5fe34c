"""Processes: how the tasks of a run are started, watched, disturbed and ended.

    notebook kernel --- zygote --- keeper --- supervisor --- tasks

In the notebook's kernel:

    run         `Run`, what a notebook holds of a run; a thread of it hears the supervisor
    orders      what a learner can do to a run that goes on: kill, pause, slow, link, ...
    nursery     keeps one warm zygote for each framework, and gets a supervisor for each run
    waiting     who waits for whom, and whether the run stands still for good
    calls       calls of collectives that can never end

In processes of the run:

    zygote      has imported a framework, and forks
    keeper      ends what a supervisor leaves that was killed
    supervisor  starts the tasks, carries out orders, takes exit statuses, leaves nothing behind
    roster      what follows from the state of all tasks: restart, go on without one, the end
    agenda      which fault is due, and what undoes it
    wiring      the network: where tasks are, what they send, links that change
    node        the processes of a run on one machine, as the supervisor asks for them
    process     starts a task, and is its process: set up, run the role function, leave its value
    control     what the supervisor has a task do meanwhile: another pace, a fault, leave
    task        `Task`, what a role function is given
    frameworks  what each framework needs around it

On a Ray cluster:

    engines     which engine starts a run's processes: this machine, or Ray
    ray_engine  has the supervisor as a thread of the notebook's kernel, and moves what is lost
    ray_cluster what Ray is asked: to join, to find room, for our actor on a node
    ray_link    a node as the driver sees it: its clock, orders to it and the record from it
    remote      a node that is not this machine: what a supervisor asks of it, over a channel
    ray_node    an actor on each node, with a warm zygote
    raylets     a cluster on this machine: `lockstep cluster up`

Everywhere:

    pipes       lifelines, with which processes end, and channels, over which they talk
"""
