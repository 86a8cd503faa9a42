"""A wrapper subclass for tests of what reaches `__torch_dispatch__`."""

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


class Log(Tensor):
    """A wrapper that torch.compile cannot take apart; it notes the ops that reach it."""

    seen: list = []  # noqa: RUF012 - shared on purpose

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    def __repr__(self):
        return f"Log({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        Log.seen.append(func)
        args, kwargs = tree_map_only(Log, lambda log: log.inner, (args, kwargs or {}))
        return tree_map_only(Tensor, Log, func(*args, **kwargs))
