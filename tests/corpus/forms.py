"""The five forms in which an op of the corpus is told to PyTorch: each is data, of which a mutant replaces a piece.

Declared     custom_autograd.custom_op, rules bound by name
Library      torch.library.custom_op, rules bound by position
Defined      torch.library.Library: a schema, and kernels by dispatch key
Written      a torch.autograd.Function subclass
Plain        a Python function of tensors
"""

import contextlib
import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import torch
from typing_extensions import Self

from custom_autograd.op import custom_op
from custom_autograd.verification.harness.targets import SamplesRule

NAMESPACE = "mutants"

Rule: TypeAlias = Callable[..., Any]
"""A kernel or a rule: takes and returns what the schema of its op says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentTree:
    """An op in pieces.

    Args:
        samples: the calls to verify it on.
    """

    samples: SamplesRule

    def but(self, **pieces: Any) -> Self:  # Any: the pieces have the types of the fields
        """The same op with other pieces."""
        return dataclasses.replace(self, **pieces)

    @abstractmethod
    def declare(self, name: str) -> object:
        """Puts the pieces together: what `custom_autograd.check` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared(ArgumentTree):
    """An op of this package.

    Args:
        schema: None where annotations say it.
        default: the kernel of all devices and, if `has_reference`, the reference.
        kernel: the kernel of the CPU.
        inplace: the CPU kernel of the in-place variant.
        out: the CPU kernel of the out variant.
        parts: ops by name that its rules call as torch.ops.mutants.<name>; they are declared first.
        shapes: the line of shapes.
    """

    schema: str | None
    default: Rule
    kernel: Rule | None = None
    fake: Rule | None = None
    backward: Rule | None = None
    jvp: Rule | None = None
    vmap: Rule | None = None
    autocast: torch.dtype | None = None
    inplace: Rule | None = None
    out: Rule | None = None
    has_reference: bool = True
    is_once_differentiable: bool = False
    has_materialized_grads: bool = True
    mutates: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    non_differentiable: tuple[str, ...] = ()
    tags: tuple[torch.Tag, ...] = ()
    parts: Mapping[str, ArgumentTree] = field(default_factory=dict)
    shapes: str | None = None

    def declare(self, name: str) -> object:
        """Declares it, and registers what there is."""
        for part, form in self.parts.items():
            form.declare(part)
        op = custom_op(
            f"{NAMESPACE}::{name}",
            self.default,
            schema=self.schema,
            mutates_args=self.mutates,
            hidden=self.hidden,
            non_differentiable=self.non_differentiable,
            tags=self.tags,
            reference=self.has_reference,
            shapes=self.shapes,
        )
        if self.kernel is not None:
            op.register_kernel("cpu", self.kernel)
        if self.backward is not None:
            register = op.register_backward(
                once_differentiable=self.is_once_differentiable, materialize_grads=self.has_materialized_grads
            )
            register(self.backward)
        if self.autocast is not None:
            op.register_autocast("cpu", self.autocast)
        rules = ((op.register_fake, self.fake), (op.register_jvp, self.jvp), (op.register_vmap, self.vmap))
        for register_rule, rule in rules:
            if rule is not None:
                register_rule(rule)
        if self.inplace is not None:
            op.inplace.register_kernel("cpu", self.inplace)
        if self.out is not None:
            op.out.register_kernel("cpu", self.out)
        op.register_samples(self.samples)
        return op


@dataclass(frozen=True, slots=True, kw_only=True)
class Library(ArgumentTree):
    """An op of torch.library.custom_op."""

    schema: str
    kernel: Rule
    fake: Rule | None = None
    setup: Rule | None = None
    backward: Rule | None = None
    vmap: Rule | None = None
    mutates: tuple[str, ...] = ()

    def declare(self, name: str) -> object:
        """Declares it, and registers what there is."""
        op = torch.library.custom_op(f"{NAMESPACE}::{name}", self.kernel, mutates_args=self.mutates, schema=self.schema)
        if self.fake is not None:
            op.register_fake(self.fake)
        if self.backward is not None:
            op.register_autograd(self.backward, setup_context=self.setup)
        if self.vmap is not None:
            op.register_vmap(self.vmap)
        return op


@dataclass(frozen=True, slots=True, kw_only=True)
class Defined(ArgumentTree):
    """An op of the dispatcher, with kernels by dispatch key."""

    schema: str
    kernels: Mapping[str, Rule]
    fake: Rule | None = None
    setup: Rule | None = None
    backward: Rule | None = None

    def declare(self, name: str) -> object:
        """Defines it; the library that holds it is kept, because its end would take the op away."""
        library = torch.library.Library(NAMESPACE, "FRAGMENT")
        LIBRARIES.append(library)
        library.define(f"{name}{self.schema}")
        qualified = f"{NAMESPACE}::{name}"
        for key, kernel in self.kernels.items():
            library.impl(name, kernel, key)
        if self.fake is not None:
            torch.library.register_fake(qualified, self.fake, lib=library)
        if self.backward is not None:
            torch.library.register_autograd(qualified, self.backward, setup_context=self.setup, lib=library)
        return getattr(getattr(torch.ops, NAMESPACE), name).default


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(ArgumentTree):
    """A torch.autograd.Function; without `setup`, `forward` takes ctx first."""

    forward: Rule
    backward: Rule
    setup: Rule | None = None
    jvp: Rule | None = None
    attributes: Mapping[str, object] = field(default_factory=dict)

    def declare(self, name: str) -> type[torch.autograd.Function]:
        """The subclass."""
        methods = {"forward": self.forward, "backward": self.backward, "setup_context": self.setup, "jvp": self.jvp}
        given = {key: staticmethod(rule) for key, rule in methods.items() if rule is not None}
        return cast(type[torch.autograd.Function], type(name, (torch.autograd.Function,), {**given, **self.attributes}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain(ArgumentTree):
    """A Python function."""

    function: Rule

    def declare(self, name: str) -> object:
        """The function itself, under the name."""
        with contextlib.suppress(AttributeError):  # a builtin keeps its name
            self.function.__name__ = self.function.__qualname__ = name
        return self.function


LIBRARIES: list[torch.library.Library] = []
"""What holds the ops of `Defined`."""
