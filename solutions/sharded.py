"""The answers of 11_where_the_memory_goes.ipynb, made by `make exercises`."""

import torch
import torch.distributed as dist


def my_reduce_scatter(gradient):
    """Return this rank's part of the mean of a gradient over all ranks."""
    ranks = dist.get_world_size()
    row = torch.nn.functional.pad(gradient.flatten(), (0, -gradient.numel() % ranks)) / ranks
    came = torch.empty_like(row)  # this rank's part, from each rank
    dist.all_to_all_single(came, row)
    return came.view(ranks, -1).sum(0)


class ShardedOptimizer(torch.optim.Optimizer):
    """An optimizer of which each rank keeps the state of the parameters that it owns."""

    def __init__(self, params, optimizer_cls, **kwargs):
        self.make = lambda group: optimizer_cls([group], **kwargs)
        self.own, self.owner = None, {}  # the optimizer of what is ours; parameter -> rank
        self.load = [0] * dist.get_world_size()  # numbers that each rank updates
        super().__init__(params, kwargs)

    def add_param_group(self, group):
        super().add_param_group(group)
        group = self.param_groups[-1]
        for p in group["params"]:
            self.owner[p] = self.load.index(min(self.load))
            self.load[self.owner[p]] += p.numel()
        mine = group | {"params": [p for p in group["params"] if self.owner[p] == dist.get_rank()]}
        if self.own is None:
            self.own = self.make(mine)
        else:
            self.own.add_param_group(mine)
        for setting, value in self.own.param_groups[-1].items():
            group.setdefault(setting, value)  # those that were not given

    def step(self, closure=None):
        for mine, group in zip(self.own.param_groups, self.param_groups, strict=True):
            mine.update({name: group[name] for name in group if name != "params"})
        loss = self.own.step(closure)
        for p, rank in self.owner.items():
            dist.broadcast(p.data, src=rank)
        return loss


class FullySharded(torch.nn.Module):
    """A model of which each rank keeps a part; layers are whole only while they compute."""

    def __init__(self, module, compute_dtype=None):
        super().__init__()
        self.module, self.dtype = module, compute_dtype
        self.parts = {}  # whole parameter, empty most of the time -> this rank's part
        self.used = {}  # layer -> [(name, whole parameter)]
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)
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

    def forward(self, *inputs, **named):
        output = self.module(*inputs, **named)
        return output.float() if self.dtype and isinstance(output, torch.Tensor) else output

    def finish(self):
        """End a step: each part has its part of the mean gradient, and all layers are freed."""
        for whole in self.parts:
            whole.untyped_storage().resize_(0)

    def full_parameters(self):
        """Return the whole parameters by name, in the type of the parts; a call of all ranks."""
        shapes = {part: whole.shape for whole, part in self.parts.items()}
        parts = self.module.named_parameters()
        return {
            name: gathered(part)[: shapes[part].numel()].view(shapes[part]) for name, part in parts
        }

    def cut(self, whole):
        """Return this rank's part of a parameter, which is emptied."""
        dist.broadcast(whole.data, src=0)
        row = torch.nn.functional.pad(
            whole.data.flatten(), (0, -whole.numel() % dist.get_world_size())
        )
        part = row.chunk(dist.get_world_size())[dist.get_rank()].clone()
        whole.data = whole.data.to(self.dtype or whole.dtype)
        if whole.requires_grad:
            whole.register_post_accumulate_grad_hook(self.keep_part)
        whole.untyped_storage().resize_(0)
        return torch.nn.Parameter(part, requires_grad=whole.requires_grad)

    def gather(self, layer):
        for _, whole in self.used[layer]:
            if not whole.untyped_storage().nbytes():
                row = gathered(self.parts[whole].to(whole.dtype))
                whole.untyped_storage().resize_(whole.nbytes)
                whole.data.copy_(row[: whole.numel()].view_as(whole))

    def before(self, layer, inputs):
        self.gather(layer)
        layer._parameters.update(self.used[layer])
        floating = [isinstance(x, torch.Tensor) and x.is_floating_point() for x in inputs]
        cast = self.dtype is not None
        return tuple(
            x.to(self.dtype) if cast and yes else x for x, yes in zip(inputs, floating, strict=True)
        )

    def after(self, layer, inputs, output):
        for tensor in output if isinstance(output, tuple) else (output,):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda gradient: self.gather(layer))
        for name, whole in self.used[layer]:
            layer._parameters[name] = self.parts[whole]
            whole.untyped_storage().resize_(0)

    def keep_part(self, whole):
        part = self.parts[whole]
        mine = my_reduce_scatter(whole.grad.to(part.dtype))
        part.grad = mine if part.grad is None else part.grad + mine
        whole.grad = None
        whole.untyped_storage().resize_(0)


def gathered(part):
    """Return the parts of all ranks as one row."""
    row = part.new_empty(dist.get_world_size() * len(part))
    dist.all_gather_single(row, part.detach())
    return row
