"""Watches the ops that run, and passes tensors through a wrapper; one line each says why (found in torch 2.13).

utils._python_dispatch.TorchDispatchMode     the only way to see every op that runs; its module is private
Tensor._make_wrapper_subclass                the only way to make a tensor that holds another one
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from custom_autograd.torch_private.verification import Overload, name_of_overload

OnOp = Callable[[Overload, Sequence[object], Mapping[str, object], object], None]
"""Told of an op, its arguments and what it returned."""


class Watch(TorchDispatchMode):
    """Within, every op that runs is reported and runs as it would."""

    def __init__(self, on_op: OnOp) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation here
        self._on_op = on_op

    def __torch_dispatch__(
        self, func: Overload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # Any: whatever the op returns
        """Run the op, then report it."""
        found = func(*args, **(kwargs or {}))
        self._on_op(func, args, kwargs or {}, found)
        return found


class Wrapped(Tensor):
    """A tensor that holds another one and no data of its own; ops run on what it holds.

    Attributes:
        held: the tensor it holds.
        seen: names of the ops that reached it, shared by all that are derived from it.
    """

    held: Tensor
    seen: list[str]

    @staticmethod
    def __new__(cls: type["Wrapped"], inner: Tensor, seen: list[str]) -> "Wrapped":
        """Return a wrapper of the same metadata, which does not require grad.

        Raises:
            NotImplementedError: the tensor is a conjugate or negative view, which a wrapper does not pass on.
        """
        if inner.is_conj() or inner.is_neg():
            raise NotImplementedError("a wrapper does not pass on that what it holds is a conjugate view")
        made: Wrapped = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=inner.device,
        )
        made.held, made.seen = inner, seen
        return made

    def __repr__(self) -> str:  # type: ignore[override]  # torch's own takes the contents as well
        """Return the tensor within."""
        return f"Wrapped({self.held!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch types it more loosely
        cls, func: Overload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # Any: whatever the op returns
        """Run the op on what is held, and hold what it returns."""
        seen: list[str] = []

        def unwrap(wrapper: Wrapped) -> Tensor:
            nonlocal seen
            seen = wrapper.seen
            return wrapper.held

        values, named = tree_map_only(Wrapped, unwrap, (args, kwargs or {}))
        found = func(*values, **named)
        seen.append(name_of_overload(func))
        return tree_map_only(Tensor, lambda tensor: Wrapped(tensor, seen), found)
