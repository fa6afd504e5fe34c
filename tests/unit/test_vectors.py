"""Sparse vectors, as parameter servers in PyTorch get and send them."""

from __future__ import annotations

import importlib
import socket
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.exchange.messages import Peer
from tests.helpers import fuzzed

torch: Any = pytest.importorskip("torch")
vectors: Any = importlib.import_module("course_lib.strategies.torch.models")
shards: Any = importlib.import_module("course_lib.strategies.torch.shard")

MASKS = st.lists(st.booleans(), min_size=1, max_size=40)


def sparse(mask: list[bool]) -> Any:
    places = torch.tensor(np.flatnonzero(mask))
    return vectors.vector(places, torch.arange(1.0, len(places) + 1), len(mask))


def gradients_of_a_model() -> list[Any]:
    """Of an embedding, in which rows 2 and 3 are looked up, and of a dense layer."""
    from torch import nn

    torch.manual_seed(0)
    table, layer = nn.Embedding(6, 3, sparse=True), nn.Linear(3, 2)
    layer(table(torch.tensor([2, 3, 2]))).square().sum().backward()
    return [each.grad for each in (table.weight, layer.weight, layer.bias)]


def test_gradients_end_to_end_are_sparse_if_one_of_them_is() -> None:
    gradients = gradients_of_a_model()
    laid = vectors.end_to_end(gradients)
    assert laid.is_sparse
    assert torch.equal(laid.to_dense(), vectors.flat(gradients))
    begins, lengths = vectors.runs(laid)
    assert begins.tolist() == [6, 18]  # two rows, then the dense layer
    assert lengths.tolist() == [6, 8]
    assert not vectors.end_to_end(gradients[1:]).is_sparse


def test_numbers_that_are_sparse_in_two_dimensions_find_their_places_too() -> None:
    table = torch.zeros(4, 5, requires_grad=True)
    index = torch.tensor([[1, 3], [0, 0]])
    (table.gather(1, index, sparse_grad=True) * torch.tensor([[1.0, 2], [3, 4]])).sum().backward()
    laid = vectors.end_to_end([table.grad])
    assert torch.equal(laid.to_dense(), table.grad.to_dense().reshape(-1))


@fuzzed(60)
@given(MASKS, st.integers(1, 5))
def test_parts_are_those_of_the_dense_vector(mask: list[bool], parts: int) -> None:
    whole = sparse(mask)
    cut = vectors.split(whole, parts)
    for part, dense in zip(cut, whole.to_dense().tensor_split(parts), strict=True):
        assert torch.equal(part.to_dense(), dense)


@fuzzed(60)
@given(MASKS)
def test_what_is_sent_as_runs_comes_as_it_was(mask: list[bool]) -> None:
    ours, theirs = socket.socketpair()
    here, there = Peer("ps:0", ours), Peer("worker:0", theirs)
    whole = sparse(mask)
    gradient = shards.Gradient(1, 2, 3, whole, 0.5)
    shards.send(here, ["push", "", [gradient]])
    _, _, (found,) = shards.receive(there)
    assert torch.equal(found.values.to_dense(), whole.to_dense())
    assert torch.equal(found.values.indices(), whole.indices())
    runs = sum(b and not a for a, b in zip([False, *mask], mask, strict=False))
    assert vectors.bytes_sent(whole) == 8 * runs + 4 * sum(mask)
    ours.close()
    theirs.close()


def test_a_message_with_places_outside_of_the_vector_is_no_vector() -> None:
    begins, lengths = torch.tensor([6, -2]).split(1), torch.tensor([3])
    for begin in begins:
        with pytest.raises(RuntimeError):
            vectors.of_runs(begin.int(), lengths.int(), torch.ones(3), 8)


@fuzzed(40)
@given(st.lists(st.tuples(MASKS, st.booleans(), st.booleans()), max_size=12))
def test_a_worker_that_gets_only_what_has_changed_has_the_values_of_the_shard(
    updates: list[tuple[list[bool], bool, bool]],
) -> None:
    """Whatever updates it has missed, and whether their gradients were sparse."""
    size = 40
    shard = object.__new__(shards.Shard)
    nothing = SimpleNamespace(note=lambda **_: None, close=lambda *_: None)
    spec = SimpleNamespace(evaluate_every=0, batch=1)
    ignored = dict.fromkeys(("record", "update"), lambda *_: None)
    shard.spec, shard.task = spec, SimpleNamespace(index=0, **ignored)
    shard.values, shard.version = torch.rand(size), 0
    shard.changed = torch.zeros(size, dtype=torch.int32)
    shard.census, shard.losses, shard.steps_done = nothing, [], [0]
    shard.counted, shard.number, shard.ahead, shard.rates = 1, 0, 0, [0.1]
    shard.optimizer = torch.optim.SGD([shard.values])
    mine, version = torch.zeros(size), -1
    for mask, is_sparse, pulls in updates:
        gradient = sparse(mask + [False] * (size - len(mask)))
        values = gradient if is_sparse else gradient.to_dense()
        with shard.updating([shards.Gradient(0, 0, 0, values, 0.0)]):
            shard.values.grad = values
            shard.optimizer.step()
        if pulls:
            snapshot = shard.snapshot(version)
            if snapshot.values.is_sparse:
                mine[snapshot.values.indices()[0]] = snapshot.values.values()
            else:
                mine = snapshot.values
            version = snapshot.version
            assert torch.equal(mine, shard.values)
            assert vectors.bytes_sent(snapshot.values) <= shard.values.nbytes
