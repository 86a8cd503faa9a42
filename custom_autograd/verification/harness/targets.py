"""Anything that can be checked, seen through one interface: `Target`.

CustomOp                             its op record: schema, kernels, rules, samples
CustomOpDef, OpOverload              what the dispatcher's schema says
torch.autograd.Function subclass     called through `apply`
any callable on tensors              its signature, nothing else
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, cast

import torch
from torch import Tensor

from custom_autograd.containers.argument_tree import ArgumentTree, refusal
from custom_autograd.containers.fields import Plain, all_nodes
from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.containers.treespecs import MisfitError
from custom_autograd.core.errors import CheckError
from custom_autograd.core.locations import location_of
from custom_autograd.core.signatures import read_signature
from custom_autograd.execution.generated import source_of
from custom_autograd.registration import registry
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Gradient, JvpRule, ReferenceRule, Registrations
from custom_autograd.schema.samples import Sample, TensorFactory, TensorLeaf
from custom_autograd.schema.schema import Argument, Schema
from custom_autograd.shapes.sampling import find_samples
from custom_autograd.torch_private import verification
from custom_autograd.verification.harness.dispatching import (
    call_overload,
    completing,
    conditional,
    key_of_kernel,
    repeatable,
    to_dispatcher,
)


@dataclass(frozen=True, slots=True)
class TargetArgument:
    """Facts about one argument of a target."""

    name: str
    is_mutated: bool = False
    is_differentiable: bool = True
    # NOTE: keyword-only: Python 3.10 makes a signature under `python -OO`, in which `empty` means no default.
    default: object = field(default=inspect.Parameter.empty, kw_only=True)
    kind: object = field(default=inspect.Parameter.POSITIONAL_OR_KEYWORD, kw_only=True)


def argument_of_schema(row: Argument) -> TargetArgument:
    """Return what a schema says of an argument."""
    default = row.default if row.has_default else inspect.Parameter.empty
    return TargetArgument(row.name, row.is_mutated, row.is_differentiable, default=default, kind=row.kind)


def arguments_with_containers(tree: ArgumentTree, schema: Schema) -> tuple[TargetArgument, ...]:
    """Return the arguments as the author of the op sees them; of a container, what holds for anything in it."""
    found = []
    for node in tree.inputs:
        flat = [argument for argument in schema.arguments if argument.name in node.flat()]
        is_mutated, is_differentiable = any(a.is_mutated for a in flat), any(a.is_differentiable for a in flat)
        parameter = tree.signature.parameters[node.name]
        found.append(
            TargetArgument(node.name, is_mutated, is_differentiable, default=parameter.default, kind=parameter.kind)
        )
    return tuple(found)


def arguments_with_surrogates(registrations: Registrations, arguments: Sequence[TargetArgument]) -> dict[str, str]:
    """Return the arguments whose rules do not return the derivative, and the reason that their author gives."""
    found: dict[str, str] = {}
    for rule in registrations.gradient_rules():
        if rule.surrogate:
            names = rule.named if isinstance(rule, Gradient) else [argument.name for argument in arguments]
            found |= dict.fromkeys(names, rule.surrogate)
    return found


def fields_in_containers(tree: ArgumentTree, schema: Schema) -> dict[str, TargetArgument]:
    """Return the facts of each tensor that is a flat field, by argument and path, as in `params.weight`."""
    found = {}
    for node in all_nodes(tree.inputs):
        if isinstance(node, Plain) and node.name in schema.argument_names:
            known = argument_of_schema(schema.argument(node.name))
            found[node.path] = replace(known, name=node.path.partition(".")[0].partition("[")[0])
    return found


Function: TypeAlias = Callable[..., object]
"""A kernel, a reference or an op: arguments of any kind, tensors in any container out."""

SamplesRule: TypeAlias = Callable[[TensorFactory], Iterable[Sample]]
"""What `register_samples` takes: a generator of samples, given `make`."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something to check.

    Args:
        name: what reports call it.
        call: the public call.
        full: like `call`, but gives hidden outputs too.
        arguments: in order, as far as they are known.
        overload: the dispatcher's overload, if it is an op.
        to_dispatcher: the same call in the values that the overload takes.
        reference: the same computation in differentiable PyTorch operations.
        reference_name: what messages call it.
        kernels: by device type, "" for the default kernel; further ones of a device type by that and their name.
        samples: the registered samples rule.
        location: file:line of the declaration.
        may_alias: whether results may share memory with arguments.
        hidden: the positions of the outputs that `full` and the reference give, and `call` does not.
        subject: what was given to be checked.
        source: gives the generated source of its wrapper and its rules; empty where nothing is generated.
        fields_in_containers: for a tensor in a container, by its argument and path, what is known of it.
        surrogates: by argument, why the rule for its gradient does not return the derivative.
        reference_surrogate: why the gradients of the reference are not the derivative; empty if they are.
        tangent_surrogate: the same of the tangents of its jvp.
    """

    name: str
    call: Function
    full: Function
    arguments: tuple[TargetArgument, ...] = ()
    overload: verification.Overload | None = None
    to_dispatcher: Callable[[Sample], Sample] = lambda sample: sample
    reference: Function | None = None
    reference_name: str = "the reference"
    kernels: Mapping[str, Function] = field(default_factory=dict)
    samples: SamplesRule | None = None
    location: str = ""
    may_alias: bool = True
    hidden: frozenset[int] = frozenset()
    subject: object = None
    source: Callable[[], str] = lambda: ""
    fields_in_containers: Mapping[str, TargetArgument] = field(default_factory=dict)
    surrogates: Mapping[str, str] = field(default_factory=dict)
    reference_surrogate: str = ""
    tangent_surrogate: str = ""

    def argument_of(self, leaf: TensorLeaf) -> TargetArgument:
        """Return the argument a tensor of a sample belongs to."""
        argument = self._argument_of(leaf)
        return self.fields_in_containers.get(f"{argument.name}{leaf.path}", argument)

    def _argument_of(self, leaf: TensorLeaf) -> TargetArgument:
        if isinstance(leaf.argument, int):
            position = min(leaf.argument, self._star)
            if position < len(self.arguments):
                return self.arguments[position]
            return TargetArgument(f"args[{leaf.argument}]")
        matching = [argument for argument in self.arguments if argument.name == leaf.argument]
        return matching[0] if matching else TargetArgument(leaf.argument)

    def name_of(self, leaf: TensorLeaf) -> str:
        """Return what a message calls a tensor of a sample: 'weight', or 'tensors[1]'."""
        index = leaf.argument - self._star if isinstance(leaf.argument, int) else -1
        return f"{self.argument_of(leaf).name}{f'[{index}]' if index >= 0 else ''}{leaf.path}"

    @property
    def _star(self) -> int:
        """Return the position of the argument that takes all further ones; beyond the last if there is none."""
        kinds = [argument.kind for argument in self.arguments]
        return (
            kinds.index(inspect.Parameter.VAR_POSITIONAL) if inspect.Parameter.VAR_POSITIONAL in kinds else sys.maxsize
        )

    def written_positions(self, sample: Sample) -> frozenset[int]:
        """Return which tensors of a sample the target writes to, by their position among its leaves."""
        return frozenset(position for position, leaf in enumerate(sample.leaves()) if self.argument_of(leaf).is_mutated)

    def complete(self, sample: Sample) -> Sample:
        """Return the call with every default that it leaves out written down, as a kernel is called."""
        given = {argument.name for argument in self.arguments[: len(sample.args)]} | set(sample.kwargs)
        missing = [
            row for row in self.arguments if row.name not in given and row.default is not inspect.Parameter.empty
        ]
        nameless = [row.default for row in missing if row.kind is inspect.Parameter.POSITIONAL_ONLY]
        named = {row.name: row.default for row in missing if row.kind is not inspect.Parameter.POSITIONAL_ONLY}
        return sample.with_arguments([*sample.args, *nameless], {**sample.kwargs, **named})

    @property
    def visible_reference(self) -> Function | None:
        """Return the reference without the outputs that a call of the target does not return."""
        reference, hidden = self.reference, self.hidden
        if reference is None or not hidden:
            return reference

        def call(*args: object, **kwargs: object) -> object:
            outputs = cast(Sequence[object], reference(*args, **kwargs))
            return tuple(output for position, output in enumerate(outputs) if position not in hidden)

        return call

    @property
    def is_composed(self) -> bool:
        """Return True if it is a plain function, made of ops of others, which answer for themselves."""
        is_function = isinstance(self.subject, type) and issubclass(self.subject, torch.autograd.Function)
        return self.overload is None and not is_function

    @property
    def is_mutating(self) -> bool:
        """Return True if an argument is declared to be written to."""
        return any(argument.is_mutated for argument in self.arguments)


def call_on(function: Function, sample: Sample) -> tuple[Tensor, ...]:
    """Return the tensors a function returns for a sample, containers flattened."""
    return Sample(function(*sample.args, **sample.kwargs)).tensors()


def dense(tensor: Tensor) -> Tensor:
    """Return a tensor of any layout as a strided one, through which gradients flow; a strided one as it is."""
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def target_of(value: object) -> Target:
    """Return the target behind anything that can be checked.

    Raises:
        CheckError: it cannot be called.
    """
    return value if isinstance(value, Target) else replace(_target_of(value), subject=value)


def _target_of(value: object) -> Target:
    record = registry.record_of(value)
    if record is not None:
        return _from_record(cast(Function, record.overload if value is record else value), record)
    if isinstance(value, verification.Definition):
        return _from_definition(value)
    overload = verification.find_overload(value)
    if overload is not None:
        return _of_overload(overload, overload, "")
    if isinstance(value, type) and issubclass(value, torch.autograd.Function):
        return _from_function(value)
    if callable(value):
        return _from_callable(value)
    raise CheckError(
        repr(value)[:80],
        "this cannot be checked",
        expected="an op, an overload, a torch.autograd.Function subclass, or a callable on tensors",
        found=f"a {type(value).__name__}",
        do="give the op itself",
    )


def _from_record(call: Function, record: OpRecord) -> Target:
    schema = record.declaration.schema
    found = _from_schema(call, record, schema)
    found = replace(found, samples=find_samples(record))
    found = adapter_of(record.declaration).around(found, functools.partial(_with_containers, schema))
    surrogates = arguments_with_surrogates(record.registrations, found.arguments)
    rules = record.registrations.get(ReferenceRule), record.registrations.get(JvpRule)
    reference, jvp = ((rule and rule.surrogate) or "" for rule in rules)
    return replace(found, surrogates=surrogates, reference_surrogate=reference, tangent_surrogate=jvp)


def _with_containers(schema: Schema, tree: ArgumentTree, flat: Target) -> Target:
    """Return the target as its author sees it: what is flat inside is called with containers."""

    def flattened(sample: Sample) -> Sample:
        try:
            return flat.to_dispatcher(sample.with_arguments(*tree.flat_call(*sample.args, **sample.kwargs)))
        except MisfitError as error:
            raise refusal(flat.name, flat.location, error) from None

    return replace(
        flat,
        full=tree.outside(flat.full),
        arguments=arguments_with_containers(tree, schema),
        to_dispatcher=flattened,
        reference=None if flat.reference is None else tree.outside(flat.reference),
        kernels={device: tree.outside(function) for device, function in flat.kernels.items()},
        fields_in_containers=fields_in_containers(tree, schema),
    )


def _from_schema(call: Function, record: OpRecord, schema: Schema) -> Target:
    reference = record.reference()
    target = Target(
        name=record.name,
        call=repeatable(schema, call),
        full=repeatable(schema, functools.partial(call_overload, record)),
        arguments=tuple(argument_of_schema(row) for row in schema.arguments),
        overload=record.overload,
        to_dispatcher=functools.partial(to_dispatcher, schema),
        reference=None if reference is None else repeatable(schema, reference),
        kernels={key_of_kernel(kernel): repeatable(schema, conditional(kernel)) for kernel in record.kernels.all()},
        location=record.declaration.location,
        may_alias=schema.is_view or schema.may_return_inputs,
        hidden=frozenset(position for position, output in enumerate(schema.outputs) if output.is_hidden),
        source=functools.partial(source_of, record),
    )
    rule = record.registrations.get(ReferenceRule)
    if rule is not None:
        return replace(target, reference=completing(target.complete, repeatable(schema, rule.function)))
    plain = target.reference
    if reference is None or plain is None or _has_defaults_of(schema, reference):
        return target
    whole = completing(target.complete, plain)
    kernels = {key: whole if kernel is plain else kernel for key, kernel in target.kernels.items()}
    return replace(target, reference=whole, kernels=kernels)


def _has_defaults_of(schema: Schema, function: Function) -> bool:
    """Return False if a function lacks a default of its schema, which the author wrote."""
    parameters = inspect.signature(function).parameters
    needed = {name for name, row in parameters.items() if row.default is inspect.Parameter.empty}
    return not any(row.has_default and row.name in needed for row in schema.arguments)


def _from_definition(definition: verification.Definition) -> Target:
    overload = verification.overload_of_definition(definition)
    function = verification.function_of_definition(definition)
    return replace(_of_overload(overload, definition, location_of(function)), kernels={"": function})


def _of_overload(overload: verification.Overload, call: Function, location: str) -> Target:
    return Target(
        name=verification.name_of_overload(overload),
        call=call,
        full=call,
        arguments=tuple(
            TargetArgument(row.name, row.is_mutated, default=row.default)
            for row in verification.arguments_of_overload(overload)
        ),
        overload=overload,
        location=location,
        may_alias=verification.may_alias(overload),
    )


def _from_function(function: type[torch.autograd.Function]) -> Target:
    apply = cast(Function, function.apply)
    parameters = list(read_signature(function.forward).parameters.values())
    if function.setup_context is torch.autograd.Function.setup_context:
        parameters = parameters[1:]  # without ctx
    arguments = tuple(TargetArgument(row.name, default=row.default, kind=row.kind) for row in parameters)
    return Target(function.__qualname__, apply, apply, arguments, location=location_of(function))


def _from_callable(function: Function) -> Target:
    try:
        parameters = list(read_signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin says nothing of its parameters
        parameters = []
    arguments = tuple(
        TargetArgument(row.name, default=row.default)
        for row in parameters
        if row.kind not in (row.VAR_POSITIONAL, row.VAR_KEYWORD)
    )
    spelling = "__name__" if inspect.isbuiltin(function) else "__qualname__"
    name = str(getattr(function, spelling, type(function).__name__))
    return Target(name, function, function, arguments, location=location_of(function))
