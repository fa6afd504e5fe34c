"""The training step in PyTorch, for strategies of your own: `notebooks/reference/your_strategy.md`.

from course_lib.torch import Step, join
"""

from typing import TYPE_CHECKING

from course_lib.notebook import lazy
from course_lib.strategies.torch.parameter_server import compute as compute
from course_lib.strategies.torch.parameter_server import pull as pull
from course_lib.strategies.torch.parameter_server import push as push
from course_lib.strategies.torch.server import Servers as Servers
from course_lib.strategies.torch.shard import Later as Later
from course_lib.strategies.torch.shard import on_ps as on_ps
from course_lib.strategies.torch.shard import serve as serve
from course_lib.strategies.torch.steps import TorchStep as Step  # noqa: F401  # public
from course_lib.strategies.torch.steps import join as join

if TYPE_CHECKING:  # what PyTorch takes a second to import, and few strategies need
    from course_lib.strategies.torch.pipeline_parallel import Pipeline as Pipeline
    from course_lib.strategies.torch.tensor_parallel import cut as cut
    from course_lib.strategies.torch.tensor_parallel import plan_of as plan_of

__getattr__, __dir__ = lazy.names(__name__)
