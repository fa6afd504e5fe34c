"""How a learner's own PyTorch model is divided: the parts between which a pipeline is cut, and the
layers that tensor parallelism cuts.
"""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, softmax

from course_lib import Run, Workload, hardware, start
from course_lib.errors import SpecError
from course_lib.strategies.torch.tensor_parallel import Heads, plan_of, units_of
from course_lib.strategies.torch.trial import stages_of
from tests import own_models
from tests.helpers import losses

NAMES = ["embed", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "logits"]
TOKENS = torch.arange(10).view(2, 5)


class Model(nn.Module):
    """A chain of modules, with one thing that is not as a pipeline needs it."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.embed = nn.Embedding(12, 8)
        relu = nn.ReLU(inplace=True)  # the same module twice
        self.blocks = nn.ModuleList([nn.Linear(8, 8), relu, nn.Linear(8, 8), relu])
        self.logits = nn.Linear(8, 12)
        if wrong == "tied":
            self.blocks[2].weight = self.blocks[0].weight
        if wrong == "loose":
            self.places = nn.Parameter(torch.zeros(8))

    def forward(self, tokens: Any) -> Any:
        first = values = self.embed(tokens)
        if self.wrong == "loose":
            values = values + self.places
        if self.wrong == "between":
            values = values + 1
        for block in self.blocks:
            values = block(values)
        if self.wrong == "around":
            values = values + first
        logits = self.logits(values)
        return -logits if self.wrong == "after" else logits


def test_parts_that_follow_each_other_are_found_in_any_model() -> None:
    assert stages_of(Model(), NAMES, TOKENS) == 4  # with weights
    assert stages_of(nn.Sequential(nn.Embedding(12, 8), nn.ReLU()), (), TOKENS) == 1
    transformer = own_models.transformer
    in_half = torch.autocast("cpu", torch.bfloat16)(stages_of)
    assert in_half(transformer.built("torch", 0), transformer.stages, TOKENS) == 4


@pytest.mark.parametrize(
    ("wrong", "names", "said"),
    [
        ("", (), "no torch.nn.Sequential: Workload.*, stages="),
        ("", [*NAMES, "tail"], "not all modules of its model: AttributeError.*tail"),
        ("", NAMES[:-1], "parameter logits.weight is in 0 of its stages"),
        ("", ["blocks.0", "embed", *NAMES[2:]], "stage blocks.0 cannot take what comes from the d"),
        ("tied", NAMES, "is in 2 of its stages, and each has to be in one"),
        ("loose", NAMES, "parameter places is in 0 of its stages"),
        ("between", NAMES, "its stages, called one after the other, are not its model"),
        ("around", NAMES, "its stages, called one after the other, are not its model"),
        ("after", NAMES, "its stages, called one after the other, are not its model"),
    ],
)
def test_stages_that_are_not_the_model_are_named(wrong: str, names: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        stages_of(Model(wrong), names, TOKENS)
    assert "\n" not in str(caught.value)


def test_a_stage_hands_on_one_tensor_of_floats() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = nn.Linear(4, 3)

        def forward(self, found: Any) -> Any:
            return self.logits(found[0])

    model = nn.Sequential(nn.LSTM(20, 4), Last())
    inputs = torch.from_numpy(own_models.LARGEST["train"][0][:2]).float()
    with pytest.raises(ValueError, match="0 makes a tuple"):
        stages_of(model, (), inputs)


class Attention(nn.Module):
    """Attention and two dense layers, written out; `heads` as the forward pass counts them."""

    def __init__(self, heads: int = -1, between: Any = torch.relu) -> None:
        super().__init__()
        self.heads, self.between = heads, between
        self.queries, self.keys, self.values = (nn.Linear(16, 16) for _ in range(3))
        self.after, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, values: Any) -> Any:
        batch, length, _ = values.shape
        read = (self.queries(values), self.keys(values), self.values(values))
        split = (each.view(batch, length, self.heads, 4).transpose(1, 2) for each in read)
        mixed = scaled_dot_product_attention(*split, is_causal=True)
        values = self.norm(values + self.after(mixed.transpose(1, 2).flatten(2)))
        return values + self.down(self.between(self.up(values)))


BY_HAND = {f"*.{name}": "columns" for name in ("queries", "keys", "values", "up")}
BY_HAND |= {"*.after": "rows", "*.down": "rows"}


def by_hand(name: str, parallel: Any = BY_HAND, middle: Any = Attention) -> Workload:
    """The work of predicting the next token with a model whose attention is written out."""

    def builder() -> Any:
        return nn.Sequential(nn.Embedding(12, 16), middle(), middle(), nn.Linear(16, 12))

    fields: dict[str, Any] = {"loss": "next_token", "learning_rate": 0.05}
    return Workload(name, **own_models.REPEATED, torch=builder, parallel=parallel, **fields)


def test_pairs_of_dense_layers_and_attention_are_found() -> None:
    block = nn.TransformerEncoderLayer(16, 4, 24)
    mlp = nn.Sequential(
        nn.Linear(4, 6), nn.GELU(), nn.Dropout(0.1), nn.Linear(6, 4), nn.Linear(4, 2)
    )
    mixed = nn.Sequential(nn.Linear(4, 6), nn.Softmax(-1), nn.Linear(6, 4))  # no pair
    model = nn.Sequential(block, mlp, mixed)
    plan = plan_of(model, {})
    assert plan == {
        "0.linear1": "columns",
        "0.linear2": "rows",
        "0.self_attn": "heads",
        "1.0": "columns",
        "1.3": "rows",
    }
    assert set(units_of(model, plan)) == {(24, "hidden unit"), (4, "head"), (6, "hidden unit")}


def test_a_plan_names_layers_between_dots() -> None:
    model = by_hand("named").built("torch", 0)
    assert set(plan_of(model, BY_HAND)) == {
        f"{block}.{name[2:]}" for block in (1, 2) for name in BY_HAND
    }
    model[2].up.weight = model[1].up.weight
    for given, said in (
        (
            {"up": "columns"},
            "parallel names 'up', and no module is called so; its modules of type L",
        ),
        ({"*.up": "heads"}, "1.up is a Linear, and heads is a way to cut a torch.nn.Multihead"),
        ({"0": "columns"}, "0 is a Embedding, and columns is a way to cut a torch.nn.Linear"),
        ({"*.down": "rows"}, "parallel cuts nothing by columns, and rows take what columns make"),
        ({"1.up": "columns"}, "1.up shares its weights with another module"),
        ({}, "has no two Linear layers in a Sequential .* Workload.*parallel="),
    ):
        with pytest.raises(ValueError, match=said) as caught:
            plan_of(model, given)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_attention_whose_heads_lie_side_by_side_is_the_same(batch_first: bool, bias: bool) -> None:
    given = nn.MultiheadAttention(16, 4, batch_first=batch_first, bias=bias)
    values, heads = torch.randn(3, 5, 16), Heads(given)
    values = values if batch_first else values.transpose(0, 1)
    causal, padding = torch.ones(5, 5).triu(1) > 0, torch.tensor([[False] * 3 + [True] * 2] * 3)
    for masks in ((None, None), (causal, None), (None, padding), (causal, padding)):
        given_masks = {"attn_mask": masks[0], "key_padding_mask": masks[1]}
        theirs, _ = given(values, values, values, need_weights=False, **given_masks)
        ours, _ = heads(values, values, values, **given_masks)
        torch.testing.assert_close(ours, theirs)
    state = heads.state_dict()
    assert state.keys() == given.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in given.state_dict().items())


def test_a_model_cut_by_a_plan_learns_what_one_device_learns() -> None:
    fields: dict[str, Any] = {"optimizer": "momentum"}
    fields |= {"workload": by_hand("cut"), "framework": "torch", "steps": 20, "seed": 1}
    with start("one_device", **fields) as run:
        alone = run.wait(60)
    for workers in (2, 4):
        with start("tensor_parallel", workers=workers, **fields) as run:
            cut = run.wait(60)
        assert losses(cut.trace) == pytest.approx(losses(alone.trace), rel=1e-4)
        assert len(set(cut.result["parameter_digest"].values())) == 1
        theirs = alone.model().state_dict()
        for name, value in cut.model().state_dict().items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-5)


def test_workers_draw_the_same_for_what_they_all_have() -> None:
    """Dropout, without which nothing is drawn, in and between layers that are cut."""

    def middle() -> Any:
        return nn.TransformerEncoderLayer(16, 4, 24, dropout=0.3, batch_first=True)

    noisy = by_hand("noisy_blocks", parallel={}, middle=middle)
    with start("tensor_parallel", workload=noisy, workers=2, steps=8) as run:
        assert len(set(run.wait(60).result["parameter_digest"].values())) == 1
    theirs = nn.Sequential(nn.Embedding(12, 16), middle(), middle(), nn.Linear(16, 12))
    assert run.model().state_dict().keys() == theirs.state_dict().keys()


class Scaled(nn.Module):
    """A parameter between two layers that are cut: each worker would change its own copy."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 16)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, values: Any) -> Any:
        return self.down(self.scale * self.up(values))


PAIR = {"*.up": "columns", "*.down": "rows"}
WRONG: dict[str, tuple[Any, Any, str]] = {
    "fixed_heads": (
        BY_HAND,
        lambda: Attention(heads=4),
        "reshapes with -1",
    ),
    "one_half": (
        {"*.up": "columns"},
        Attention,
        "rows take",
    ),
    "softmax": (
        BY_HAND,
        lambda: Attention(between=lambda units: softmax(units, -1)),
        "changes its outputs",
    ),
    "scale": (
        PAIR,
        Scaled,
        "gradient of [12].scale",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_found_before_anything_starts(name: str) -> None:
    parallel, middle, said = WRONG[name]
    with pytest.raises(SpecError, match=f"workload='{name}': .*{said}") as caught:
        start("tensor_parallel", workload=by_hand(name, parallel, middle), workers=2)
    assert "\n" not in str(caught.value)
    assert Run.going() == []


def test_own_heads_are_shared_out_evenly() -> None:
    with pytest.raises(SpecError, match="workers=3: at most 2"):
        start("tensor_parallel", framework="torch", workload=own_models.transformer, workers=3)


@pytest.mark.skipif(
    not hardware.probe().private_network.ok, reason="the system refuses private networks"
)
@pytest.mark.parametrize(
    ("strategy", "exchanges"), [("tensor_parallel", 2 * 4), ("pipeline_parallel", 1)]
)
def test_as_many_bytes_are_sent_as_the_facts_say(strategy: str, exchanges: int) -> None:
    """Of two blocks: an all-reduce for attention and one for dense layers, forward and back; or
    the activations between two stages one way.
    """
    fields: dict[str, Any] = {"framework": "torch", "workers": 2, "hosts": 2, "steps": 24}
    result = start(strategy, workload=own_models.transformer, **fields).wait(100).result
    activations = 4 * 128 * 8 * 32  # float32, batch, length, width
    for worker in ("worker:0", "worker:1"):
        sent = result["wire_bytes_per_step"][worker]["sent"]
        assert sent == pytest.approx(exchanges * activations, rel=0.05)
