"""The calls that code makes of the Functions and ops of a package, kept as samples.

Of calls that differ only in sizes and numbers the smallest is kept. What tells calls apart: dtypes, ranks, sizes 0 and
1, what requires a gradient, flags and texts, integers from -8 to 8, and the types of other arguments.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from custom_autograd.schema.samples import PLAIN, RANGE, Sample, children_of
from custom_autograd.torch_private.transforms import is_wrapped
from custom_autograd.torch_private.verification import (
    Definition,
    Overload,
    Watch,
    find_overload,
    overload_of_definition,
)
from custom_autograd.verification.harness.packages import Contents, importable_name, load_all
from custom_autograd.verification.harness.targets import target_of

MOST = 6
"""Calls of a Function or an op that are kept."""

LARGEST = 2**22
"""Elements that the tensors of a kept call may have together."""

Calls: TypeAlias = "dict[object, list[Sample]]"


@contextlib.contextmanager
def record_calls(target: str) -> Iterator[Calls]:
    """Record the calls of the Functions and ops of torch.library that a package defines.

    Args:
        target: the name of a package or a module, a file, or an attribute of one, as `custom-autograd check` takes
            it. It is imported with its submodules. If it was imported before, the calls of an `apply` that code
            keeps in a variable are not seen.

    Yields:
        A dict that is filled when the context ends: each Function and op that `check` takes, with at most 6 samples.
        It has a Function that is defined within another function only if that was called. The list is empty if there
        was no call, or none with at most 2**22 elements outside of transforms of torch.func.

    Raises:
        CheckError: there is nothing of that name, importing it raises, or it defines nothing.

    Example:
        >>> with record_calls("entmax") as calls:
        ...     entmax.sparsemax(torch.randn(3, 4, requires_grad=True)).sum().backward()
        >>> report = check(entmax.activations.SparsemaxFunction, calls[entmax.activations.SparsemaxFunction])
    """
    found: Calls = {}
    recorder = _Recorder()
    with contextlib.ExitStack() as stack:
        stack.enter_context(applied(recorder.on_apply))
        contents = recorder.contents = load_all(target)
        values = [loaded.value for loaded in contents.found]
        recorder.known = {_key(value): value for value in values}
        if any(isinstance(key, Overload) for key in recorder.known):
            stack.enter_context(Watch(recorder.on_op))
        yield found
    found |= {value: [] for value in values}
    for value, kept in recorder.kept.items():
        found[value] = [_with_its_numbers(value, sample) for _, sample in kept.values()]


def _key(value: object) -> object:
    """Return what a recorder sees of a target: the overload of an op of torch.library, else the value itself."""
    return overload_of_definition(value) if isinstance(value, Definition) else find_overload(value) or value


def _with_its_numbers(value: object, sample: Sample) -> Sample:
    """Return a call whose numbers checks keep: which others the author allows is not known."""
    arguments = target_of(value).arguments
    given = {
        **dict(zip([row.name for row in arguments if row.kind is not STAR], sample.args, strict=False)),
        **sample.kwargs,
    }
    return sample.keeping(*(name for name, row in given.items() if isinstance(row, (bool, int, float))))


STAR = inspect.Parameter.VAR_POSITIONAL


class _Recorder:
    """The calls so far: by what is called and by kind of call, the number of elements, and the call."""

    def __init__(self) -> None:
        self.contents = Contents(())
        self.known: dict[object, object] = {}
        self.local: dict[tuple[str, str], type] = {}
        self.kept: dict[object, dict[object, tuple[int, Sample]]] = {}

    def on_apply(
        self, cls: type[torch.autograd.Function], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Callable[[], None]:
        """Copy the arguments of a call of a Function that is looked for; what is returned keeps them."""
        if cls in self.known or (self.contents.holds(cls) and self._is_first_of_local(cls)):
            return self._taken(cls, args, kwargs)
        return _nothing

    def _is_first_of_local(self, cls: type) -> bool:
        """Return True for a class that is defined within a function, and is the first that it defines."""
        name = cls.__module__, cls.__qualname__
        return importable_name(cls) is None and self.local.setdefault(name, cls) is cls

    def on_op(self, overload: object, args: Sequence[object], kwargs: Mapping[str, object], _: object) -> None:
        """Keep a call of an op that is looked for."""
        self._taken(self.known.get(overload), args, kwargs)()

    def _taken(self, value: object, args: Sequence[object], kwargs: Mapping[str, object]) -> Callable[[], None]:
        sample = Sample(*args, **kwargs)
        tensors = sample.tensors() if value is not None else ()
        count = sum(tensor.numel() for tensor in tensors)
        if value is None or count > LARGEST or not all(map(_is_plain, tensors)):
            return _nothing
        kind = tuple(map(kind_of, args)), tuple((name, kind_of(row)) for name, row in kwargs.items())
        kept = self.kept.setdefault(value, {})
        smallest, _ = kept.get(kind, (LARGEST + 1, None))
        if count >= smallest or (kind not in kept and len(kept) == MOST):
            return _nothing
        with torch.no_grad():
            copied = sample.map(copy_of)
        return lambda: kept.update({kind: (count, copied)})


def _nothing() -> None:
    """Keep no call."""


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and not is_wrapped(tensor) and tensor.device.type != "meta"


def copy_of(tensor: Tensor) -> Tensor:
    """Return a copy that is a leaf; numbers outside of the range of its own are not tried by checks."""
    copied = tensor.detach().clone()
    if copied.is_floating_point() and copied.numel() and copied.layout == torch.strided:
        setattr(copied, RANGE, (float(copied.min()), float(copied.max())))
    return copied.requires_grad_(tensor.requires_grad)


def kind_of(value: object) -> object:
    """Return what tells calls with this argument from others."""
    if isinstance(value, Tensor):
        sizes = tuple(min(size, 2) for size in value.shape)
        return value.dtype, value.device, value.layout, value.requires_grad, sizes
    if type(value) is float or (type(value) is int and abs(value) > 8):
        return type(value)
    inside = [(path, kind_of(item)) for path, item in children_of(value)]
    return (type(value), *inside) if inside or type(value) not in PLAIN else value


@contextlib.contextmanager
def applied(
    on_apply: Callable[[type[torch.autograd.Function], Sequence[Any], Mapping[str, Any]], Callable[[], None]],
) -> Iterator[None]:
    """Call a function before each `apply` of a Function, and what it returns after those that do not raise.

    It also sees an `apply` that modules keep in a variable, if they are imported within.
    """
    base: Any = torch.autograd.Function
    own = inspect.getattr_static(base, "apply")

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return own.__get__(None, cls)(*args, **kwargs)
        keep = on_apply(cls, args, kwargs)
        found = own.__get__(None, cls)(*args, **kwargs)
        keep()
        return found

    is_own = "apply" in vars(base)
    base.apply = classmethod(apply)
    try:
        yield
    finally:
        if is_own:
            base.apply = own
        else:
            del base.apply
