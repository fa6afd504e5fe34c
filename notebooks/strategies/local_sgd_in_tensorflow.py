"""Local SGD in TensorFlow: as `local_sgd.py`, on TensorFlow's training step.

`step.average` is the all-reduce of the run, ours, on tensors of any kind: here on the variables
themselves. `tf.distribute` has no such loop: `MultiWorkerMirroredStrategy` averages gradients in
each step, before they are applied.

Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019 (arXiv:1805.09767).
"""

from course_lib import strategy
from course_lib.tensorflow import Step

EVERY = 8


@strategy(wire="2(n-1)/n S / 8")
def local_sgd_in_tensorflow(task):
    step = Step(task, apart=True)  # each replica goes its own way for a while
    while step.begin():
        inputs, targets = step.read(task.index, task.spec.workers)  # (batch / workers, ...) each
        with step.computing():
            loss, *gradients = step.backward(inputs, targets)
        with step.applying():
            step.apply(loss, gradients)  # of this worker alone
        if (step.number + 1) % EVERY == 0:
            with step.reducing():
                for variable, mean in zip(step.variables, step.average(step.variables)):
                    variable.assign(mean)
        step.done(loss)
    return step.result()
