"""A backward and a setup_context in the style of `torch.library`, of an op with containers, for its flat op."""

from __future__ import annotations

import functools
from typing import Any

from custom_autograd.containers.argument_tree import ArgumentTree, raise_misfit, with_signature
from custom_autograd.containers.op_adapter import Function, Values
from custom_autograd.containers.treespecs import MisfitError
from custom_autograd.core.errors import GradientError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import quote
from custom_autograd.core.signatures import read_signature
from custom_autograd.registration.declaration import Declaration

TEXTS = "custom_autograd_structures"
"""Where ctx keeps the texts of a call's structures."""


class Ctx:
    """The ctx of a rule, on which `needs_input_grad` has the containers of the op; all else is the real one's."""

    def __init__(self, ctx: Any, needs_input_grad: tuple[Any, ...]) -> None:
        vars(self).update(custom_autograd_ctx=ctx, needs_input_grad=needs_input_grad)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["custom_autograd_ctx"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["custom_autograd_ctx"], name, value)


class TorchStyle:
    """A backward and a setup_context of an op with containers, for its flat op."""

    def __init__(
        self, tree: ArgumentTree, declaration: Declaration, backward: Function, setup: Function | None
    ) -> None:
        self.tree = tree
        self.declaration = declaration
        schema = declaration.schema
        tensors = {argument.name for argument in schema.tensor_arguments}
        self.answered = [*tree.positional, *(node for node in tree.keywords if tensors & set(node.flat()))]
        keyword_only = {argument.name for argument in schema.arguments if argument.is_keyword_only}
        self.flat_answered = [n for n in schema.argument_names if n not in keyword_only or n in tensors]
        has_default = {name for name, one in tree.signature.parameters.items() if one.default is not one.empty}
        fixed = {node.name for node in tree.positional if not tensors & set(node.flat())}
        self.optional = has_default | fixed | {node.name for node in tree.keywords}
        self.structures = tree.structures()
        self.user_backward, self.user_setup = backward, setup

        @functools.wraps(backward)
        def flat_backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            return self._run_backward(ctx, grads)

        @functools.wraps(setup or backward)
        def flat_setup(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Values | None = None) -> None:
            self._run_setup(ctx, inputs, output, keyword_only_inputs or {})

        self.backward, self.setup = _with_own_signature(flat_backward), _with_own_signature(flat_setup)

    def _run_setup(self, ctx: Any, inputs: Any, output: Any, keywords: Values) -> None:
        given = {**dict(zip(self.declaration.schema.argument_names, inputs, strict=False)), **keywords}
        texts = {name: given[name] for name in self.structures}
        if texts:
            setattr(ctx, TEXTS, tuple(texts.items()))
        if self.user_setup is None:
            return
        positional, by_name = self.tree.arguments(given)
        names = read_signature(self.user_setup).parameters
        seen = Ctx(ctx, self._needs(ctx, texts))
        own = output if self.tree.results is None else self.tree.results.put(output)
        arguments: dict[str, Any] = {"inputs": tuple(positional), "output": own}
        if "keyword_only_inputs" in names:
            arguments["keyword_only_inputs"] = by_name
        if {"ctx", "inputs", "output"} <= set(names):
            self.user_setup(ctx=seen, **arguments)
        else:
            self.user_setup(seen, *arguments.values())

    def _needs(self, ctx: Any, texts: Values) -> tuple[Any, ...]:
        needs = dict(zip(self.flat_answered, ctx.needs_input_grad, strict=False))
        return tuple(node.mirror(needs.get, texts.__getitem__) for node in self.answered)

    def _run_backward(self, ctx: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        texts = dict(getattr(ctx, TEXTS, ()))
        incoming = grads
        if self.tree.results is not None:
            by_name = dict(zip(self.tree.results.flat_names(), grads, strict=True))
            incoming = tuple(node.mirror(by_name.get, texts.__getitem__) for node in self.tree.results.nodes)
        rows = self._rows(self.user_backward(Ctx(ctx, self._needs(ctx, texts)), *incoming), ctx.needs_input_grad)
        found: dict[str, Any] = {}
        try:
            for node, row in zip(self.answered, rows, strict=True):
                found.update(node.collect(row, texts.__getitem__))
        except MisfitError as error:
            problem = f"the backward {location_of(self.user_backward)} returns another container"
            raise_misfit(GradientError, str(self.declaration.name), problem, error)
        return tuple(found.get(name) for name in self.flat_answered)

    def _rows(self, result: Any, needs: tuple[Any, ...]) -> list[Any]:
        """Return what a backward returned as a list, with None for what it may leave out at the end."""
        is_row = isinstance(result, tuple) and (len(self.answered) != 1 or len(result) == 1)
        rows = list(result) if is_row else [result]
        while len(rows) > len(self.answered) and rows[-1] is None:
            rows.pop()
        needed = {name for name, need in zip(self.flat_answered, needs, strict=False) if _is_any(need)}
        missing = self.answered[len(rows) :]
        is_short = any(node.name not in self.optional or needed & set(node.flat()) for node in missing)
        if is_short or len(rows) > len(self.answered):
            raise self._wrong_count(len(rows))
        return rows + [None] * len(missing)

    def _wrong_count(self, count: int) -> GradientError:
        return self.declaration.error(
            GradientError,
            "the backward returns the wrong number of gradients",
            expected=f"{len(self.answered)}: {quote(node.name for node in self.answered)}",
            found=str(count),
            rule=f"{location_of(self.user_backward)}, backward",
            do="return one per positional argument and keyword-only tensor, None for what is not a tensor",
        )


def _with_own_signature(function: Function) -> Function:
    """Return the function, which inspect takes for what it is rather than for what it wraps."""
    return with_signature(function, read_signature(function, follow_wrapped=False))


def _is_any(need: Any) -> bool:
    return any(need) if isinstance(need, (list, tuple)) else bool(need)
