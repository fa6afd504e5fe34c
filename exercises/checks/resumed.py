"""The judge of a checkpoint: a new process goes on from it, and must train bit for bit as if
nothing had happened.
"""

from __future__ import annotations

import secrets
from typing import Any

from course_lib.course.answers import Verdict
from course_lib.course.handed_in import Answer

from .processes import World, carry_out, ended

Complaint = tuple[str, str]


HINTS = (
    (
        "Read Trainer.step line by line, and ask of each name on the right: could it be different"
        " in a new process? The functions that draw random numbers have a state as well."
    ),
    (
        "model.state_dict() and optimizer.state_dict(); epoch, index and order; the states of"
        " shuffle, of torch (torch.get_rng_state) and of random (random.getstate). The state"
        " dicts hold the tensors themselves: copy.deepcopy them."
    ),
    (
        "restore: load_state_dict of model and optimizer; trainer.order, epoch and index;"
        " trainer.shuffle.set_state(...), torch.set_rng_state(...), random.setstate(...)."
    ),
)
BATCH, EXAMPLES, STEPS = 8, 40, 24
PARTS = {
    "parameters": (
        "the parameters",
        "Load the model's state_dict, into the model that the trainer has.",
    ),
    "buffers": (
        "the buffers of the model",
        "Batch normalisation keeps a running mean and variance, which are no parameters."
        " model.state_dict() has both.",
    ),
    "optimizer": (
        "the optimizer's state",
        "Adam keeps two means for each parameter, and the number of steps. They are in"
        " optimizer.state_dict().",
    ),
    "order": (
        "the order of the examples in this epoch",
        "trainer.order was drawn when the epoch began. The state of shuffle is that after the draw,"
        " so the order itself must be saved.",
    ),
    "index": ("index, the position in the epoch", "The next batch begins at trainer.index."),
    "epoch": ("the epoch", "The learning rate depends on trainer.epoch: save it, and set it."),
    "shuffle": (
        "the state of shuffle, which draws the order of the next epoch",
        "Save trainer.shuffle.get_state(), and give it to trainer.shuffle.set_state(...).",
    ),
    "torch": (
        "torch's random state, which draws the dropout",
        "Save torch.get_rng_state(), and give it to torch.set_rng_state(...), after all that draws."
        " A seed brings back the beginning, not this moment.",
    ),
    "python": (
        "Python's random state, which draws the flips",
        "Save random.getstate(), and give it to random.setstate(...).",
    ),
}


def trainer_of(seed: int) -> Any:
    """A trainer like the one in the notebook."""
    import random

    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, 4, generator=generator)
    labels = inputs.square().sum(1, keepdim=True)

    class Trainer:
        def __init__(self) -> None:
            torch.manual_seed(seed)
            random.seed(seed)
            layers = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)
            self.model = nn.Sequential(*layers, nn.Linear(16, 1))
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
            self.shuffle = torch.Generator().manual_seed(seed)
            self.order = torch.randperm(EXAMPLES, generator=self.shuffle)
            self.epoch, self.index = 0, 0

        def step(self) -> float:
            if self.index >= EXAMPLES:
                self.order = torch.randperm(EXAMPLES, generator=self.shuffle)
                self.epoch, self.index = self.epoch + 1, 0
            batch = self.order[self.index : self.index + BATCH]
            self.index += BATCH
            flip = random.choice([-1, 1])
            for group in self.optimizer.param_groups:
                group["lr"] = 0.01 * 0.8**self.epoch
            loss = (self.model(flip * inputs[batch]) - labels[batch]).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return float(loss)

    return Trainer()


def role(task: Any, learners: Any, seed: int, cut: int) -> dict[str, Any]:
    """Worker 0 trains, takes a snapshot and goes on; worker 1 trains undisturbed, and then resumes
    from the snapshot with another trainer. It says what was not as it was.
    """
    import copy
    import io
    import random

    import torch
    import torch.distributed as dist

    def parts(trainer: Any) -> dict[str, Any]:
        """All that the next step depends on."""
        parameters = list(trainer.model.parameters())
        adam = [trainer.optimizer.state.get(p, {}) for p in parameters]
        values = {
            "parameters": parameters,
            "buffers": list(trainer.model.buffers()),
            "optimizer": [value for each in adam for value in each.values()],
            "order": [trainer.order],
            "index": trainer.index,
            "epoch": trainer.epoch,
            "shuffle": [trainer.shuffle.get_state()],
            "torch": [torch.get_rng_state()],
            "python": random.getstate(),
        }
        return copy.deepcopy(values)

    def same(one: Any, two: Any) -> bool:
        if not isinstance(one, list):
            return bool(one == two)
        pairs = zip(one, two, strict=False)
        return len(one) == len(two) and all(torch.equal(a, b) for a, b in pairs)

    def written(state: Any) -> bytes:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        return buffer.getvalue()

    dist.init_process_group("gloo")
    whole = trainer_of(seed)
    losses = [whole.step() for _ in range(cut)]
    if task.index == 0:
        made = learners()
        state, seen, sent = made.snapshot(whole), dict[str, Any](), [b""]
        try:
            sent = [written(state)]
            torch.load(io.BytesIO(sent[0]))
        except Exception as error:
            words = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            seen["unreadable"] = words.partition(". ")[0]
            sent = [b""]
        dist.broadcast_object_list(sent)
        losses += [whole.step() for _ in range(STEPS - cut)]
        # the same objects are written as the same bytes
        seen["changed"] = bool(sent[0]) and sent[0] != written(state)
        return seen | {"losses": losses, "none": state is None or state == {}}
    before = parts(whole)
    losses += [whole.step() for _ in range(STEPS - cut)]
    end, trainer, received = parts(whole), trainer_of(seed + 1), [b""]
    for _ in range(5):  # to the end of an epoch, where no snapshot is taken
        trainer.step()
    dist.broadcast_object_list(received)
    state = torch.load(io.BytesIO(received[0])) if received[0] else None
    if state is None or state == {}:
        return {"losses": losses}
    learners().restore(trainer, state)
    now, moved = parts(trainer), trainer.index - before["index"]
    mine = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    apart = mine != {id(p) for p in trainer.model.parameters()}
    rest = [trainer.step() for _ in range(STEPS - cut)]
    final = parts(trainer)
    return {
        "losses": losses,
        "rest": rest,
        "wrong": [name for name in before if not same(now[name], before[name])],
        "end": all(same(final[name], end[name]) for name in ("parameters", "buffers")),
        "apart": apart,
        "moved": moved,
    }


def judge(task: str, answer: Answer) -> Verdict:
    cut = 5 * secrets.choice((1, 2)) + 2 + secrets.randbelow(2)  # in the middle of an epoch
    worlds = carry_out(answer, role, secrets.randbelow(10**6), cut, worlds=[{"workers": 2}])
    for done in ended(worlds):
        if wrong := complaint(done, cut):
            return Verdict(task, "not yet", *wrong)
    text = (
        f"A new process went on from step {cut} of a training with dropout and random flips: its"
        f" {STEPS - cut} losses, and the model in the end, are the same bit for bit."
    )
    return Verdict(task, "passed", text)


def complaint(done: World, cut: int) -> Complaint | None:
    one, two = done.values
    if one["none"]:
        return "snapshot returns nothing, or an empty dict.", (
            "Return a dict with all parts of the checkpoint. Another process restores it, to which"
            " nothing comes that is kept in self."
        )
    if why := one.get("unreadable"):
        return f"torch.save and torch.load do not bring the snapshot back: {why}.", (
            "Whole objects, such as a model or a generator, are code and data in one. Take their"
            " state: state_dict(), get_state()."
        )
    if one["losses"] != two["losses"]:
        return "The training that took a snapshot goes on otherwise than one that took none.", (
            "A snapshot only reads. Does it seed, draw a random number, take a step, or call"
            " model.eval()?"
        )
    if one["changed"]:
        return "The snapshot has changed while the training went on.", (
            "state_dict() gives the tensors themselves, and the next step changes what is in them."
            " Copy them: copy.deepcopy(...)."
        )
    if two["rest"] == two["losses"][cut:] and two["end"]:
        return None
    at = next((k for k, x in enumerate(two["rest"]) if x != two["losses"][cut + k]), STEPS - cut)
    text = (
        f"Resumed at step {cut}: the loss of step {cut + at} is {two['rest'][at]:.6f}, undisturbed"
        f" it is {two['losses'][cut + at]:.6f}."
        if at < STEPS - cut
        else "All losses are equal, but not the model in the end."
    )
    if two["apart"]:
        return text, (
            "The optimizer steps other tensors than those of trainer.model: it still has the old"
            " ones. Load values into the tensors that are there, with load_state_dict."
        )
    if two["wrong"] == ["index"]:
        return text, position(two["moved"])
    names = [PARTS[name][0] for name in two["wrong"]]
    if not names:
        return text, "Right after restore all is as it was. Is the model in train mode?"
    cures = [PARTS[name][1] for name in two["wrong"][:3]]
    return f"{text} Not as it was: {'; '.join(names)}.", " ".join(cures)


def position(moved: int) -> str:
    if moved == BATCH:
        return "A batch is left out: index says where the next one begins, so add nothing to it."
    if moved == -BATCH:
        return "A batch is done twice: index says where the next one begins, so subtract nothing."
    return (
        "trainer.index is not as it was. Is it saved, and set by restore? It counts examples, not"
        " batches, from the beginning of the epoch."
    )
