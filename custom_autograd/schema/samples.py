"""What an op is called with when it is verified: `Sample`, and `make(*shape)`, which makes its tensors.

def samples(make):                        make is a TensorFactory, bound to device, dtype and seed
    yield Sample(make(4, 8), make(8))     one call: positional and keyword arguments
    yield Sample(make(4, 8), make(8), eps=1e-3).named("large eps")
    yield Sample(make(4, 8), make(7)).raises(ValueError, match="'weight' has 7")
    yield Sample(make(4, 8), make.tensor([0, 9])).raises(IndexError, on="cpu")     a GPU does not look at the labels
    yield Sample(make(0, 8), make(8)).xfail("sizes", reason="the kernel does not support empty tensors yet")
    yield Sample(make(4, 8), alpha=1.5).keeping("alpha")                           0 and -1 are outside of its domain
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from custom_autograd.core.device_types import advice_on, name_of, unknown_among
from custom_autograd.core.errors import CheckError
from custom_autograd.core.option_types import check_type, listed
from custom_autograd.torch_private.trees import find_node_type

PLAIN = (int, float, bool, complex, str, type(None), torch.dtype, torch.device)
"""Classes of most arguments that hold no tensor; every check asks often."""


def children_of(value: object) -> list[tuple[str, object]]:
    """Yield each thing in a container with its path, `[0]`, `['k']` or `.weight`; nothing if it is not a container."""
    if type(value) in PLAIN:
        return []
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", item) for name, item in zip(getattr(value, "_fields", ()), value, strict=True)]
    if isinstance(value, (list, tuple)):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    node = find_node_type(type(value))
    return [] if node is None else [(f"[{index}]", item) for index, item in enumerate(node.dump(value)[0])]


def map_tensors(value: object, function: Callable[[Tensor], Tensor]) -> object:
    """Return the same container with `function` applied to every tensor in it, in order."""
    if isinstance(value, Tensor):
        return function(value)
    if type(value) in PLAIN:
        return value
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [map_tensors(item, function) for item in value]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return cast(Callable[..., object], type(value))(*items)
        return items if isinstance(value, list) else tuple(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: map_tensors(getattr(value, name), function) for name in fields})
    node = find_node_type(type(value))
    if node is None:
        return value
    items, context = node.dump(value)
    return node.load([map_tensors(item, function) for item in items], context)


def format_value(value: object) -> str:
    """Return a value in at most 80 characters: a tensor as dtype[shape], a container by its elements, else its repr.

    It is one line.
    """
    if isinstance(value, Tensor):
        layout = "" if value.layout == torch.strided else f", {str(value.layout).removeprefix('torch.')}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{layout}"
    text = _format_container(value) if _has_tensors(value) else " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def _format_container(value: object) -> str:
    """Return a container with tensors in it, as Python would write it, with shapes instead of data."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {format_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        text = ", ".join(format_value(item) for item in value)
        return f"[{text}]" if isinstance(value, list) else f"({text})"
    fields = ", ".join(f"{path[1:]}={format_value(item)}" for path, item in children_of(value))
    return f"{type(value).__name__}({fields})"


def _has_tensors(value: object) -> bool:
    return isinstance(value, Tensor) or any(_has_tensors(item) for _, item in children_of(value))


class Sample:
    """One call of an op: its positional and keyword arguments.

    Every keyword is the op's own; the sample's name is given by `named`, so that the two cannot collide.

    Example:
        >>> Sample(torch.ones(4, 8), eps=1e-3).named("large eps")
        Sample(float32[4, 8], eps=0.001).named('large eps')
    """

    __slots__ = ("accepted", "args", "error", "kept", "kwargs", "name")

    args: tuple[object, ...]
    kwargs: dict[str, object]
    name: str
    error: "ExpectedError | None"
    accepted: Mapping[str, str]
    kept: tuple[str, ...]

    def __init__(self, /, *args: object, **kwargs: object) -> None:
        """Keep the arguments as they are; nothing is copied."""
        self.args = args
        self.kwargs = kwargs
        self.name = ""
        self.error = None
        self.accepted = {}
        self.kept = ()

    def named(self, name: str, /) -> "Sample":
        """Return the same call under a name, which reports show.

        Raises:
            CheckError: the name is not a string.
        """
        refuse = partial(CheckError, "samples")
        check_type(refuse, "name", name, (str,), "what reports call the sample", example="'large eps'")
        sample = self.map(lambda tensor: tensor)
        sample.name = name
        return sample

    def raises(
        self, error: object = Exception, /, *, match: str = "", on: str | Sequence[str] | None = None
    ) -> "Sample":
        """Return the same call, declared to raise: the check `errors` looks at it, and no other does.

        Args:
            error: the class that is raised.
            match: a regular expression that its message contains.
            on: the device types on which it raises, such as "cpu" for values that kernels of a GPU do not look at; all
                by default. The call is not made on others, where its result is undefined.

        Raises:
            CheckError: what is given is not a class of exceptions, or `on` is not device types of torch.
        """
        if not (isinstance(error, type) and issubclass(error, Exception)):
            problem = "raises() takes one class of exceptions"
            raise CheckError("samples", problem, found=repr(error)[:80], do="raises(ValueError)")
        sample = self.map(lambda tensor: tensor)
        sample.error = ExpectedError(error, match, () if on is None else _device_types(on))
        return sample

    def xfail(self, /, *checks: str, reason: str) -> "Sample":
        """Return the same call, on which checks are known to fail: reported as accepted, and a failure once they pass.

        Args:
            checks: names of checks, one or more.
            reason: why the failures are accepted; reports show it.

        Raises:
            CheckError: no check is named, or there is no reason.
        """
        refuse = partial(CheckError, "samples")
        check_type(refuse, "reason", reason, (str,), "why the failures are accepted", example="'a kink at 0'")
        if not listed(refuse, "checks", checks, example="'gradcheck'") or not reason.strip():
            problem = "xfail() is given no " + ("reason" if checks else "name of a check")
            raise CheckError("samples", problem, do="xfail('gradcheck', reason='a kink at 0')")
        sample = self.map(lambda tensor: tensor)
        sample.accepted = {**self.accepted, **dict.fromkeys(checks, reason)}
        return sample

    def keeping(self, /, *arguments: str) -> "Sample":
        """Return the same call, of which checks do not change these numbers: the op is defined for few of them.

        Args:
            arguments: names of arguments that are floats, ints or bools; checks else try 0, 1, -1 and others for them.
        """
        sample = self.map(lambda tensor: tensor)
        sample.kept = (*self.kept, *arguments)
        return sample

    def leaves(self) -> "tuple[TensorLeaf, ...]":
        """Return every tensor of the call with the path to it, in the order of the arguments.

        Containers are entered.
        """
        found: list[TensorLeaf] = []
        for position, value in enumerate(self.args):
            found += _leaves(value, position, "")
        for name, value in self.kwargs.items():
            found += _leaves(value, name, "")
        return tuple(found)

    def tensors(self) -> tuple[Tensor, ...]:
        """Return every tensor of the call, in the order of `leaves`."""
        return tuple(leaf.tensor for leaf in self.leaves())

    def map(self, function: Callable[[Tensor], Tensor]) -> "Sample":
        """Return the same call with `function` applied to every tensor, in the order of `leaves`."""
        args = tuple(map_tensors(value, function) for value in self.args)
        kwargs = {name: map_tensors(value, function) for name, value in self.kwargs.items()}
        return self.with_arguments(args, kwargs)

    def with_arguments(self, args: Sequence[object], kwargs: Mapping[str, object]) -> "Sample":
        """Return a call with other arguments under the same name, with what is declared of this one."""
        sample = Sample(*args, **kwargs)
        sample.name, sample.error, sample.accepted, sample.kept = self.name, self.error, self.accepted, self.kept
        return sample

    def with_tensors(self, tensors: Sequence[Tensor]) -> "Sample":
        """Return the same call with its tensors replaced, one for one, in the order of `leaves`."""
        remaining = iter(tensors)
        return self.map(lambda _: next(remaining))

    def __repr__(self) -> str:
        """Return the call with shapes instead of data."""
        parts = [format_value(value) for value in self.args]
        parts += [f"{name}={format_value(value)}" for name, value in self.kwargs.items()]
        label = f".named({self.name!r})" if self.name else ""
        if self.error is not None:
            label += f".raises({self.error.type.__name__})"
        return f"Sample({', '.join(parts)}){label}"


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """The error that a call is declared to raise: its class, a regular expression in its message, and where.

    Attributes:
        device_types: on which the call raises; empty for all.
    """

    type: type[Exception]
    match: str
    device_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """One tensor of a sample: the argument it belongs to (position or keyword), and the path inside that argument."""

    argument: int | str
    path: str
    tensor: Tensor


class TensorFactory:
    """The `make` of a samples rule: reproducible tensors on the device and dtype under test.

    The numbers are drawn on the CPU from a generator of its own, so they do not depend on the device, and the global
    random state is neither read nor changed.

    Args:
        device: where the tensors are to live.
        dtype: the dtype of tensors for which a call gives none.
        seed: equal seeds give equal tensors, call by call.
        requires_grad: whether floating and complex tensors require grad where a call does not say.
    """

    def __init__(
        self,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        requires_grad: bool = True,
    ) -> None:
        self.device = torch.device(device)
        self.dtype = dtype
        self.requires_grad = requires_grad
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(
        self,
        *shape: int,
        dtype: torch.dtype | None = None,
        low: float | None = None,
        high: float | None = None,
        requires_grad: bool | None = None,
    ) -> Tensor:
        """Return a new tensor, uniform in [low, high).

        Returns:
            A contiguous tensor of the given shape on `device`.
        """
        dtype = self.dtype if dtype is None else dtype
        is_differentiable = dtype.is_floating_point or dtype.is_complex
        is_bounded = (low, high) != (None, None)
        low, high = _bounds(low, high, is_differentiable)
        if requires_grad and not is_differentiable:
            raise _no_gradient(dtype)
        tensor = self._draw(shape, dtype, low, high).to(self.device)
        setattr(tensor, DRAWN, True)
        if is_bounded:
            setattr(tensor, RANGE, (low, high))
        return tensor.requires_grad_(
            is_differentiable and (self.requires_grad if requires_grad is None else requires_grad)
        )

    def tensor(self, data: object, *, dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor of given values, such as offsets or labels, on the device under test; nothing is drawn."""
        if dtype is None:
            found = torch.as_tensor(data, device="cpu").dtype
            dtype = self.dtype if found.is_floating_point else found
        return torch.as_tensor(data, dtype=dtype, device="cpu").detach().to(self.device, copy=True)

    def _draw(self, shape: tuple[int, ...], dtype: torch.dtype, low: float, high: float) -> Tensor:
        if dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=self._generator, device="cpu").to(torch.bool)
        if not dtype.is_floating_point and not dtype.is_complex:
            return torch.randint(int(low), int(high), shape, generator=self._generator, device="cpu").to(dtype)
        real = self._uniform(shape, low, high)
        if dtype.is_complex:
            return torch.complex(real, self._uniform(shape, low, high)).to(dtype)
        return real.to(dtype)

    def _uniform(self, shape: tuple[int, ...], low: float, high: float) -> Tensor:
        unit = torch.rand(shape, generator=self._generator, dtype=torch.float64, device="cpu")
        return low + (high - low) * unit

    def __repr__(self) -> str:
        """Return the device and dtype under test."""
        return f"make(device={str(self.device)!r}, dtype={self.dtype})"


def _bounds(low: float | None, high: float | None, is_differentiable: bool) -> tuple[float, float]:
    width = 4 if is_differentiable else 10
    if low is None:
        low = (-2 if is_differentiable else 0) if high is None else min(high - width, -2 if is_differentiable else 0)
    high = low + width if high is None else high
    if not low < high:
        problem = "make() is given an empty range"
        raise CheckError("samples", problem, expected="low < high", found=f"low={low}, high={high}")
    return low, high


def range_of(tensor: Tensor) -> tuple[float, float] | None:
    """Return the range that `make` was given for a tensor, outside of which its numbers mean nothing, or None."""
    return getattr(tensor, RANGE, None)


def is_drawn(tensor: Tensor) -> bool:
    """Return True if `make` drew the numbers of a tensor: their order means nothing."""
    return getattr(tensor, DRAWN, False)


DRAWN = "_custom_autograd_drawn"
"""The attribute of a tensor that `make` drew."""

RANGE = "_custom_autograd_range"
"""The attribute of a tensor that `make` made with low= or high=."""


def _device_types(on: str | Sequence[str]) -> tuple[str, ...]:
    names = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, (list, tuple)) else ()
    unknown = unknown_among(names)
    if names and unknown is None:
        return tuple(map(name_of, names))
    expected, do = "on='cpu' or on=['cuda', 'xpu']", advice_on(unknown) if isinstance(unknown, str) else None
    raise CheckError("samples", "raises() takes device types", expected=expected, found=f"on={on!r}"[:80], do=do)


def _no_gradient(dtype: torch.dtype) -> CheckError:
    return CheckError(
        "samples",
        f"make() cannot give a {dtype} tensor that requires grad",
        expected="a floating or complex dtype",
        found=str(dtype),
        do="leave out requires_grad=True, or give dtype=torch.float32",
    )


def _leaves(value: object, argument: int | str, path: str) -> list[TensorLeaf]:
    if isinstance(value, Tensor):
        return [TensorLeaf(argument, path, value)]
    return [leaf for key, item in children_of(value) for leaf in _leaves(item, argument, path + key)]
