"""The types of what is registered for an op, one for each `register_...` method, and all of them as one value.

Those that only their capability reads are in the file of the capability, such as `Effect`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from types import FunctionType
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema.policies import CastPolicy, SavingPolicy
from custom_autograd.schema.schema import Schema

NEEDS = "needs"
META = "meta"


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
    def title(self) -> str:
        """Return the words for it in messages, which are its own within one op."""
        return self.kind

    @property
    def part(self) -> str:
        """Return the part of the op that it is for; registrations of one class for several parts stand side by side."""
        return ""

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
        """Return the text of what it consists of besides functions."""
        return ""

    @property
    def orders_calls(self) -> bool:
        """Return True if compilers must keep the calls of the op in order."""
        return False


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
        parameters = inspect.signature(self.function, follow_wrapped=False).parameters.values()
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
class Backward(GradientRule):
    """The gradients of all inputs, from `register_backward`.

    Attributes:
        saving: by name of an input or an output, how it is kept until the backward.
        clears_saved: saved tensors reach it without another owner, so that it can free them.
    """

    kind = "backward"
    saving: Mapping[str, SavingPolicy] = field(default_factory=dict[str, SavingPolicy])
    clears_saved: bool = False

    @property
    def settings(self) -> str:
        """Return the policies."""
        return ", ".join(f"{name}: {policy}" for name, policy in self.saving.items())


@dataclass(frozen=True, slots=True)
class Gradient(GradientRule):
    """The gradients of some inputs, from `register_grad`.

    Attributes:
        named: the inputs as the author named them, of which `inputs` are the tensors.
    """

    kind = "grad"
    named: tuple[str, ...]

    @property
    def title(self) -> str:
        """Return the word for it and the inputs."""
        return self.title_of(self.named)

    @classmethod
    def title_of(cls, named: tuple[str, ...]) -> str:
        """Return the title of the gradients of these inputs."""
        return f"{cls.kind} {', '.join(named)}"

    def overlaps(self, other: Gradient) -> bool:
        """Return True if both return the gradient of one input."""
        return not set(self.inputs).isdisjoint(other.inputs)


@dataclass(frozen=True, slots=True)
class DropIn(Rule):
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
    def functions(self) -> tuple[Function, ...]:
        """Return the backward and, if there is one, the setup_context."""
        return (self.function,) if self.setup_context is None else (self.function, self.setup_context)


@dataclass(frozen=True, slots=True)
class Jvp(NamedRule):
    """Forward mode, from `register_jvp`.

    Attributes:
        surrogate: why the tangents are not the derivative, or None if they are.
    """

    kind = "jvp"
    surrogate: str | None


@dataclass(frozen=True, slots=True)
class Fake(Rule):
    """The op's results without data, from `register_fake`."""

    kind = "fake"


@dataclass(frozen=True, slots=True)
class Reference(Rule):
    """The op in differentiable PyTorch operations, from `register_reference`.

    Attributes:
        surrogate: why its gradients by autograd are not the derivative of its values, or None if they are.
    """

    kind = "reference"
    surrogate: str | None = None


@dataclass(frozen=True, slots=True)
class Vmap(Rule):
    """Batching, from `register_vmap`."""

    kind = "vmap"


@dataclass(frozen=True, slots=True)
class Samples(Rule):
    """A generator of samples, from `register_samples`."""

    kind = "samples"


@dataclass(frozen=True, slots=True)
class Autocast(Registration):
    """The casts under autocast on one device type, from `register_autocast`."""

    kind = "autocast"
    policy: CastPolicy

    @property
    def title(self) -> str:
        """Return the word for it and the device type."""
        return f"{self.kind} {self.policy.device_type}"

    @property
    def settings(self) -> str:
        """Return the text of the policy."""
        return repr(self.policy)


@dataclass(frozen=True, slots=True)
class Inline(Registration):
    """What compiled graphs hold in place of the op, from `custom_op(..., inline=...)`.

    Attributes:
        inline: "reference".
    """

    kind = "inline"
    inline: str

    @property
    def settings(self) -> str:
        """Return what it is."""
        return self.inline


@dataclass(frozen=True, slots=True)
class TorchDispatch(Rule):
    """The rule of the op for a tensor subclass or a mode, from `register_torch_dispatch`."""

    kind = "torch_dispatch"
    cls: type

    @property
    def class_name(self) -> str:
        """Return the module and the name of the class."""
        return f"{self.cls.__module__}.{self.cls.__qualname__}"

    @property
    def title(self) -> str:
        """Return the word for it and the class."""
        return f"{self.kind} {self.class_name}"


R = TypeVar("R", bound=Registration)

Key: TypeAlias = tuple[type[Registration], str]
"""What tells registrations apart that one capability declares: the class, and the part of the op."""


@dataclass(frozen=True, slots=True)
class Registrations:
    """Everything that is registered for one op, besides kernels. Replaced as a whole, never changed."""

    backward: Backward | None = None
    gradients: tuple[Gradient, ...] = ()
    drop_in: DropIn | None = None
    jvp: Jvp | None = None
    fake: Fake | None = None
    reference: Reference | None = None
    vmap: Vmap | None = None
    samples: Samples | None = None
    inline: Inline | None = None
    autocast: Mapping[str, Autocast] = field(default_factory=dict[str, Autocast])
    torch_dispatch: Mapping[type, TorchDispatch] = field(default_factory=dict[type, TorchDispatch])
    others: Mapping[Key, Registration] = field(default_factory=dict[Key, Registration])

    def get(self, cls: type[R]) -> R | None:
        """Return what is registered of a type that one capability declares, or None."""
        return cast(R | None, self.others.get((cls, "")))

    def all_of(self, cls: type[R]) -> tuple[R, ...]:
        """Return all that are registered of a type, one for each part of the op."""
        return tuple(one for one in self.others.values() if isinstance(one, cls))

    def all(self) -> tuple[Registration, ...]:
        """Return all registrations."""
        single = (self.jvp, self.fake, self.reference, self.vmap, self.samples, self.inline)
        present = tuple(one for one in single if one is not None)
        several = (*self.autocast.values(), *self.torch_dispatch.values(), *self.others.values())
        return (*self.gradient_rules(), *present, *several)

    def gradient_rules(self) -> tuple[Backward | Gradient | DropIn, ...]:
        """Return the rules that return gradients: one whole backward, or one per input or group of inputs."""
        return (*self.named_gradient_rules(), *(() if self.drop_in is None else (self.drop_in,)))

    def named_gradient_rules(self) -> tuple[Backward | Gradient, ...]:
        """Return those that are bound by the names of their parameters."""
        return self.gradients if self.backward is None else (self.backward, *self.gradients)

    def left_out_of(self, later: Registrations) -> tuple[Registration, ...]:
        """Return what is not among later registrations: what a new one has replaced."""
        kept = {id(one) for one in later.all()}
        return tuple(one for one in self.all() if id(one) not in kept)

    def with_(self, new: Registration) -> Registrations:
        """Return these registrations with a new one, without those that it replaces."""
        match new:
            case Backward():
                return replace(self, backward=new, gradients=(), drop_in=None)
            case DropIn():
                return replace(self, backward=None, gradients=(), drop_in=new)
            case Gradient():
                return replace(self, backward=None, gradients=self._gradients_with(new), drop_in=None)
            case Autocast():
                return replace(self, autocast={**self.autocast, new.policy.device_type: new})
            case TorchDispatch():
                return replace(self, torch_dispatch={**self.torch_dispatch, new.cls: new})
            case Jvp() | Fake() | Reference() | Vmap() | Samples() | Inline():
                single: dict[str, Any] = {new.kind: new}  # the field has the name of the kind (Any: its own class)
                return replace(self, **single)
            case _:
                return replace(self, others={**self.others, (type(new), new.part): new})

    def _gradients_with(self, new: Gradient) -> tuple[Gradient, ...]:
        kept = {one.named: one for one in self.gradients if one.named == new.named or not one.overlaps(new)}
        return tuple({**kept, new.named: new}.values())
