"""What is registered for an op: the base of all rules, those that several rooms read, and all of one op as one value.

The other rules are in the file of their capability, such as `VmapRule`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import field, fields
from types import FunctionType
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

from torch.autograd.function import once_differentiable

from custom_autograd.core.signatures import read_signature
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.policy_types import SavingPolicy
from custom_autograd.schema.schema import Schema

NEEDS = "needs"
META = "meta"
ONCE_DIFFERENTIABLE = once_differentiable(lambda ctx: ctx).__code__
"""The code of every function that PyTorch's decorator returns."""


def value_names(schema: Schema) -> dict[str, str]:
    """Return the inputs and outputs that a rule can name, with what each is."""
    outputs = {output.name: f"output '{output.name}'" for output in schema.fresh_outputs}
    return {name: f"argument '{name}'" for name in schema.argument_names} | outputs


def special_names(schema: Schema, *, with_grads: bool, with_tangents: bool) -> dict[str, str]:
    """Return what else a rule can name, with what each is."""
    names = {NEEDS: "which gradients are needed", META: "the metadata of tensors"}
    if with_grads:
        names |= {name: f"the incoming gradient of '{result}'" for name, result in schema.results_by_grad.items()}
    if with_tangents:
        names |= {f"tangent_{a.name}": f"the tangent of '{a.name}'" for a in schema.differentiable_arguments}
    return names


Function: TypeAlias = Callable[..., Any]
"""A user's function (Any: its parameters and its result depend on the schema and on the kind of rule)."""


@dataclass(frozen=True, slots=True)
class Registration:
    """One registration; the base of all below.

    Attributes:
        kind: the word for it in messages.
        location: file:line of the function, or the call that registered it.
    """

    kind: ClassVar[str]
    location: str

    @property
    def part(self) -> Hashable:
        """Return the part of the op that it is for; registrations of one class for several parts stand side by side."""
        return ""

    @property
    def title(self) -> str:
        """Return the words for it in messages, which are its own within one op."""
        return f"{self.kind} {self.part}".rstrip()

    def excludes(self, other: Registration) -> bool:
        """Return True if it replaces another one that is of another class, or for another part."""
        return False

    @property
    def where(self) -> str:
        """Return the location and the title: what an error says of the rule."""
        return f"{self.location}, {self.title}"

    @property
    def functions(self) -> tuple[Function, ...]:
        """Return the user's functions that it runs."""
        return ()

    @property
    def settings(self) -> str:
        """Return the text of what it consists of besides functions: its fields, but for where it was registered."""
        values = [getattr(self, one.name) for one in fields(self) if one.name != "location"]
        return ", ".join(
            repr(sorted(value) if isinstance(value, frozenset) else value) for value in values if not callable(value)
        )


@dataclass(frozen=True, slots=True)
class Rule(Registration):
    """A registered function."""

    function: Function

    @property
    def functions(self) -> tuple[Function, ...]:
        """Return the function."""
        return (self.function,)


@dataclass(frozen=True, slots=True)
class NamedRule(Rule):
    """A function that is bound to an op by the names of its parameters.

    Attributes:
        names: the parameters that it is called with by name.
    """

    names: tuple[str, ...]

    @property
    def is_positional(self) -> bool:
        """Return True if it may be called with its names in order, which is cheaper than by keyword."""
        if type(self.function) is FunctionType:  # the same, and quicker
            code = self.function.__code__
            return code.co_varnames[: min(code.co_argcount, len(self.names))] == self.names
        parameters = read_signature(self.function, follow_wrapped=False).parameters.values()
        leading = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][: len(self.names)]
        return tuple(leading) == self.names

    @property
    def wants_needs(self) -> bool:
        """Return True if it has a parameter for which inputs need a gradient."""
        return NEEDS in self.names

    @property
    def wants_meta(self) -> bool:
        """Return True if it has a parameter for the metadata of tensors."""
        return META in self.names


@dataclass(frozen=True, slots=True)
class GradientRule(NamedRule):
    """A function that returns gradients.

    Attributes:
        inputs: the inputs whose gradients it returns; empty for all.
        is_once_differentiable: its result must not be differentiated again.
        materializes: undefined incoming gradients reach it as zeros.
        optional: the parameters with a default of None, which undefined incoming gradients reach as None.
        surrogate: why the gradients are not the derivative, or None if they are.
    """

    inputs: tuple[str, ...]
    is_once_differentiable: bool
    materializes: bool
    optional: frozenset[str]
    surrogate: str | None

    @property
    def is_in_cpp(self) -> bool:
        """Return True if C++ computes it, so that it cannot be differentiated."""
        return is_in_cpp(self.function)

    def fills(self, name: str) -> bool:
        """Return True if an undefined incoming gradient reaches the parameter of that name as zeros."""
        return self.materializes and name not in self.optional


def is_in_cpp(function: Function) -> bool:
    """Return True for what calls a function in C++: see `cpp_rules.py`."""
    return hasattr(function, "written_in")


@dataclass(frozen=True, slots=True)
class BackwardRule(GradientRule):
    """The gradients of all inputs, from `register_backward`.

    Attributes:
        saving: by name of an input or an output, how it is kept until the backward.
        clears_saved: saved tensors reach it without another owner, so that it can free them.
    """

    kind = "backward"
    saving: Mapping[str, SavingPolicy]
    clears_saved: bool

    def excludes(self, other: Registration) -> bool:
        """Return True for every other rule that returns gradients."""
        return isinstance(other, (Gradient, DropInRule))

    @property
    def functions(self) -> tuple[Function, ...]:
        """Return the backward, and what keeps and restores what it saves."""
        return (self.function, *(one for policy in self.saving.values() for one in (policy.pack, policy.unpack)))


@dataclass(frozen=True, slots=True)
class Gradient(GradientRule):
    """The gradients of some inputs, from `register_grad`.

    Attributes:
        named: the inputs as the author named them, of which `inputs` are the tensors.
    """

    kind = "grad"
    named: tuple[str, ...]

    @property
    def part(self) -> str:
        """Return the inputs."""
        return ", ".join(self.named)

    def excludes(self, other: Registration) -> bool:
        """Return True for whatever returns all gradients, or that of one of its inputs."""
        if isinstance(other, Gradient):
            return not set(self.inputs).isdisjoint(other.inputs)
        return isinstance(other, (BackwardRule, DropInRule))


@dataclass(frozen=True, slots=True)
class DropInRule(Rule):
    """A backward in the style of `torch.library`, from `register_autograd`.

    Attributes:
        setup_context: the function that saves for it, or None.
        takes_keywords: `setup_context` has a parameter for keyword-only inputs.
        by_keyword: `setup_context` is called by keyword.
        surrogate: as of a `GradientRule`.
    """

    kind = "autograd"
    setup_context: Function | None
    takes_keywords: bool
    by_keyword: bool
    surrogate: str | None = None

    @property
    def is_once_differentiable(self) -> bool:
        """Return True if the backward is marked with PyTorch's `once_differentiable`."""
        function: Any = self.function
        while function is not None and getattr(function, "__code__", None) is not ONCE_DIFFERENTIABLE:
            function = getattr(function, "__wrapped__", None)
        return function is not None

    @property
    def is_in_cpp(self) -> bool:
        """Return False: only rules bound by name can be in C++."""
        return False

    @property
    def functions(self) -> tuple[Function, ...]:
        """Return the backward and, if there is one, the setup_context."""
        return (self.function,) if self.setup_context is None else (self.function, self.setup_context)

    def excludes(self, other: Registration) -> bool:
        """Return True for every other rule that returns gradients."""
        return isinstance(other, GradientRule)


@dataclass(frozen=True, slots=True)
class JvpRule(NamedRule):
    """Forward mode, from `register_jvp`.

    Attributes:
        surrogate: why the tangents are not the derivative, or None if they are.
    """

    kind = "jvp"
    surrogate: str | None


@dataclass(frozen=True, slots=True)
class FakeRule(Rule):
    """The op's results without data, from `register_fake`."""

    kind = "fake"


@dataclass(frozen=True, slots=True)
class ReferenceRule(Rule):
    """The op in differentiable PyTorch operations, from `register_reference`.

    Attributes:
        surrogate: why its gradients by autograd are not the derivative of its values, or None if they are.
    """

    kind = "reference"
    surrogate: str | None = None


@dataclass(frozen=True, slots=True)
class Samples(Rule):
    """A generator of samples, from `register_samples`."""

    kind = "samples"


@dataclass(frozen=True, slots=True)
class Effect(Registration):
    """The order in which compilers keep calls of an op, from `register_effect`.

    Attributes:
        effect: a member of torch's EffectType, which has no public name, or None.
    """

    kind = "effect"
    effect: object


@dataclass(frozen=True, slots=True)
class Inline(Registration):
    """What compiled graphs hold in place of the op, from `custom_op(..., inline=...)`.

    Attributes:
        inline: "reference".
    """

    kind = "inline"
    inline: str


R = TypeVar("R", bound=Registration)


@dataclass(frozen=True, slots=True)
class Registrations:
    """Everything that is registered for one op, besides kernels. Replaced as a whole, never changed.

    Attributes:
        rules: by their class and the part of the op that they are for.
    """

    rules: Mapping[tuple[type[Registration], Hashable], Registration] = field(default_factory=dict[Any, Registration])

    def get(self, cls: type[R], part: Hashable = "") -> R | None:
        """Return what is registered of a class, for a part of the op if there may be several, or None."""
        return cast("R | None", self.rules.get((cls, part)))

    def all_of(self, cls: type[R]) -> tuple[R, ...]:
        """Return all that are registered of a class, one for each part of the op."""
        return tuple([one for one in self.rules.values() if isinstance(one, cls)]) if self.rules else ()

    def all(self) -> tuple[Registration, ...]:
        """Return all registrations."""
        return tuple(self.rules.values())

    def gradient_rules(self) -> tuple[GradientRule | DropInRule, ...]:
        """Return the rules that return gradients: one whole backward, or one per input or group of inputs."""
        return (*self.all_of(GradientRule), *self.all_of(DropInRule))

    def left_out_of(self, later: Registrations) -> tuple[Registration, ...]:
        """Return what is not among later registrations: what a new one has replaced."""
        kept = {id(one) for one in later.all()}
        return tuple(one for one in self.all() if id(one) not in kept)

    def with_(self, new: Registration) -> Registrations:
        """Return these registrations with a new one, without those that it replaces."""
        place = type(new), new.part
        kept = {key: one for key, one in self.rules.items() if key == place or not new.excludes(one)}
        return Registrations({**kept, place: new})
