"""Ready-made answers: where each is defined, and what it is. A task names those that would do it
for the learner (`ExerciseTask.ready_made`); `A | B` names both.

A name is that of the module in which the code stands, which need not be the one that is imported:
`torch.distributed.all_reduce` is defined in `torch.distributed.distributed_c10d`.
"""

_C10D, _C = "torch.distributed.distributed_c10d", "torch._C._distributed_c10d"

LIBRARY = {"course_lib.collectives.algorithms": "the library's own all-reduce"}
ALL_REDUCE = {
    **{
        f"{_C10D}.{name}": "PyTorch's own all-reduce"
        for name in ("all_reduce", "all_reduce_coalesced")
    },
    **{f"{_C}.{name}": "PyTorch's own all-reduce" for name in ("allreduce", "allreduce_coalesced")},
    "torch.distributed.nn.functional.all_reduce": "PyTorch's own all-reduce",
    "torch.distributed._functional_collectives": "PyTorch's own collectives",
}
DATA_PARALLEL = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "PyTorch's DistributedDataParallel",
    "torch.nn.parallel.data_parallel": "PyTorch's DataParallel",
    "torch.distributed._composable": "PyTorch's replicate",
    "torch.distributed.fsdp": "PyTorch's FSDP",
}
AVERAGING = {
    **DATA_PARALLEL,
    "torch.distributed.nn": "an exchange of torch.distributed.nn, made for autograd",
    "torch.distributed._functional_collectives": "PyTorch's own functional collectives",
    "torch.distributed.algorithms.model_averaging": "PyTorch's own averaging of models",
    "torch.distributed.algorithms.ddp_comm_hooks": "a communication hook of PyTorch's DDP",
    "torch.distributed.utils._sync_module_states": "what PyTorch's DDP itself begins with",
}
SHARDED_OPTIMIZER = {
    "torch.distributed.optim.zero_redundancy_optimizer": "PyTorch's ZeroRedundancyOptimizer"
}
SAMPLER = {
    "torch.utils.data.distributed": "PyTorch's DistributedSampler",
    "course_lib.workloads.order": "the library's own order of examples",
}
_TF = "tensorflow.python.distribute"
TENSORFLOW_REDUCE = {
    f"{_TF}.distribute_lib.StrategyBase.reduce": "TensorFlow's strategy.reduce",
    f"{_TF}.distribute_lib.ReplicaContextBase.all_reduce": "TensorFlow's all_reduce",
    f"{_TF}.cross_device_ops": "TensorFlow's cross-device operations",
}
PARAMETER_SERVER = {
    **{
        f"course_lib.strategies.torch.{name}": "the library's own parameter server"
        for name in ("parameter_server", "sync_parameter_server", "server", "shard")
    },
    "torch.distributed.rpc": "PyTorch's RPC",
    **ALL_REDUCE,
}
