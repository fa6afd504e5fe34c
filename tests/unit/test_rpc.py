"""A parameter server hears of the loss of its workers, without a cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from course_lib.exchange.group import Meeting
from course_lib.record.events import Lifecycle, to_line
from course_lib.record.rundir import RunDir
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.torch.shard import calls


@pytest.mark.timeout(20)
def test_a_ps_hears_of_a_worker_that_was_lost_before_it_came(tmp_path: Path) -> None:
    """No connection of it closes."""
    spec, files = RunSpec(strategy="work()", workers=2, ps=1), RunDir(tmp_path)
    task = SimpleNamespace(spec=spec, files=files, name="ps:0", address="127.0.0.1")
    life = [Lifecycle("worker:0", "killed", "", 1.0), Lifecycle("worker:0", "lost", "", 1.0)]
    files.lifecycle.write_bytes(b"".join(map(to_line, life)))
    heard = calls(task)  # type: ignore[arg-type]
    assert next(heard) == (0, None, None)
    # and of one that came and went, as its connection closes
    other = Meeting(files.meetings / "servers", 1, (0, 0, 0))
    sock = other.call(2)
    assert sock
    sock.close()
    worker, peer, call = next(heard)
    assert (worker, call) == (1, None)
    assert peer is not None
    heard.close()
    other.close()
