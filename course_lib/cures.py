"""Known failures of the frameworks: what their errors say, and what helps, in one line each."""

import re

GONE = (
    "(?i:closed by peer|reset by peer|connection was (likely )?closed|broken pipe|socket closed|"
    r"eof \(this error|connection refused|pair closure)"
)
"""How gloo, TensorPipe and gRPC say that a peer is gone."""
CURES = {
    "PerReplica|Invalid reduction dimension 0": "call the model in a step that strategy.run runs, "
    "and reduce its loss with axis=None; Keras 3's fit and train_on_batch do not work under "
    "MultiWorkerMirroredStrategy: write that step yourself",
    "configured at program startup|cannot be modified after (being )?initial": "make the strategy "
    "and logical devices before any tensor, variable, model or dataset",
    r"(strategy|tensorflow/optimizer)\.py:\d+\)\nAssertionError|Mixing different tf\.dis": "make "
    "model, variables, optimizer and metrics in `with strategy.scope():` of one strategy",
    "NCCL built in|only supported with GPUs|No OpKernel.*Nccl": "NCCL is for NVIDIA GPUs; on CPUs "
    "PyTorch has the backend gloo, TensorFlow HierarchicalCopyAllReduce() or RING",
    "environment variable (RANK|WORLD_SIZE|MASTER_ADDR)": "the run sets it for each task with "
    'start(..., framework="torch")',
    "process group has not been initialized": 'call dist.init_process_group("gloo") before it, in '
    "every task; the run sets address, rank and world size",
    f"{GONE}|Timed out waiting|socket has timed out": "another task has ended or does not take "
    "part: have all ranks make the same calls, and look at run.log(...) of the others",
    "ddress already in use|EADDRINUSE|Could not start gRPC": "another server has the port: leave "
    "the addresses that the run has set, or take port 0 for one that is free",
    "out of memory|OOM when allocating|(can't|Unable to) allocate|MemoryError": "take fewer "
    "examples at a time (a smaller batch, or accumulated parts of it), or fewer tasks",
    "finished reduction in the prior iteration": "part of the model had no part in the loss: use "
    "all of it, or DistributedDataParallel(model, find_unused_parameters=True)",
    "that requires a gradient|not require grad|No gradients provided": "no parameter leads to the "
    "loss: no detach, no_grad or frozen model before it; in TensorFlow compute it inside the tape",
    "tensors to be on the same device|on the expected device|CUDA enabled|_cuda_setDevice": "move "
    'model and batch to one device, "cuda" if torch.cuda.is_available() else "cpu"',
    "shapes cannot be multiplied|size-incompatible|expected axis -1": "the last dimension of the "
    "input must be what the layer takes; flatten images, or change the layer",
    "singleton tf.Variables|seed_generator_state": "make variables of a layer in its __init__ or "
    "build; keras.random makes one unless it has a seed=keras.random.SeedGenerator() made there",
    r'Missing key\(s\) in state_dict.*"module\.': "the names of a DistributedDataParallel model "
    "begin with module.: save and load ddp.module.state_dict()",
}
"""What the error says -> what helps; the first that fits counts."""


def cure_of(reason: str, traceback: str) -> str:
    """The cure for an error, `Kind: message`; "" if it is none of these. One without a message is
    known by its traceback.
    """
    text = reason if ": " in reason else f"{reason}: {traceback}"
    fits = (cure for says, cure in CURES.items() if re.match(rf"\w+: .*({says})", text, re.S))
    return next(fits, "")
