"""Exercise 13 on real processes: a checkpoint that outlives a crash, and a training that is resumed
bit for bit; wrong answers and unusual right ones.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.answers import Answers

ANSWERS = Answers("13_when_workers_die", "exercise_13_processes", varies=True, sample=5)
wrong, right = ANSWERS.wrong, ANSWERS.right

# --- save ---


def write(state: Any, name: str, flush: bool = True, sync: bool = True, mode: str = "wb") -> None:
    """What the solution does before it replaces, to be changed."""
    with open(name, mode) as file:  # noqa: PTH123
        torch.save(state, file)
        if flush:
            file.flush()
        if sync:
            os.fsync(file.fileno())


@right("save")
def with_a_path(state: Any, path: str) -> None:
    part = Path(path).with_suffix(".tmp")
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file)
    part.replace(path)


@right("save")
def bytes_by_system_calls(state: Any, path: str) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    left = memoryview(buffer.getvalue())
    file = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        while left:
            left = left[os.write(file, left) :]
        os.fsync(file)
    finally:
        os.close(file)
    os.rename(path + ".new", path)  # noqa: PTH104


@right("save")
def with_a_name_of_its_own(state: Any, path: str) -> None:
    """A new name each time, which is removed after an error; the folder is synced too."""
    folder = os.path.dirname(path)  # noqa: PTH120
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        try:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            os.remove(file.name)  # noqa: PTH107
            raise
    os.replace(file.name, path)  # noqa: PTH105
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


@right("save")
def synced_by_its_name(state: Any, path: str) -> None:
    """Torch writes the file itself; it is opened once more to be synced."""
    part = f"{path}.{os.getpid()}"
    torch.save(state, part)
    file = os.open(part, os.O_RDONLY)
    os.fsync(file)
    os.close(file)
    os.replace(part, path)  # noqa: PTH105


@right("save")
def a_link_to_the_newest(state: Any, path: str) -> None:
    """Each checkpoint keeps its file, and a link with the name is what is replaced."""
    whole, link = f"{path}-{state['step']}", Path(path + ".link")
    write(state, whole)
    link.unlink(missing_ok=True)
    link.symlink_to(whole)
    link.replace(path)


@right("save")
def syncs_all(state: Any, path: str) -> None:
    write(state, path + ".part", sync=False)
    os.sync()
    os.replace(path + ".part", path)  # noqa: PTH105


@right("save")
def without_a_flush(state: Any, path: str) -> None:
    """Torch flushes by itself what it has written."""
    write(state, path + ".part", flush=False)
    os.replace(path + ".part", path)  # noqa: PTH105


@wrong("save")
def at_path_itself(state: Any, path: str) -> None:
    torch.save(state, path)


@wrong("save")
def at_path_itself_and_synced(state: Any, path: str) -> None:
    write(state, path)


@wrong("save")
def never_synced(state: Any, path: str) -> None:
    torch.save(state, path + ".part")
    os.replace(path + ".part", path)  # noqa: PTH105


@wrong("save")
def flushed_only(state: Any, path: str) -> None:
    write(state, path + ".part", sync=False)
    os.replace(path + ".part", path)  # noqa: PTH105


@wrong("save")
def synced_before_it_is_written(state: Any, path: str) -> None:
    with open(path + ".part", "wb") as file:  # noqa: PTH123
        os.fsync(file.fileno())
        torch.save(state, file)
    os.replace(path + ".part", path)  # noqa: PTH105


@wrong("save")
def synced_after_replace(state: Any, path: str) -> None:
    torch.save(state, path + ".part")
    os.replace(path + ".part", path)  # noqa: PTH105
    with open(path, "rb+") as file:  # noqa: PTH123
        os.fsync(file.fileno())


@wrong("save")
def only_the_folder_is_synced(state: Any, path: str) -> None:
    torch.save(state, path + ".part")
    os.replace(path + ".part", path)  # noqa: PTH105
    directory = os.open(os.path.dirname(path), os.O_RDONLY)  # noqa: PTH120
    os.fsync(directory)
    os.close(directory)


@wrong("save")
def copied(state: Any, path: str) -> None:
    write(state, path + ".part")
    shutil.copy(path + ".part", path)


@wrong("save")
def removed_and_renamed(state: Any, path: str) -> None:
    write(state, path + ".part")
    if os.path.exists(path):  # noqa: PTH110
        os.remove(path)  # noqa: PTH107
    os.rename(path + ".part", path)  # noqa: PTH104


@wrong("save")
def removes_what_is_not_there(state: Any, path: str) -> None:
    write(state, path + ".part")
    os.remove(path)  # noqa: PTH107
    os.rename(path + ".part", path)  # noqa: PTH104


@wrong("save")
def moved_aside(state: Any, path: str) -> None:
    write(state, path + ".part")
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, path + ".old")  # noqa: PTH104
    os.rename(path + ".part", path)  # noqa: PTH104


@wrong("save")
def a_copy_of_the_old_one(state: Any, path: str) -> None:
    if os.path.exists(path):  # noqa: PTH110
        shutil.copy(path, path + ".bak")
    write(state, path)


@wrong("save")
def the_old_one_moved_and_written_anew(state: Any, path: str) -> None:
    if os.path.exists(path):  # noqa: PTH110
        os.replace(path, path + ".bak")  # noqa: PTH105
    write(state, path)


@wrong("save")
def in_the_folder_for_temporary_files(state: Any, path: str) -> None:
    part = os.path.join(tempfile.gettempdir(), "lockstep-part")  # noqa: PTH118
    try:
        write(state, part)
        os.replace(part, path)  # noqa: PTH105
    finally:
        Path(part).unlink(missing_ok=True)


@wrong("save")
def moved_from_the_folder_for_temporary_files(state: Any, path: str) -> None:
    part = os.path.join(tempfile.gettempdir(), "lockstep-moved")  # noqa: PTH118
    try:
        write(state, part)
        shutil.move(part, path)
    finally:
        Path(part).unlink(missing_ok=True)


@wrong("save")
def in_a_folder_beside(state: Any, path: str) -> None:
    folder = os.path.join(os.path.dirname(path), "parts")  # noqa: PTH118, PTH120
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    write(state, folder + "/part")
    os.replace(folder + "/part", path)  # noqa: PTH105


@wrong("save")
def replaced_in_a_finally(state: Any, path: str) -> None:
    try:
        write(state, path + ".part")
    finally:
        os.replace(path + ".part", path)  # noqa: PTH105


@wrong("save")
def errors_are_swallowed(state: Any, path: str) -> None:
    try:
        write(state, path + ".part")
        os.replace(path + ".part", path)  # noqa: PTH105
    except Exception as error:
        print(f"not saved: {error}")


@wrong("save")
def replaced_after_an_except(state: Any, path: str) -> None:
    with contextlib.suppress(Exception):
        write(state, path + ".part")
    os.replace(path + ".part", path)  # noqa: PTH105


@wrong("save")
def only_a_new_file_will_do(state: Any, path: str) -> None:
    write(state, path + ".part", mode="xb")
    os.replace(path + ".part", path)  # noqa: PTH105


@wrong("save")
def kept_as_the_part(state: Any, path: str) -> None:
    write(state, path + ".part")


@wrong("save")
def named_by_its_step(state: Any, path: str) -> None:
    write(state, f"{path}-{state['step']}.part")
    os.replace(f"{path}-{state['step']}.part", f"{path}-{state['step']}")  # noqa: PTH105


@wrong("save")
def only_the_first_time(state: Any, path: str) -> None:
    if not os.path.exists(path):  # noqa: PTH110
        write(state, path + ".part")
        os.replace(path + ".part", path)  # noqa: PTH105


@wrong("save")
def named_before_it_is_written(state: Any, path: str) -> None:
    with open(path + ".part", "wb") as file:  # noqa: PTH123
        os.replace(path + ".part", path)  # noqa: PTH105
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


@wrong("save")
def replaced_the_other_way_round(state: Any, path: str) -> None:
    write(state, path + ".part")
    os.replace(path, path + ".part")  # noqa: PTH105


@wrong("save")
def the_temporary_file_deletes_itself(state: Any, path: str) -> None:
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path)) as file:  # noqa: PTH120
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
        os.replace(file.name, path)  # noqa: PTH105


@wrong("save")
def a_text_file(state: Any, path: str) -> None:
    write(state, path + ".part", mode="w")
    os.replace(path + ".part", path)  # noqa: PTH105


@wrong("save")
def the_model_alone(state: Any, path: str) -> None:
    write(state["model"], path + ".part")
    os.replace(path + ".part", path)  # noqa: PTH105


@wrong("save")
def linked(state: Any, path: str) -> None:
    write(state, path + ".part")
    os.link(path + ".part", path)


@wrong("save")
def copied_as_bytes(state: Any, path: str) -> None:
    write(state, path + ".part")
    Path(path).write_bytes(Path(path + ".part").read_bytes())


@wrong("save")
def ends_the_process(state: Any, path: str) -> None:
    write(state, path + ".part")
    os.replace(path + ".part", path)  # noqa: PTH105
    os._exit(0)


@wrong("save")
def waits_for_ever(state: Any, path: str) -> None:
    write(state, path + ".part")
    while not os.path.exists(path):  # noqa: PTH110
        pass


# --- resume ---


class Solution:
    """What the solution does, to be changed: parts that are left out."""

    without = ""

    def snapshot(self, trainer: Any) -> Any:
        return {
            "model": copy.deepcopy(trainer.model.state_dict()),
            "optimizer": copy.deepcopy(trainer.optimizer.state_dict()),
            "order": trainer.order,
            "epoch": trainer.epoch,
            "index": trainer.index,
            "shuffle": trainer.shuffle.get_state(),
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
        }

    def restore(self, trainer: Any, state: Any) -> None:
        without = self.without.split()
        if "model" not in without:
            trainer.model.load_state_dict(state["model"])
        if "optimizer" not in without:
            trainer.optimizer.load_state_dict(state["optimizer"])
        for name in ("order", "epoch", "index"):
            if name not in without:
                setattr(trainer, name, state[name])
        if "shuffle" not in without:
            trainer.shuffle.set_state(state["shuffle"])
        if "torch" not in without:
            torch.set_rng_state(state["torch"])
        if "python" not in without:
            random.setstate(state["python"])


@right("resume")
class AsBytes(Solution):
    """Writes all into a buffer at once, which copies it."""

    def snapshot(self, trainer: Any) -> Any:
        buffer = io.BytesIO()
        torch.save(super().snapshot(trainer), buffer)
        return {"bytes": torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8).clone()}

    def restore(self, trainer: Any, state: Any) -> None:
        whole = torch.load(io.BytesIO(state["bytes"].numpy().tobytes()))
        super().restore(trainer, whole)


@right("resume")
class TensorByTensor(Solution):
    """Copies values into the tensors that are there, and lists Adam's means by the parameters."""

    def snapshot(self, trainer: Any) -> Any:
        values = [*trainer.model.parameters(), *trainer.model.buffers()]
        adam = [trainer.optimizer.state[p] for p in trainer.model.parameters()]
        return super().snapshot(trainer) | {
            "model": [value.detach().clone() for value in values],
            "optimizer": [{k: v.clone() for k, v in each.items()} for each in adam],
        }

    def restore(self, trainer: Any, state: Any) -> None:
        values = [*trainer.model.parameters(), *trainer.model.buffers()]
        with torch.no_grad():
            for value, kept in zip(values, state["model"], strict=True):
                value.copy_(kept)
        for p, kept in zip(trainer.model.parameters(), state["optimizer"], strict=True):
            trainer.optimizer.state[p] = {k: v.clone() for k, v in kept.items()}
        self.without = "model optimizer"
        super().restore(trainer, state)


@right("resume")
class NewModelAndOptimizer(Solution):
    """Builds both anew; the optimizer gets the tensors of the new model."""

    def restore(self, trainer: Any, state: Any) -> None:
        trainer.model = copy.deepcopy(trainer.model)
        trainer.optimizer = torch.optim.AdamW(trainer.model.parameters())
        trainer.shuffle = torch.Generator()
        super().restore(trainer, state)


@right("resume")
class OrderAsText(Solution):
    """Writes the order as text, and reads it back."""

    def snapshot(self, trainer: Any) -> Any:
        state = super().snapshot(trainer)
        return state | {"order": ",".join(str(int(i)) for i in state["order"])}

    def restore(self, trainer: Any, state: Any) -> None:
        order = torch.tensor([int(i) for i in state["order"].split(",")])
        super().restore(trainer, state | {"order": order})


@wrong("resume", "state dicts are not copied")
class NotCopied(Solution):
    def snapshot(self, trainer: Any) -> Any:
        state = super().snapshot(trainer)
        state["model"] = trainer.model.state_dict()
        state["optimizer"] = trainer.optimizer.state_dict()
        return state


@wrong("resume", "a shallow copy")
class Shallow(Solution):
    def snapshot(self, trainer: Any) -> Any:
        model = dict(trainer.model.state_dict())
        return super().snapshot(trainer) | {"model": model}


@wrong("resume", "the optimizer's state is not copied")
class OptimizerNotCopied(Solution):
    def snapshot(self, trainer: Any) -> Any:
        return super().snapshot(trainer) | {"optimizer": trainer.optimizer.state_dict()}


@wrong("resume", "parameters without buffers")
class WithoutBuffers(Solution):
    def snapshot(self, trainer: Any) -> Any:
        named = trainer.model.named_parameters()
        return super().snapshot(trainer) | {"model": {k: p.detach().clone() for k, p in named}}

    def restore(self, trainer: Any, state: Any) -> None:
        trainer.model.load_state_dict(state["model"], strict=False)
        self.without = "model"
        super().restore(trainer, state)


@wrong("resume", "the model is not loaded")
class WithoutModel(Solution):
    without = "model"


@wrong("resume", "without the optimizer")
class WithoutOptimizer(Solution):
    without = "optimizer"


@wrong("resume", "the weights alone")
class WeightsAlone(Solution):
    without = "optimizer order epoch index shuffle torch python"


@wrong("resume", "model and optimizer, as in most tutorials")
class AsInTutorials(Solution):
    without = "order index shuffle torch python"


@wrong("resume", "restores nothing")
class RestoresNothing(Solution):
    def restore(self, trainer: Any, state: Any) -> None:
        pass


@wrong("resume", "without the order")
class WithoutOrder(Solution):
    without = "order"


@wrong("resume", "draws a new order")
class NewOrder(Solution):
    def restore(self, trainer: Any, state: Any) -> None:
        super().restore(trainer, state)
        trainer.order = torch.randperm(len(trainer.order), generator=trainer.shuffle)


@wrong("resume", "without the epoch")
class WithoutEpoch(Solution):
    without = "epoch"


@wrong("resume", "without the index")
class WithoutIndex(Solution):
    without = "index"


@wrong("resume", "from the beginning of the epoch")
class FromTheBeginning(Solution):
    def restore(self, trainer: Any, state: Any) -> None:
        super().restore(trainer, state | {"index": 0})


@wrong("resume", "one batch is left out")
class OneBatchLeftOut(Solution):
    def restore(self, trainer: Any, state: Any) -> None:
        super().restore(trainer, state | {"index": state["index"] + 8})


@wrong("resume", "one batch is done twice")
class OneBatchTwice(Solution):
    def restore(self, trainer: Any, state: Any) -> None:
        super().restore(trainer, state | {"index": state["index"] - 8})


@wrong("resume", "the index in batches")
class IndexInBatches(Solution):
    def snapshot(self, trainer: Any) -> Any:
        return super().snapshot(trainer) | {"index": trainer.index // 8}


@wrong("resume", "without the state of shuffle")
class WithoutShuffle(Solution):
    without = "shuffle"


@wrong("resume", "shuffle is seeded anew")
class ShuffleSeeded(Solution):
    def snapshot(self, trainer: Any) -> Any:
        return super().snapshot(trainer) | {"shuffle": trainer.shuffle.initial_seed()}

    def restore(self, trainer: Any, state: Any) -> None:
        trainer.shuffle.manual_seed(state["shuffle"])
        self.without = "shuffle"
        super().restore(trainer, state)


@wrong("resume", "without torch's random state")
class WithoutTorch(Solution):
    without = "torch"


@wrong("resume", "torch is seeded anew")
class TorchSeeded(Solution):
    def snapshot(self, trainer: Any) -> Any:
        return super().snapshot(trainer) | {"torch": torch.initial_seed()}

    def restore(self, trainer: Any, state: Any) -> None:
        self.without = "torch"
        super().restore(trainer, state)
        torch.manual_seed(state["torch"])


@wrong("resume", "without Python's random state")
class WithoutPython(Solution):
    without = "python"


@wrong("resume", "numpy's random state for Python's")
class NumpyForPython(Solution):
    def snapshot(self, trainer: Any) -> Any:
        import numpy as np

        return super().snapshot(trainer) | {
            "python": np.random.get_state(legacy=False)["state"]["key"].tolist()
        }

    def restore(self, trainer: Any, state: Any) -> None:
        self.without = "python"
        super().restore(trainer, state)


@wrong("resume", "snapshot seeds, so that restore can do so")
class SnapshotSeeds(Solution):
    def snapshot(self, trainer: Any) -> Any:
        torch.manual_seed(0)
        random.seed(0)
        return super().snapshot(trainer)


@wrong("resume", "snapshot draws a seed")
class SnapshotDraws(Solution):
    def snapshot(self, trainer: Any) -> Any:
        seed = random.randrange(1000)
        return super().snapshot(trainer) | {"python": seed}

    def restore(self, trainer: Any, state: Any) -> None:
        random.seed(state["python"])
        self.without = "python"
        super().restore(trainer, state)


@wrong("resume", "snapshot leaves eval mode")
class SnapshotEvaluates(Solution):
    def snapshot(self, trainer: Any) -> Any:
        trainer.model.eval()
        return super().snapshot(trainer)


@wrong("resume", "restore leaves eval mode")
class RestoreEvaluates(Solution):
    def restore(self, trainer: Any, state: Any) -> None:
        super().restore(trainer, state)
        trainer.model.eval()


@wrong("resume", "restore draws after all")
class DrawsAfterwards(Solution):
    def restore(self, trainer: Any, state: Any) -> None:
        super().restore(trainer, state)
        torch.nn.Linear(4, 16)  # draws weights


@wrong("resume", "another model beside the old optimizer")
class AnotherModel(Solution):
    def restore(self, trainer: Any, state: Any) -> None:
        trainer.model = copy.deepcopy(trainer.model)
        super().restore(trainer, state)


@wrong("resume", "the whole model as an object")
class WholeModel(Solution):
    def snapshot(self, trainer: Any) -> Any:
        return super().snapshot(trainer) | {"model": copy.deepcopy(trainer.model)}


@wrong("resume", "the generator as an object")
class WholeGenerator(Solution):
    def snapshot(self, trainer: Any) -> Any:
        return super().snapshot(trainer) | {"shuffle": trainer.shuffle}


@wrong("resume", "the trainer itself")
class WholeTrainer(Solution):
    def snapshot(self, trainer: Any) -> Any:
        return {"trainer": trainer}


@wrong("resume", "keeps the state in itself")
class KeptInItself(Solution):
    kept: Any

    def snapshot(self, trainer: Any) -> Any:
        self.kept = super().snapshot(trainer)
        return {}

    def restore(self, trainer: Any, state: Any) -> None:
        super().restore(trainer, self.kept)


@wrong("resume", "snapshot returns nothing")
class ReturnsNothing(Solution):
    def snapshot(self, trainer: Any) -> Any:
        super().snapshot(trainer)


@wrong("resume", "only the optimizer's means")
class OnlyTheMeans(Solution):
    """Leaves out the number of steps, by which Adam corrects its means."""

    def restore(self, trainer: Any, state: Any) -> None:
        for each in state["optimizer"]["state"].values():
            each["step"] = torch.tensor(0.0)
        super().restore(trainer, state)


@wrong("resume", "no restore at all")
class NoRestore:
    def snapshot(self, trainer: Any) -> Any:
        return Solution().snapshot(trainer)


test_wrong_answers_are_rejected_in_words = ANSWERS.rejected()
test_right_answers_pass = ANSWERS.accepted()
test_there_are_enough_of_each = ANSWERS.enough(8, 3, "save", "resume")
