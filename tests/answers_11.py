"""Answers to exercise 11, right and wrong ones; the ranks of small clusters run them."""

from __future__ import annotations

from typing import Any

from tests.answers import Answers

ANSWERS = Answers("11_where_the_memory_goes", "exercise_11", varies=True, sample=5)
right, wrong = ANSWERS.right, ANSWERS.wrong


def dist() -> Any:
    import torch.distributed

    return torch.distributed


def ranks() -> int:
    return int(dist().get_world_size())


def row_of(tensor: Any) -> Any:
    """A tensor as one row, with zeros at its end, which divides."""
    import torch

    return torch.nn.functional.pad(tensor.detach().flatten(), (0, -tensor.numel() % ranks()))


def part_of(tensor: Any) -> Any:
    return row_of(tensor).chunk(ranks())[dist().get_rank()].clone()


# --- reduce_scatter ---


def scattered(row: Any) -> Any:
    import torch

    came = torch.empty_like(row)
    dist().all_to_all_single(came, row.contiguous())
    return came.view(ranks(), -1).sum(0)


@right("reduce_scatter")
def with_one_call(gradient: Any) -> Any:
    row = row_of(gradient) / ranks()
    part = row.new_empty(len(row) // ranks())
    dist().reduce_scatter_single(part, row)
    return part


@right("reduce_scatter")
def a_reduce_for_each(gradient: Any) -> Any:
    pieces = [piece.clone() for piece in row_of(gradient).chunk(ranks())]
    for rank, piece in enumerate(pieces):
        dist().reduce(piece, dst=rank)
    return pieces[dist().get_rank()] / ranks()


@right("reduce_scatter")
def by_messages(gradient: Any) -> Any:
    import torch

    rank, pieces = dist().get_rank(), row_of(gradient).clone().chunk(ranks())
    total = pieces[rank].clone()
    for hop in range(1, ranks()):
        to, came = (rank + hop) % ranks(), torch.empty_like(total)
        sent = dist().isend(pieces[to].clone(), to)
        dist().recv(came, (rank - hop) % ranks())
        sent.wait()
        total += came
    return total / ranks()


@wrong("reduce_scatter")
def the_sum(gradient: Any) -> Any:
    return scattered(row_of(gradient))


@wrong("reduce_scatter")
def divided_twice(gradient: Any) -> Any:
    return scattered(row_of(gradient) / ranks()) / ranks()


@wrong("reduce_scatter")
def all_reduced_and_cut(gradient: Any) -> Any:
    total = gradient.clone()
    dist().all_reduce(total)
    return part_of(total) / ranks()


@wrong("reduce_scatter")
def gathered_and_added(gradient: Any) -> Any:
    row = row_of(gradient)
    came = row.new_empty(ranks() * len(row))
    dist().all_gather_single(came, row)
    return part_of(came.view(ranks(), -1).mean(0))


@wrong("reduce_scatter")
def the_whole_mean(gradient: Any) -> Any:
    total = gradient / ranks()
    dist().all_reduce(total)
    return total.flatten()


@wrong("reduce_scatter")
def its_own_part(gradient: Any) -> Any:
    return part_of(gradient)


@wrong("reduce_scatter")
def its_own_part_divided(gradient: Any) -> Any:
    return part_of(gradient) / ranks()


@wrong("reduce_scatter")
def the_next_part(gradient: Any) -> Any:
    row = row_of(gradient) / ranks()
    return scattered(row.roll(-len(row) // ranks()))


@wrong("reduce_scatter")
def every_nth_number(gradient: Any) -> Any:
    row = row_of(gradient) / ranks()
    return scattered(row.view(-1, ranks()).t().flatten())


@wrong("reduce_scatter")
def without_zeros(gradient: Any) -> Any:
    """Parts of different lengths."""
    piece = part_of(gradient) * 0 + scattered(row_of(gradient) / ranks())
    left = gradient.numel() - dist().get_rank() * len(piece)
    return piece[: max(0, min(len(piece), left))]


@wrong("reduce_scatter")
def in_two_dimensions(gradient: Any) -> Any:
    return scattered(row_of(gradient) / ranks()).view(1, -1)


@wrong("reduce_scatter")
def divides_in_place(gradient: Any) -> Any:
    gradient /= ranks()
    return scattered(row_of(gradient))


@wrong("reduce_scatter")
def returns_nothing(gradient: Any) -> Any:
    scattered(row_of(gradient) / ranks())


@wrong("reduce_scatter")
def does_not_divide(gradient: Any) -> Any:
    return scattered(gradient.flatten() / ranks())


# --- sharded_optimizer ---


def optimizers(**change: Any) -> Any:
    """A class like the solution's, with some of its methods changed."""
    import torch

    class Sharded(torch.optim.Optimizer):
        def __init__(self, params: Any, optimizer_cls: Any, **settings: Any) -> None:
            self.make = lambda group: optimizer_cls([group], **settings)
            self.own: Any = None
            self.owner: dict[Any, int] = {}
            self.load = [0] * ranks()
            super().__init__(params, settings)

        def owner_of(self, p: Any) -> int:
            return self.load.index(min(self.load))

        def settings_of(self, group: Any) -> Any:
            return group

        def add_param_group(self, group: Any) -> None:
            super().add_param_group(group)
            group = self.param_groups[-1]
            for p in group["params"]:
                self.owner[p] = self.owner_of(p)
                self.load[self.owner[p]] += p.numel()
            ours = [p for p in group["params"] if self.mine(p)]
            mine = self.settings_of(group) | {"params": ours}
            if self.own is None:
                self.own = self.make(mine)
            else:
                self.own.add_param_group(mine)
            for name, value in self.own.param_groups[-1].items():
                group.setdefault(name, value)

        def mine(self, p: Any) -> bool:
            return self.owner[p] == dist().get_rank()

        def copy_settings(self) -> None:
            for mine, group in zip(self.own.param_groups, self.param_groups, strict=True):
                mine.update({name: group[name] for name in group if name != "params"})

        def send(self) -> None:
            for p, rank in self.owner.items():
                dist().broadcast(p.data, src=rank)

        def step(self, closure: Any = None) -> None:
            self.copy_settings()
            self.own.step(closure)
            self.send()

    for name, method in change.items():
        setattr(Sharded, name, method)
    return Sharded


@right("sharded_optimizer")
def by_slices(params: Any, cls: Any, **settings: Any) -> Any:
    """Each rank updates a slice of every parameter, and all-gathers it."""
    import torch

    class Sliced(torch.optim.Optimizer):
        def __init__(self) -> None:
            self.part: dict[Any, Any] = {}
            super().__init__(params, settings)
            groups = []
            for group in self.param_groups:
                for p in group["params"]:
                    self.part[p] = torch.nn.Parameter(part_of(p), p.requires_grad)
                groups.append(group | {"params": [self.part[p] for p in group["params"]]})
            self.own = cls(groups, **settings)
            for group, own in zip(self.param_groups, self.own.param_groups, strict=True):
                group.update({name: own[name] for name in own if name != "params"})

        def step(self, closure: Any = None) -> None:
            for group, own in zip(self.param_groups, self.own.param_groups, strict=True):
                own["lr"] = group["lr"]
            for p, part in self.part.items():
                part.grad = None if p.grad is None else part_of(p.grad)
            self.own.step()
            for p, part in self.part.items():
                row = row_of(p).clone()
                dist().all_gather_single(row, part.detach())
                p.data.copy_(row[: p.numel()].view_as(p))
                part.grad = None

    return Sliced()


@right("sharded_optimizer")
def the_largest_first(params: Any, cls: Any, **settings: Any) -> Any:
    """Sorts all parameters by size before it gives them to ranks."""
    listed = [*params]
    groups = listed if isinstance(listed[0], dict) else [{"params": listed}]
    sized = sorted((p for g in groups for p in g["params"]), key=lambda p: -p.numel())
    load, owner = [0] * ranks(), {}
    for p in sized:
        owner[p] = load.index(min(load))
        load[owner[p]] += p.numel()
    return optimizers(owner_of=lambda self, p: owner[p])(groups, cls, **settings)


@right("sharded_optimizer")
def one_optimizer_for_each(params: Any, cls: Any, **settings: Any) -> Any:
    """An optimizer for each parameter of this rank."""
    import torch

    class Many(torch.optim.Optimizer):
        def __init__(self) -> None:
            super().__init__(params, settings)
            self.owned, self.load = [], [0] * ranks()
            for group in self.param_groups:
                given = {name: group[name] for name in group if name != "params"}
                for p in group["params"]:
                    rank = self.load.index(min(self.load))
                    self.load[rank] += p.numel()
                    own = cls([p], **settings | given) if rank == dist().get_rank() else None
                    self.owned.append((group, p, rank, own))

        def step(self, closure: Any = None) -> None:
            for group, p, rank, own in self.owned:
                if own:
                    own.param_groups[0]["lr"] = group["lr"]
                    own.step()
                dist().broadcast(p.data, src=rank)

    return Many()


@wrong("sharded_optimizer")
def undivided(params: Any, cls: Any, **settings: Any) -> Any:
    return cls(params, **settings)


@wrong("sharded_optimizer")
def undivided_and_sent(params: Any, cls: Any, **settings: Any) -> Any:
    """Each rank updates all parameters, and those of their owners replace them."""
    return optimizers(mine=lambda self, p: True)(params, cls, **settings)


@wrong("sharded_optimizer")
def not_sent(params: Any, cls: Any, **settings: Any) -> Any:
    return optimizers(send=lambda self: None)(params, cls, **settings)


@wrong("sharded_optimizer")
def all_from_rank_0(params: Any, cls: Any, **settings: Any) -> Any:
    def send(self: Any) -> None:
        for p in self.owner:
            dist().broadcast(p.data, src=0)

    return optimizers(send=send)(params, cls, **settings)


@wrong("sharded_optimizer")
def in_turn(params: Any, cls: Any, **settings: Any) -> Any:
    turn = optimizers(owner_of=lambda self, p: len(self.owner) % ranks())
    return turn(params, cls, **settings)


@wrong("sharded_optimizer")
def all_of_rank_0(params: Any, cls: Any, **settings: Any) -> Any:
    return optimizers(owner_of=lambda self, p: 0)(params, cls, **settings)


@wrong("sharded_optimizer")
def deaf_to_schedules(params: Any, cls: Any, **settings: Any) -> Any:
    return optimizers(copy_settings=lambda self: None)(params, cls, **settings)


@wrong("sharded_optimizer")
def without_settings_of_groups(params: Any, cls: Any, **settings: Any) -> Any:
    bare = {"settings_of": lambda self, group: {}, "copy_settings": lambda self: None}
    return optimizers(**bare)(params, cls, **settings)


@wrong("sharded_optimizer")
def clears_its_own(params: Any, cls: Any, **settings: Any) -> Any:
    clear = optimizers(zero_grad=lambda self, set_to_none=True: self.own.zero_grad(set_to_none))
    return clear(params, cls, **settings)


@wrong("sharded_optimizer")
def first_group_only(params: Any, cls: Any, **settings: Any) -> Any:
    listed = [*params]
    one = listed[:1] if isinstance(listed[0], dict) else listed
    return optimizers()(one, cls, **settings)


@wrong("sharded_optimizer")
def loses_settings(params: Any, cls: Any, **settings: Any) -> Any:
    return optimizers()(params, cls, lr=settings["lr"])


@wrong("sharded_optimizer")
def by_class_of_pytorch(params: Any, cls: Any, **settings: Any) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(params, cls, **settings)


@wrong("sharded_optimizer")
def owners_by_memory_address(params: Any, cls: Any, **settings: Any) -> Any:
    """Each rank comes to other owners."""
    turn = {"owner_of": lambda self, p: (len(self.owner) + dist().get_rank()) % ranks()}
    return optimizers(**turn)(params, cls, **settings)


# --- fully_sharded ---


def models(**change: Any) -> Any:
    """A class like the solution's, with some of its methods changed."""
    import torch

    class Sharded(torch.nn.Module):
        def __init__(self, module: Any, compute_dtype: Any = None) -> None:
            super().__init__()
            self.module, self.dtype = module, self.type_of(compute_dtype)
            self.parts: dict[Any, Any] = {}
            self.used: dict[Any, Any] = {}
            for layer in module.modules():
                whole = [*layer.named_parameters(recurse=False, remove_duplicate=False)]
                self.used[layer] = whole
                for name, parameter in whole:
                    if parameter not in self.parts:
                        self.parts[parameter] = self.cut(parameter)
                    layer._parameters[name] = self.parts[parameter]
                if whole:
                    layer.register_forward_pre_hook(self.before)
                    layer.register_forward_hook(self.after)

        def type_of(self, dtype: Any) -> Any:
            return dtype

        def begin(self, whole: Any) -> None:
            dist().broadcast(whole.data, src=0)

        def cut(self, whole: Any) -> Any:
            self.begin(whole)
            part = self.part(whole)
            whole.data = whole.data.to(self.dtype or whole.dtype)
            if whole.requires_grad:
                whole.register_post_accumulate_grad_hook(self.complete)
            self.free(whole)
            return torch.nn.Parameter(part, requires_grad=whole.requires_grad)

        def part(self, whole: Any) -> Any:
            return part_of(whole)

        def free(self, whole: Any) -> None:
            whole.untyped_storage().resize_(0)

        def gather(self, layer: Any) -> None:
            for _, whole in self.used[layer]:
                if not whole.untyped_storage().nbytes():
                    row = self.row(self.parts[whole].to(whole.dtype))
                    whole.untyped_storage().resize_(whole.nbytes)
                    whole.data.copy_(row[: whole.numel()].view_as(whole))

        def row(self, part: Any) -> Any:
            row = part.new_empty(ranks() * len(part))
            dist().all_gather_single(row, part.detach())
            return row

        def before(self, layer: Any, inputs: Any) -> Any:
            self.gather(layer)
            layer._parameters.update(self.used[layer])
            return tuple(x.to(self.dtype or x.dtype) for x in inputs)

        def after(self, layer: Any, inputs: Any, output: Any) -> None:
            if output.requires_grad:
                output.register_hook(lambda gradient: self.again(layer))
            for name, whole in self.used[layer]:
                layer._parameters[name] = self.parts[whole]
                self.free_after(whole)

        def again(self, layer: Any) -> None:
            self.gather(layer)

        def free_after(self, whole: Any) -> None:
            self.free(whole)

        def exchanged(self, gradient: Any) -> Any:
            return scattered(row_of(gradient) / ranks())

        def complete(self, whole: Any) -> None:
            part = self.parts[whole]
            mine = self.exchanged(whole.grad.to(part.dtype))
            part.grad = mine if part.grad is None else part.grad + mine
            self.complete_with(whole)

        def complete_with(self, whole: Any) -> None:
            whole.grad = None
            self.free(whole)

        def forward(self, *inputs: Any) -> Any:
            return self.module(*inputs).float()

        def finish(self) -> None:
            for whole in self.parts:
                self.free(whole)

        def full_parameters(self) -> Any:
            shape = {part: whole.shape for whole, part in self.parts.items()}
            return {
                name: self.row(part)[: shape[part].numel()].view(shape[part])
                for name, part in self.module.named_parameters()
            }

    for name, method in change.items():
        setattr(Sharded, name, method)
    return Sharded


@right("fully_sharded")
def with_reduce_scatter_of_pytorch(module: Any, compute_dtype: Any = None) -> Any:
    return models(exchanged=lambda self, gradient: with_one_call(gradient))(module, compute_dtype)


@right("fully_sharded")
def exchanges_in_finish(module: Any, compute_dtype: Any = None) -> Any:
    """Keeps exchanges going beside the backward pass, one at a time."""
    import torch

    def settle(self: Any) -> None:
        if going := self.__dict__.pop("going", None):
            part, came, work, _ = going
            work.wait()
            mine = came.view(ranks(), -1).sum(0)
            part.grad = mine if part.grad is None else part.grad + mine

    def complete(self: Any, whole: Any) -> None:
        settle(self)
        part = self.parts[whole]
        row = row_of(whole.grad.to(part.dtype)) / ranks()
        came = torch.empty_like(row)
        work = dist().all_to_all_single(came, row, async_op=True)
        self.__dict__["going"] = part, came, work, row
        self.complete_with(whole)

    def finish(self: Any) -> None:
        settle(self)
        for whole in self.parts:
            self.free(whole)

    return models(complete=complete, finish=finish)(module, compute_dtype)


@right("fully_sharded")
def by_broadcasts(module: Any, compute_dtype: Any = None) -> Any:
    """A layer is put together by a broadcast from each rank."""

    def row(self: Any, part: Any) -> Any:
        pieces = [part.detach().clone() for _ in range(ranks())]
        for rank, piece in enumerate(pieces):
            dist().broadcast(piece, src=rank)
        return part.new_empty(0) if not pieces else __import__("torch").cat(pieces)

    return models(row=row)(module, compute_dtype)


@wrong("fully_sharded")
def keeps_layers_after_forward(module: Any, compute_dtype: Any = None) -> Any:
    return models(free_after=lambda self, whole: None)(module, compute_dtype)


@wrong("fully_sharded")
def keeps_layers_after_backward(module: Any, compute_dtype: Any = None) -> Any:
    def drop_gradient(self: Any, whole: Any) -> None:
        whole.grad = None

    return models(complete_with=drop_gradient)(module, compute_dtype)


@wrong("fully_sharded")
def keeps_whole_gradients(module: Any, compute_dtype: Any = None) -> Any:
    """All gradients are exchanged in finish."""

    def finish(self: Any) -> None:
        for whole, part in self.parts.items():
            if whole.grad is not None:
                part.grad, whole.grad = self.exchanged(whole.grad.to(part.dtype)), None
            self.free(whole)

    return models(complete=lambda self, whole: self.free(whole), finish=finish)(
        module, compute_dtype
    )


@wrong("fully_sharded")
def cut_but_not_freed(module: Any, compute_dtype: Any = None) -> Any:
    return models(free=lambda self, whole: None)(module, compute_dtype)


@wrong("fully_sharded")
def not_gathered_again(module: Any, compute_dtype: Any = None) -> Any:
    return models(again=lambda self, layer: None)(module, compute_dtype)


@wrong("fully_sharded")
def sums(module: Any, compute_dtype: Any = None) -> Any:
    add = models(exchanged=lambda self, gradient: scattered(row_of(gradient)))
    return add(module, compute_dtype)


@wrong("fully_sharded")
def own_gradients(module: Any, compute_dtype: Any = None) -> Any:
    return models(exchanged=lambda self, gradient: part_of(gradient))(module, compute_dtype)


@wrong("fully_sharded")
def another_start(module: Any, compute_dtype: Any = None) -> Any:
    return models(begin=lambda self, whole: None)(module, compute_dtype)


@wrong("fully_sharded")
def in_float32_only(module: Any, compute_dtype: Any = None) -> Any:
    return models(type_of=lambda self, dtype: None)(module, compute_dtype)


@wrong("fully_sharded")
def parts_in_16_bits(module: Any, compute_dtype: Any = None) -> Any:
    small = models(part=lambda self, whole: part_of(whole).to(self.dtype or whole.dtype))
    return small(module, compute_dtype)


@wrong("fully_sharded")
def full_parameters_are_rows(module: Any, compute_dtype: Any = None) -> Any:
    def rows(self: Any) -> Any:
        return {name: self.row(part) for name, part in self.module.named_parameters()}

    return models(full_parameters=rows)(module, compute_dtype)


@wrong("fully_sharded")
def full_parameters_are_parts(module: Any, compute_dtype: Any = None) -> Any:
    parts = models(full_parameters=lambda self: dict(self.named_parameters()))
    return parts(module, compute_dtype)


@wrong("fully_sharded")
def by_fully_shard(module: Any, compute_dtype: Any = None) -> Any:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ranks(),))
    inner = fully_shard(module, mesh=mesh)
    return models(cut=lambda self, whole: whole, used={}, type_of=lambda self, dtype: None)(
        inner if isinstance(inner, torch.nn.Module) else module
    )


@wrong("fully_sharded")
def a_copy_of_the_module(module: Any, compute_dtype: Any = None) -> Any:
    import copy

    return models()(copy.deepcopy(module), compute_dtype)
