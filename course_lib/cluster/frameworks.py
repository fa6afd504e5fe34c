"""Prepares processes for a framework: environment variables before its import, modules worth
importing early, threads, and a cluster's addresses.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import socket
import sys
from typing import Any

from course_lib.cluster.task import Task
from course_lib.network.layout import LOOPBACK_INTERFACE, OPEN, interface
from course_lib.workloads.digits import images

# Set when our first process is started, and inherited by all others. One thread in every numerical
# library: a process that forks must have no others, and a task gets its threads from the plan.
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # TensorFlow's hundred threads would each dirty an arena: slower starts, more memory. And what a
    # step frees is kept for the next one, up to 64 MiB: to get it back from Linux takes a page
    # fault for every 4 KiB, hundreds in a step. glibc itself raises its thresholds as far as this
    "GLIBC_TUNABLES": "glibc.malloc.arena_max=1"
    f":glibc.malloc.mmap_threshold={32 << 20}:glibc.malloc.trim_threshold={64 << 20}",
    # TensorFlow imports pandas if it is there, and that pyarrow, whose allocator starts a thread
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OMP_WAIT_POLICY": "PASSIVE",  # tasks share cores: a thread that waits must not spin
    # what matters comes as an exception; without a GPU the rest is alarm about CUDA
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # as a warning it would tell, at each start, that addresses of a private network have no names
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # its sums differ with the number of threads; without it N workers and one device agree
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "KERAS_BACKEND": "tensorflow",
    # not the machine's name, which some cannot resolve; tasks on hosts have another
    "GLOO_SOCKET_IFNAME": LOOPBACK_INTERFACE,
}

# Imported by the zygote, so that no task pays for it again. Imports only: a process that has run
# one operation cannot be forked. Of our own it is what every strategy, or every program of a
# learner's own, begins with.
_MODULES = {
    "tensorflow": ("numpy", "tensorflow", "keras", "course_lib.strategies.tensorflow.steps"),
    # DDP imports torch._dynamo at its first use
    "torch": (
        *("numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo"),
        *("torch.distributed.checkpoint", "course_lib.strategies.torch.steps"),
        "course_lib.strategies.torch.watching",
    ),
    "python": ("numpy",),
}
# to make hosts and links with; it takes longer to import than to use
_NETWORK = ("pyroute2",) if sys.platform == "linux" else ()


def preload(framework: str) -> None:
    """Import a framework, and read the images that all workloads train on: every task then shares
    them.
    """
    for name in (*_MODULES[framework], *_NETWORK):
        importlib.import_module(name)
    images()


def prepare(task: Task) -> None:
    """Tell the framework in this process its threads and the cluster it belongs to, the way its own
    documentation says.

    TensorFlow reads `TF_CONFIG`; torch reads `MASTER_ADDR`, `MASTER_PORT`, `RANK` and `WORLD_SIZE`.
    Sources: tf.distribute multi-worker guide, torch.distributed "environment variable
    initialization".
    """
    # through which torch's collectives and NCCL talk
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = interface(task.address)
    if task.spec.framework == "tensorflow":
        this = {"type": task.job, "index": task.index}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": task.addresses, "task": this})
        if task.files.facts.network in OPEN:
            os.environ["TF_GRPC_REUSE_PORT"] = "1"  # beside the sockets of `shut_out`
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(task.threads)
        # with buckets, one thread may wait in an exchange, and one for device time to pass
        waiting = 2 if task.spec.bucket_mb else 0
        tf.config.threading.set_inter_op_parallelism_threads(max(2, task.threads) + waiting)
    elif task.spec.framework == "torch":
        host, port = next(iter(task.addresses.values()))[0].rsplit(":", 1)
        os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": port}
        os.environ |= {"RANK": str(task.rank), "WORLD_SIZE": str(len(task.spec.tasks))}
        import torch

        torch.set_num_threads(task.threads)
        _meet_at(host)
        if task.spec.own:
            pkgutil.resolve_name("course_lib.strategies.torch.watching:watch")(task)


def _meet_at(host: str) -> None:
    """Make the store at which torch's processes meet listen at this address only: by itself it
    listens on all interfaces, and lets in anybody.
    """
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    plain = rendezvous.TCPStore

    def store(host_name: str, port: int, *args: Any, **options: Any) -> Any:
        if options.get("is_master") and host_name == host:
            with contextlib.suppress(OSError):  # this process has a store at this port already
                options["master_listen_fd"] = socket.create_server((host_name, port)).detach()
        return plain(host_name, port, *args, **options)

    rendezvous.TCPStore = store
