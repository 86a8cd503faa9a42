"""saving: a context in which policies decide how tensors are saved for a backward."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from custom_autograd.core.messages import show
from custom_autograd.core.saving_policy import SavingPolicy
from custom_autograd.torch_private.saved_hooks import top_hooks
from custom_autograd.values.packing import Packed, Who, pack, unpack


class saving:  # noqa: N801 - a context manager, spelt like torch.no_grad
    """Save tensors for a backward by policies while the context is open, for all operations in this thread.

    Contexts stack: the inner one packs first, and hooks outside of it, also those of checkpointing and of
    `torch.autograd.graph.saved_tensors_hooks`, pack what it makes. A tensor that is written to after it was saved
    raises an error in the backward, if what is kept shares its memory; else the gradient is that of what was saved.
    Second derivatives are right, and no graph keeps itself alive. `torch.func` refuses hooks, and so this context.

    Args:
        policies: `offload()`, `cast(dtype)`, `compressed(pack, unpack)`, `recorded(list)` and `forbidden(why)` from
            `custom_autograd.graph`, which pack in this order.

    Raises:
        TypeError: something is not a policy.

    Example:
        >>> import torch
        >>> from custom_autograd import saving
        >>> from custom_autograd.graph import cast
        >>> x = torch.ones(3, requires_grad=True)
        >>> with saving(cast(torch.bfloat16)):
        ...     y = (x * 1).sin()
        >>> y.sum().backward()
        >>> x.grad.dtype
        torch.float32
    """

    def __init__(self, *policies: SavingPolicy) -> None:
        wrong = next((one for one in policies if not isinstance(one, SavingPolicy)), None)
        if wrong is not None:
            raise TypeError(f"saving takes policies such as custom_autograd.graph.offload(), and not {show(wrong)}")
        self._policies = policies
        self._open: list[saved_tensors_hooks] = []

    def __enter__(self) -> saving:
        outer = top_hooks()

        def pack_by_policies(tensor: Tensor) -> Packed:
            return pack(tensor, self._policies, outer, Who())

        hooks = saved_tensors_hooks(pack_by_policies, unpack)
        hooks.__enter__()
        self._open.append(hooks)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:  # Any: as torch's own context
        return self._open.pop().__exit__(kind, error, trace)
