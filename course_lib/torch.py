"""The training step in PyTorch, for strategies of your own: `notebooks/reference/your_strategy.md`.

from course_lib.torch import Step, join
"""

from importlib import import_module
from typing import Any

from course_lib.strategies.torch.models import flat as flat
from course_lib.strategies.torch.parameter_server import compute as compute
from course_lib.strategies.torch.parameter_server import pull as pull
from course_lib.strategies.torch.parameter_server import push as push
from course_lib.strategies.torch.server import Servers as Servers
from course_lib.strategies.torch.shard import Gradient as Gradient
from course_lib.strategies.torch.shard import Later as Later
from course_lib.strategies.torch.shard import Reply as Reply
from course_lib.strategies.torch.shard import Shard as Shard
from course_lib.strategies.torch.shard import on_ps as on_ps
from course_lib.strategies.torch.shard import serve as serve
from course_lib.strategies.torch.steps import TorchStep as Step  # noqa: F401  # public
from course_lib.strategies.torch.steps import join as join

# what takes PyTorch a second to import, and few strategies need
LATER = {"Pipeline": "pipeline_parallel", "cut": "tensor_parallel", "plan_of": "tensor_parallel"}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"course_lib.torch has no {name}")
    return getattr(import_module(f"course_lib.strategies.torch.{LATER[name]}"), name)
