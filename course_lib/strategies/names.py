"""The names of all strategies as a type, which editors complete and type checkers know. A test
holds it against the catalogue.
"""

from typing import Literal

StrategyName = Literal[
    "one_device",
    "mirrored",
    "tpu",
    "multi_worker_mirrored",
    "central_storage",
    "tensor_parallel",
    "pipeline_parallel",
    "fully_sharded",
    "parameter_server",
    "sync_parameter_server",
    "stale_synchronous",
    "backup_workers",
]
