"""Records the calls that code makes of Functions and ops, as samples.

record_calls    the calls of everything that a package defines, for `check`
Recorder        the calls of chosen Functions and ops; `custom-autograd migrate` uses it

Of the calls of one kind, the smallest is kept. Two calls are of one kind if their dtypes, ranks, `requires_grad`,
flags, strings, integers from -8 to 8 and types of other arguments agree, and the same sizes are 0 or 1.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
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
from custom_autograd.verification.harness.held import held_by_objects
from custom_autograd.verification.harness.packages import Contents, importable_name, load_all
from custom_autograd.verification.harness.sweeps import has_arithmetic
from custom_autograd.verification.harness.targets import target_of

MOST = 6
"""Number of calls that are kept of each Function and op."""

LARGEST = 2**22
"""Number of elements that the tensors of a call for `check` may have together."""

Calls: TypeAlias = "dict[object, list[Sample]]"
Called: TypeAlias = "type[torch.autograd.Function] | Overload"


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
    contents = Contents(())
    known: dict[object, object] = {}
    local: dict[tuple[str, str], object] = {}

    def choose(called: Called) -> object:
        if called in known or not isinstance(called, type) or not contents.holds(called):
            return known.get(called)
        name = called.__module__, called.__qualname__
        is_local = importable_name(called) is None and local.setdefault(name, called) is called
        return called if is_local else None

    found: Calls = {}
    recorder = Recorder(choose, largest=LARGEST)
    with recorder.functions(), contextlib.ExitStack() as stack:
        contents = load_all(target)
        known |= {_key(loaded.value): loaded.value for loaded in contents.found}
        if any(isinstance(key, Overload) for key in known):
            stack.enter_context(recorder.ops())
        yield found
    found |= {value: [] for value in known.values()}
    for value, samples in recorder.samples().items():
        found[value] = [_with_its_numbers(value, sample) for sample in samples]


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


def kind_of(value: object, *, sizes: float = 2, numbers: float = 8) -> object:
    """Return the facts about an argument that distinguish kinds of calls.

    Args:
        value: the argument.
        sizes: larger sizes are counted as this one.
        numbers: integers with larger absolute values are alike; if it is finite, so are all floats.
    """
    kind = partial(kind_of, sizes=sizes, numbers=numbers)
    if isinstance(value, Tensor):
        shape = tuple(min(size, sizes) for size in value.shape)
        return value.dtype, value.device, value.layout, value.requires_grad, shape
    if numbers < inf and (type(value) is float or (type(value) is int and abs(value) > numbers)):
        return type(value)
    inside = [(path, kind(item)) for path, item in children_of(value)]
    if inside or type(value) not in PLAIN:
        return (type(value), *inside)
    return type(value), value


class Recorder:
    """Keeps calls of Functions and ops, at most 6 of each.

    Args:
        choose: returns the key under which the calls of a Function or an overload are kept, or None to ignore them.
        largest: the number of elements that the tensors of a kept call may have together.
        kind: returns the facts about an argument that distinguish kinds of calls.
    """

    def __init__(
        self,
        choose: Callable[[Called], object],
        *,
        largest: float = inf,
        kind: Callable[[object], object] = kind_of,
    ) -> None:
        self._choose, self._largest, self._kind = choose, largest, kind
        self._kept: dict[object, dict[object, tuple[int, Sample]]] = {}

    def samples(self) -> Calls:
        """Return the kept calls by key."""
        return {key: [sample for _, sample in kept.values()] for key, kept in self._kept.items()}

    def ops(self) -> contextlib.AbstractContextManager[object]:
        """Record the ops that run within."""
        return Watch(lambda overload, args, kwargs, _: self._taken(overload, args, kwargs)())

    @contextlib.contextmanager
    def functions(self) -> Iterator[None]:
        """Record each `apply` within that does not raise; also one that modules imported within keep in a variable."""
        base: Any = torch.autograd.Function
        own = inspect.getattr_static(base, "apply")

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            keep = _nothing if torch.compiler.is_compiling() else self._taken(cls, args, kwargs)
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

    def _taken(self, called: Called, args: Sequence[object], kwargs: Mapping[str, object]) -> Callable[[], None]:
        """Copy the arguments of a call, before it may write to them, and return what keeps the copies."""
        key, sample = self._choose(called), Sample(*args, **kwargs)
        tensors = sample.tensors() if key is not None else ()
        count = sum(tensor.numel() for tensor in tensors)
        if key is None or count > self._largest or not all(map(_is_plain, tensors)):
            return _nothing
        kind = tuple(map(self._kind, args)), tuple((name, self._kind(row)) for name, row in kwargs.items())
        kept = self._kept.setdefault(key, {})
        if (count >= kept[kind][0]) if kind in kept else len(kept) == MOST:
            return _nothing
        held = held_by_objects(sample)  # which stay the same as in the objects
        with torch.no_grad():
            copied = sample.map(lambda x: x if any(x is one for one in held) else copy_of(x))
        return lambda: kept.update({kind: (count, copied)})


def _nothing() -> None:
    """Keep no call."""


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and not is_wrapped(tensor) and tensor.device.type != "meta"


def copy_of(tensor: Tensor) -> Tensor:
    """Return a copy that is a leaf; numbers outside of the range of its own are not tried by checks."""
    copied = tensor.detach().clone()
    if has_arithmetic(copied) and not copied.is_complex() and copied.numel() and copied.layout == torch.strided:
        setattr(copied, RANGE, (float(copied.min()), float(copied.max())))
    return copied.requires_grad_(tensor.requires_grad)
