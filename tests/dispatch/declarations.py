"""Ops that compute sin(x) * y * k, declared in every combination of a schema, its rules, a jvp and a constant."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_autograd import custom_op

K = 1.5
"""The number of every call; the default of the ops is another one."""


class Form(NamedTuple):
    """A schema.

    Attributes:
        kernel: the function; its annotations are the schema.
        call: the op and two tensors -> what is compared.
        names: of the arguments that rules take.
        pick: these arguments -> x, y, k.
        spread: gradients of x and y -> those of all differentiable arguments, by name.
        options: of `custom_op`.
        grads: the names of the incoming gradients.
    """

    kernel: Callable[..., Any]
    call: Callable[[Any, Tensor, Tensor], Any]
    names: tuple[str, ...] = ("x", "y", "k")
    pick: Callable[..., tuple[Any, Any, Any]] = lambda x, y, k: (x, y, k)
    spread: Callable[[Any, Any], dict[str, Any]] = lambda x, y: {"x": x, "y": y}
    options: Mapping[str, Any] = MappingProxyType({})
    grads: tuple[str, ...] = ("grad",)


def plain(x: Tensor, y: Tensor, k: float = 2.0) -> Tensor:
    return torch.sin(x) * y * k


def keyword(x: Tensor, *, y: Tensor, k: float = 2.0) -> Tensor:
    return torch.sin(x) * y * k


def listed(values: list[Tensor], k: float = 2.0) -> Tensor:
    return torch.sin(values[0]) * values[1] * k


def optional(x: Tensor, y: Tensor, bias: Tensor | None = None, k: float = 2.0) -> Tensor:
    return torch.sin(x) * y * k


def hidden(x: Tensor, y: Tensor, k: float = 2.0) -> tuple[Tensor, Tensor]:
    return torch.sin(x) * y * k, torch.sin(x)


def integers(mask: Tensor, x: Tensor, y: Tensor, n: int = 1, k: float = 2.0) -> tuple[Tensor, Tensor]:
    return torch.sin(x) * y * k * n, mask.clone()


FORMS = {
    "plain": Form(plain, lambda op, x, y: op(x, y, K)),
    "keyword": Form(keyword, lambda op, x, y: op(x, y=y, k=K)),
    "list": Form(
        listed,
        lambda op, x, y: op([x, y], K),
        ("values", "k"),
        lambda values, k: (*values, k),
        lambda x, y: {"values": [x, y]},
    ),
    "optional": Form(
        optional,
        lambda op, x, y: op(x, y, k=K),
        ("x", "y", "bias", "k"),
        lambda x, y, bias, k: (x, y, k),
        lambda x, y: {"x": x, "y": y, "bias": None},
    ),
    "hidden": Form(
        hidden,
        lambda op, x, y: op(x, y, K),
        options={"outputs": ("out", "sine"), "hidden": ("sine",)},
        grads=("grad_out", "grad_sine"),
    ),
    "integers": Form(
        integers,
        lambda op, x, y: op(torch.ones(3, dtype=torch.int64), x, y, 1, K)[0],
        ("mask", "x", "y", "n", "k"),
        lambda mask, x, y, n, k: (x, y, k),
        lambda x, y: {"mask": None, "x": x, "y": y},
        options={"outputs": ("out", "copy")},
        grads=("grad_out",),
    ),
}


def rule_of(form: Form, first: tuple[str, ...], body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule with these parameters before the arguments: the body, which takes both in tuples."""
    names, own = ", ".join([*first, *form.names]), ", ".join(form.names)
    return eval(f"lambda {names}: body(({', '.join(first)},), ({own},))", {"body": body})


def gradients(form: Form, is_constant: bool, grads: tuple[Any, ...], given: tuple[Any, ...]) -> dict[str, Any]:
    """Return the gradients by argument; a hidden output has a share in that of x."""
    x, y, k = form.pick(*given)
    of_x = grads[0] * torch.cos(x) * y * k
    of_x = of_x + grads[1] * torch.cos(x) if len(grads) > 1 else of_x
    found = form.spread(of_x, grads[0] * torch.sin(x) * k)
    return {name: one for name, one in found.items() if not (is_constant and name == "y")}


def by_name(op, form, is_constant):
    op.register_backward(rule_of(form, form.grads, functools.partial(gradients, form, is_constant)))


def in_a_tuple(op, form, is_constant):
    op.register_backward(rule_of(form, form.grads, lambda *both: (*gradients(form, is_constant, *both).values(),)))


def in_callables(op, form, is_constant):
    def body(*both):
        found = gradients(form, is_constant, *both)
        return {name: one if one is None or name == "values" else lambda one=one: one for name, one in found.items()}

    op.register_backward(rule_of(form, form.grads, body))


def one_by_one(op, form, is_constant, *, but=()):
    def body(name, *both):
        return gradients(form, is_constant, *both)[name]

    for name in form.spread(None, None):
        if name not in (*but, "mask") and not (is_constant and name == "y"):
            op.register_grad(name)(rule_of(form, form.grads, functools.partial(body, name)))


def but_one(op, form, is_constant):
    one_by_one(op, form, is_constant, but=("y", "bias", "values"))


def in_context(op, form, is_constant, *, keep=lambda ctx, x, y: ctx.save_for_backward(x, y), read="saved_tensors"):
    names = op.schema.argument_names
    positional = [name for name in names if form.kernel is not keyword or name == "x"]

    def save(ctx, inputs, output, keyword_only_inputs=MappingProxyType({})):
        given = {**dict(zip(positional, inputs, strict=True)), **keyword_only_inputs}
        x, y, ctx.k = form.pick(*[given[name] for name in form.names])
        keep(ctx, x, y)

    def save_with_keywords(ctx, inputs, keyword_only_inputs, output):
        save(ctx, inputs, output, keyword_only_inputs)

    def backward(ctx, *grads):
        x, y = getattr(ctx, read)
        of_x = grads[0] * torch.cos(x) * y * ctx.k
        of_x = of_x + grads[1] * torch.cos(x) if form.kernel is hidden else of_x
        found = form.spread(of_x, None if is_constant else grads[0] * torch.sin(x) * ctx.k)
        return tuple(found.get(name) for name in names if name in positional or name == "y")

    op.register_autograd(backward, setup_context=save_with_keywords if form.kernel is keyword else save)


def in_attributes(op, form, is_constant):
    in_context(op, form, is_constant, keep=lambda ctx, x, y: setattr(ctx, "kept", (x, y)), read="kept")


RULES = {
    "by name": by_name,
    "in a tuple": in_a_tuple,
    "in callables": in_callables,
    "one by one": one_by_one,
    "in a context": in_context,
    "in attributes": in_attributes,
    "but one, and a reference": but_one,
    "a reference": lambda op, form, is_constant: None,
}


def jvp_of(form: Form, is_constant: bool) -> Callable[..., Any]:
    tangents = {"list": ("tangent_values",), "optional": ("tangent_x", "tangent_y", "tangent_bias")}
    first = next((tangents[name] for name in tangents if FORMS[name] is form), ("tangent_x", "tangent_y"))
    first = tuple(name for name in first if not (is_constant and name == "tangent_y"))

    def body(given, arguments):
        (x, y, k), flat = form.pick(*arguments), given[0] if form.kernel is listed else (*given, None)
        of_x = 0 if flat[0] is None else flat[0] * torch.cos(x)
        of_y = 0 if is_constant or flat[1] is None else torch.sin(x) * flat[1]
        out = k * (of_x * y + of_y)
        return (
            {"out": out, "sine": of_x + torch.zeros_like(x)}
            if form.kernel is hidden
            else {form.grads[0][5:] or "output": out}
        )

    return rule_of(form, first, body)


@functools.cache
def declared(form_name: str, rules: str, has_jvp: bool, is_constant: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the op of a combination, as a function of two tensors."""
    form, number = FORMS[form_name], next(_numbers)
    constant = {"non_differentiable": ("y",)} if is_constant else {}
    has_reference = "reference" in rules
    op = custom_op(f"declarations::op{number}", form.kernel, reference=has_reference, **form.options, **constant)
    RULES[rules](op, form, is_constant)
    if has_jvp:
        op.register_jvp(jvp_of(form, is_constant))
    return functools.partial(form.call, op)


_numbers = itertools.count()
