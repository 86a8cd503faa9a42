"""Policies for saved tensors (offload, cast, compressed, recorded, forbidden), and the context that applies them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from custom_autograd.core.errors import CustomAutogradError, GradientError
from custom_autograd.core.messages import show
from custom_autograd.core.metadata import Metadata
from custom_autograd.core.option_types import check_bools
from custom_autograd.registration.policy_types import SavingPolicy
from custom_autograd.torch_private.saved_tensors import top_hooks
from custom_autograd.values.packing import Packed, Who, pack, unpack


def offload(*, pin: bool = True) -> SavingPolicy:
    """Return a policy that keeps saved tensors in the memory of the CPU; those on the CPU stay as they are.

    Parameters are left where they are.

    Args:
        pin: use page-locked memory, which is copied faster.
    """
    check_bools(lambda: partial(CustomAutogradError, "offload"), pin=pin)

    def pack(tensor: Tensor) -> Tensor:
        if tensor.device.type in ("cpu", "meta"):
            return tensor
        if tensor.layout is not torch.strided:
            return tensor.cpu()
        return torch.empty_like(tensor, device="cpu", pin_memory=pin).copy_(tensor)

    def unpack(packed: Tensor, metadata: Metadata) -> Tensor:
        return packed.to(metadata.device, non_blocking=pin)

    return SavingPolicy(f"offload(pin={pin})", pack, unpack)


def cast(dtype: torch.dtype) -> SavingPolicy:
    """Return a policy that keeps saved floating-point tensors in a smaller dtype. Their values are rounded.

    Tensors whose dtype is not larger, integers and complex numbers stay as they are, and so do parameters.

    Args:
        dtype: such as torch.bfloat16.

    Raises:
        TypeError: it is not a floating-point dtype.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"cast takes a floating-point dtype, and not {show(dtype)}")

    def pack(tensor: Tensor) -> Tensor:
        is_larger = tensor.is_floating_point() and tensor.dtype.itemsize > dtype.itemsize
        return tensor.to(dtype) if is_larger else tensor

    return SavingPolicy(f"cast({dtype})", pack, lambda packed, metadata: packed.to(metadata.dtype))


def compressed(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> SavingPolicy:
    """Return a policy of two functions of yours. Parameters are left as they are.

    Args:
        pack: takes the saved tensor, which does not require a gradient, and returns what is kept: tensors, containers
            of tensors, or anything else.
        unpack: takes that, and returns a tensor of the shape, dtype and device that the saved one had; else the
            backward raises GradientError.

    Raises:
        TypeError: one of them is not callable.
    """
    if not callable(pack) or not callable(unpack):
        raise TypeError(f"compressed takes two functions, and not {show(pack)} and {show(unpack)}")
    text = f"compressed({_name_of(pack)}, {_name_of(unpack)})"
    return SavingPolicy(text, pack, lambda packed, _: unpack(packed))


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One entry of the list that `recorded` fills.

    Attributes:
        shape: of the saved tensor.
        dtype: of it.
        device: of it.
        nbytes: of its elements.
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    nbytes: int


def recorded(into: list[SavedTensor]) -> SavingPolicy:
    """Return a policy that notes each saved tensor in a list, parameters too, and changes nothing.

    Args:
        into: gets a `SavedTensor` for each tensor that is saved, without the tensor itself.
    """

    def pack(tensor: Tensor) -> Tensor:
        nbytes = tensor.numel() * tensor.element_size()
        into.append(SavedTensor(tensor.shape, tensor.dtype, tensor.device, nbytes))
        return tensor

    return SavingPolicy("recorded(...)", pack, lambda packed, _: packed, changes_parameters=True)


def forbidden(why: str) -> SavingPolicy:
    """Return a policy under which saving a tensor raises GradientError; parameters may be saved.

    Args:
        why: the reason, for the message.
    """

    def pack(tensor: Tensor) -> NoReturn:
        raise GradientError(
            "saving",
            f"a tensor is saved for a backward, which is forbidden here: {why}",
            found=f"shape {tuple(tensor.shape)}, {tensor.dtype}, on {tensor.device}",
            do="use torch.no_grad() or detach() where no gradient is meant, or leave the context",
        )

    return SavingPolicy(f"forbidden({why!r})", pack, lambda packed, _: packed)


def _name_of(function: object) -> str:
    return getattr(function, "__name__", None) or show(function)


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
