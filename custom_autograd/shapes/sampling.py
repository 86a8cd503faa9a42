"""Samples that follow from a line: sizes that kernels get wrong, and calls with one size off, which must be refused."""

from __future__ import annotations

import functools
import itertools
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.errors import CheckError, ShapeError
from custom_autograd.core.messages import first_line
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Samples
from custom_autograd.schema.annotations import hints_of
from custom_autograd.schema.samples import Sample, TensorFactory
from custom_autograd.schema.schema import Argument
from custom_autograd.shapes.described import DescribedOp
from custom_autograd.shapes.notation import Item, Line, Shape, Size, SizeMismatch
from custom_autograd.shapes.rule import described_op
from custom_autograd.shapes.unification import Sizes

Values = dict[str, Any]  # Any: the arguments of a call
Function = Callable[..., Any]  # Any: takes and returns what the schema declares


@dataclass(frozen=True, slots=True)
class SampledRow:
    """The sizes of one sample.

    Attributes:
        group: the dimensions of every `*name`.
        sizes: of the other names, in turn.
        is_empty: the names that can be cut have the size 0 where there is no group.
    """

    group: tuple[int, ...]
    sizes: tuple[int, ...]
    is_empty: bool = False


ROWS = (
    SampledRow((2,), (3, 5, 4, 2)),
    SampledRow((2, 3), (19, 2, 5, 3)),
    SampledRow((), (8, 16, 3, 2)),
    SampledRow((0,), (5, 3, 8, 2), is_empty=True),
    SampledRow((3,), (1, 1, 1, 1)),
)
MOST_WRONG = 8
MOST_TRIED = 32


def find_samples(record: OpRecord) -> Callable[[TensorFactory], Iterable[Sample]] | None:
    """Return the registered generator of samples, else one that follows from the line; None if there is neither."""
    rule, described = record.registrations.get(Samples), described_op(record)
    if rule is not None:
        return rule.function
    if described is None or adapter_of(record.declaration).has_containers:
        return None
    is_differentiable = not record.declaration.schema.mutated_arguments or bool(
        record.registrations.gradient_rules() or record.reference()
    )
    return functools.partial(_samples, described, record.reference(), is_differentiable)


def _samples(
    described: DescribedOp, reference: Function | None, is_differentiable: bool, make: TensorFactory
) -> Iterator[Sample]:
    """Yield derived samples, without gradients for an op that refuses to be called with them."""
    for sample in derived_samples(described, reference, make):
        yield sample if is_differentiable else sample.map(torch.Tensor.detach)


def derived_samples(described: DescribedOp, reference: Function | None, make: TensorFactory) -> Iterator[Sample]:
    """Yield samples of an op: for each row of sizes, for other values of arguments, and calls with one size off."""
    dtypes = {} if reference is None else _dtypes_for(described, reference, make)
    sampler = _Sampler(described, make, dtypes)
    variants = sampler.variants()
    for row in ROWS:
        yield from sampler.sample(row, variants[0])
    for variant in variants[1:]:
        yield from sampler.sample(ROWS[0], variant)
    yield from sampler.broadcast(variants[0])
    yield from itertools.islice(sampler.wrong(variants[0]), MOST_WRONG)


def _dtypes_for(described: DescribedOp, reference: Function, make: TensorFactory) -> dict[str, torch.dtype]:
    """Return the arguments that take integers or bools, such as an index or a mask: found by calling the reference."""
    names = [argument.name for argument in described.declaration.schema.tensor_arguments]
    tried = itertools.product((None, torch.int64, torch.bool), repeat=len(names))
    problem = ""
    for chosen in itertools.islice(sorted(tried, key=lambda one: len(one) - one.count(None)), MOST_TRIED):
        dtypes = {name: dtype for name, dtype in zip(names, chosen, strict=True) if dtype is not None}
        own = TensorFactory(device=make.device, dtype=make.dtype, requires_grad=False)  # `make` draws as if not tried
        sampler = _Sampler(described, own, dtypes)
        (sample,) = sampler.sample(ROWS[0], sampler.variants()[0])
        try:
            reference(*sample.args, **sample.kwargs)
        except Exception as error:  # noqa: BLE001 - a reference raises what PyTorch's operations raise
            problem = problem or first_line(error)
        else:
            return dtypes
    numbers = f"numbers={{'{names[0]}': lambda make, shape, sizes: make(*shape, dtype=torch.int64)}}"
    raise _not_derived(described, f"the reference raises {problem}", f"register_samples, or give {numbers}")


class _Sampler:
    """Makes the samples of one op."""

    def __init__(self, described: DescribedOp, make: TensorFactory, dtypes: Mapping[str, torch.dtype]) -> None:
        self._dtypes = dtypes
        self._described = described
        self._schema = described.declaration.schema
        self._make = make

    def variants(self) -> list[Values]:
        """Return the arguments besides tensors, by name, and True for each tensor: defaults, then one other each."""
        first = {argument.name: self._first(argument) for argument in self._schema.arguments}
        found = [first]
        for argument in self._schema.arguments:
            found += [{**first, argument.name: value} for value in self._others(argument, first[argument.name])]
        return found

    def sample(self, row: SampledRow, variant: Values) -> Iterator[Sample]:
        """Yield the sample of these sizes; none if a dimension would not be what numbers= or an argument says."""
        line = self._line(variant)
        sizes = self._sizes(line, row, variant)
        shapes = {item.name: _shape(item, sizes) for item in line.inputs}
        yield self._call(variant, shapes, sizes).named(_label(sizes))

    def broadcast(self, variant: Values) -> Iterator[Sample]:
        """Yield a sample in which every dimension that may be 1 is 1."""
        line = self._line(variant)
        if any(dim.is_broadcast for dim in line.dims()):
            sizes = self._sizes(line, ROWS[0], variant)
            shapes = {item.name: _shape(item, sizes, is_one=True) for item in line.inputs}
            yield self._call(variant, shapes, sizes).named("broadcast")

    def wrong(self, variant: Values) -> Iterator[Sample]:
        """Yield calls with one size off that does not fit the line."""
        line = self._line(variant)
        sizes = self._sizes(line, ROWS[0], variant)
        right = {item.name: _shape(item, sizes) for item in line.inputs}
        numbers = {name: variant[name] for name in line.names() if name in self._schema.argument_names}
        for item in line.inputs:
            if variant[item.name] is None:
                continue
            for dim in range(len(right[item.name])):
                shape = tuple(size + (at == dim) for at, size in enumerate(right[item.name]))
                mismatch = _mismatch(line, {**right, item.name: shape}, variant, numbers)
                if mismatch is not None:
                    sample = self._call(variant, {**right, item.name: shape}, sizes).map(torch.Tensor.detach)
                    name = f"'{item.name}' {list(shape)}"
                    yield sample.named(name).raises(ShapeError, match=f"'{mismatch.name}' must be")

    def _first(self, argument: Argument) -> Any:  # Any: a value of the argument
        if argument.holds_tensors:
            return True
        numbers = self._described.rule.numbers
        if argument.name in numbers and not callable(numbers[argument.name]):
            return numbers[argument.name]
        if argument.has_default:
            return argument.default
        if argument.name in numbers:
            return self._made(argument.name, {})
        choices = self._choices(argument)
        if choices:
            return choices[0]
        if argument.is_optional:
            return None
        do = f"give it one: numbers={{'{argument.name}': ...}}, or register_samples"
        raise _not_derived(self._described, f"'{argument.name}' has no default", do)

    def _others(self, argument: Argument, first: Any) -> list[Any]:  # Any: values of the argument
        if argument.holds_tensors:
            return [None] if argument.is_optional else []
        return [value for value in self._choices(argument) if value != first]

    def _choices(self, argument: Argument) -> list[Any]:  # Any: values of the argument
        if argument.type == "bool":
            return [False, True]
        try:
            hint = hints_of(self._described.declaration.function).get(argument.name)
        except (NameError, TypeError, AttributeError):
            return []
        return list(typing.get_args(hint)) if typing.get_origin(hint) is typing.Literal else []

    def _line(self, variant: Values) -> Line:
        placeholder = torch.empty((), device="meta")
        present = {argument.name for argument in self._schema.tensor_arguments if variant[argument.name] is not None}
        return self._described.line(
            {name: placeholder if name in present else value for name, value in variant.items()}
        )

    def _sizes(self, line: Line, row: SampledRow, variant: Values) -> dict[str, Size]:
        groups, given = line.groups(), itertools.cycle(row.sizes)
        integers = {argument.name for argument in self._schema.arguments if not argument.holds_tensors}
        found: dict[str, Size] = {name: row.group if name in groups else next(given) for name in line.names()}
        if row.is_empty and not groups:
            cut = next((name for name in line.names() if name not in line.along), None)
            found.update({} if cut is None else {cut: 0})
        numbers = self._described.rule.numbers
        arguments = {name: variant[name] for name in found if name in integers}
        made = {name: self._made(name, {**found, **arguments}) for name in arguments if callable(numbers.get(name))}
        return {**found, **arguments, **made}

    def _made(self, name: str, sizes: Mapping[str, Size]) -> Any:  # Any: a value of an argument that is not a tensor
        """Return what `numbers` makes for an argument; 1 if it needs sizes that are not known yet."""
        try:
            return self._described.rule.numbers[name](self._make, None, dict(sizes))
        except KeyError:
            if sizes:
                raise
            return 1

    def _call(self, variant: Values, shapes: Mapping[str, Shape], sizes: Mapping[str, Size]) -> Sample:
        args, kwargs = [], {}
        for argument in self._schema.arguments:
            value = self._value(argument, variant[argument.name], shapes, sizes)
            if argument.is_keyword_only:
                kwargs[argument.name] = value
            elif argument.is_variadic:
                args += value
            else:
                args.append(value)
        return Sample(*args, **kwargs)

    def _value(self, argument: Argument, chosen: Any, shapes: Mapping[str, Shape], sizes: Mapping[str, Size]) -> Any:
        """Return a value for an argument (Any: of its type)."""
        maker = self._described.rule.numbers.get(argument.name)
        if chosen is None or not (argument.holds_tensors or callable(maker)):
            return chosen
        shape = shapes.get(argument.name)
        if argument.name in sizes and not argument.holds_tensors:
            return sizes[argument.name]
        if callable(maker):
            return maker(self._make, shape, dict(sizes))
        assert shape is not None  # every tensor is in the line
        dtype = self._dtypes.get(argument.name)
        least = max(1, min((size for size in sizes.values() if isinstance(size, int)), default=1))  # fits as an index
        low, high = (0, least) if dtype == torch.int64 else (None, None)
        drawn = functools.partial(self._make, *shape, dtype=dtype, low=low, high=high)
        return [drawn(), drawn()] if argument.is_tensor_list else drawn()


def _not_derived(described: DescribedOp, why: str, do: str) -> CheckError:
    problem = f"samples do not follow from the line of shapes: {why}"
    return described.declaration.error(CheckError, problem, do=do)


def _shape(item: Item, sizes: Mapping[str, Size], *, is_one: bool = False) -> tuple[int, ...]:
    """Return the shape of a tensor; a dimension of any size is 2, or 1 where broadcasting is tried."""
    found: list[int] = []
    for dim in item.dims:
        if not dim.factors:
            found += [2] * (not dim.is_many)
            continue
        size = sizes[dim.names[0]] if dim.is_many else None
        is_spread = is_one and dim.is_broadcast
        if isinstance(size, tuple):
            found += [1] * len(size) if is_spread else size
        else:
            found.append(1 if is_spread else _product(dim.factors, sizes) + dim.plus)
    return tuple(found)


def _product(factors: tuple[str | int, ...], sizes: Mapping[str, Size]) -> int:
    whole = 1
    for factor in factors:
        size = sizes[factor] if isinstance(factor, str) else factor
        assert isinstance(size, int)  # a group is not a factor
        whole *= size
    return whole


def _mismatch(
    line: Line, shapes: Mapping[str, Shape], variant: Values, numbers: Mapping[str, int]
) -> SizeMismatch | None:
    present = {name: (shape,) for name, shape in shapes.items() if variant[name] is not None}
    try:
        Sizes(line, present, numbers)
    except SizeMismatch as mismatch:
        return mismatch
    return None


def _label(sizes: Mapping[str, Size]) -> str:
    """Return the sizes as text: "b=(2, 3), d=19"."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
