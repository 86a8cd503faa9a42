"""Rules in the style of `torch.library`: `setup_context(ctx, inputs, output)` and `backward(ctx, *grads)`.

NOTE [setup_context is recorded]
A kernel runs with grad mode off, and so does torch's setup_context: what that computes from inputs would be a constant
of the backward, and second derivatives would silently lose its share. So it runs with grad mode on. What is saved as it
is costs nothing more; what is computed keeps its history. For outputs see NOTE [what is computed from outputs].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError, GradientUnavailable
from custom_autograd.core.lazy import Lazy
from custom_autograd.core.messages import advise_tensor, quote, show
from custom_autograd.core.signatures import returns_nothing
from custom_autograd.execution.context import Context, check_saved, is_parted, pack, unpack
from custom_autograd.execution.plan import SAVED_VALUES, Plan
from custom_autograd.execution.vjp import forbid_second_derivative
from custom_autograd.registration import rule_types
from custom_autograd.torch_private import functions, transforms
from custom_autograd.torch_private.nodes import Node, needs_set, next_nodes
from custom_autograd.torch_private.trees import flatten_tree
from custom_autograd.values.tensors import first_tensor, is_wanted, materialize, plain, tensors_in
from custom_autograd.values.user_code import explain_rule, noted

# Second derivatives of what a setup_context computes from outputs: they raise.
#
# NOTE [what is computed from outputs]
# An output has no history yet while setup_context runs. What is computed from it cannot be given one later: the node
# would own a tensor whose history leads back to the node, and the graph would never be freed. So outputs are marked
# meanwhile, as leaves that require a gradient, and what leads to a mark gets a history that raises. Under a transform
# of `torch.func` the levels below follow the output, and nothing is marked.


def mark(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Mark the outputs that may have a gradient, and return them."""
    marked = [one for one in outputs if (one.is_floating_point() or one.is_complex()) and not one.requires_grad]
    for one in marked:
        one.requires_grad_()
    return marked


def unmark(marked: Sequence[Tensor]) -> None:
    """Take the marks off again."""
    for one in marked:
        one.requires_grad_(False)


def forbid_following(
    kept: Sequence[Tensor | None], inputs: Any, outputs: Any, message: str
) -> tuple[Tensor | None, ...]:
    """Return what a setup_context kept; what was computed from marked outputs raises if it is differentiated."""
    given, results = tensors_in(inputs), tensors_in([outputs])
    are_followed = all(one is None or one.grad_fn is None or _is_among(one, given) for one in kept)
    if are_followed or transforms.is_transforming():
        return tuple(kept)
    ends = {id(node): node for node in [one.grad_fn for one in given]}  # a node has its id while Python holds it
    with torch.enable_grad(), transforms.forward_mode_enabled(True):
        dependencies = [transforms.primal_of(one) for one in given if one.requires_grad]
        return tuple(
            [
                forbid_second_derivative(transforms.primal_of(one), message, dependencies)
                if one is not None and not _is_among(one, given) and _leads_to(one.grad_fn, results, ends)
                else one
                for one in kept
            ]
        )


def _leads_to(node: Node | None, results: Sequence[Tensor], ends: Mapping[int, Node | None]) -> bool:
    """Return True if a history leads to a marked output, without a look behind the inputs."""
    ahead = [] if node is None else [node]
    seen = {id(one): one for one in ahead}
    for one in ahead:
        if _is_among(getattr(one, "variable", None), results):
            return True
        following = [] if id(one) in ends else [after for after, _ in next_nodes(one) if id(after) not in seen]
        seen.update({id(after): after for after in following})
        ahead += following
    return False


def _is_among(value: object, tensors: Sequence[Tensor]) -> bool:
    return any(value is one for one in tensors)


ByName = Mapping[str, Any]  # Any: tensors, lists of tensors and other values, by name


class DropIn:
    """Runs the rules of one `register_autograd`. Made once per plan; holds nothing of a call."""

    def __init__(self, plan: Plan, rule: rule_types.DropInRule) -> None:
        schema = plan.declaration.schema
        self.is_one_tuple = schema.is_one_tuple
        self.plan = plan
        self.rule = rule
        self.origin = plan.declaration.origin(f"{rule.location}, backward")
        self._error = partial(self.origin.error, GradientError)
        self.arguments = schema.argument_names
        answered = [argument for argument in schema.arguments if not argument.is_keyword_only or argument.holds_tensors]
        self.names = tuple(argument.name for argument in answered)
        self.are_lists = [argument.is_tensor_list for argument in answered]
        self.optional = {argument.name for argument in answered if argument.is_keyword_only or argument.has_default}
        self.takes_sole_list = self.are_lists[:1] == [True] and self.optional.issuperset(self.names[1:])
        self.keyword_only = [argument.name for argument in schema.arguments if argument.is_keyword_only]
        self.results = [result.name for result in schema.differentiable_results]
        self.function = self._once(rule.function) if rule.is_once_differentiable else rule.function
        self.backward = noted(str(plan.declaration.name), rule, self.function)
        self.differentiable = frozenset(schema.differentiable_names)
        has_setup = rule.setup_context is not None
        self.setup_context = noted(str(plan.declaration.name), rule, self._call_setup) if has_setup else None

    def _once(self, backward: Callable[..., Any]) -> Callable[..., Any]:  # Any: as the author's backward
        """Return a backward whose gradients raise if they are differentiated.

        Those of PyTorch's decorator are constants if no incoming gradient requires a gradient, and in forward mode.
        """
        error = self.origin.error(
            GradientUnavailable,
            "the backward is declared once-differentiable, and a second derivative is requested",
            do="write the backward in differentiable operations, and leave once_differentiable out",
        )

        def once(ctx: Any, *grads: Any) -> Any:
            with torch.no_grad():
                result = backward(ctx, *grads)
            if not torch.is_grad_enabled():
                return result
            dependencies, _ = flatten_tree([list(grads), list(ctx.saved_tensors), vars(ctx)])
            row = list(result) if isinstance(result, (list, tuple)) else [result]
            row = [list(one) if isinstance(one, tuple) else one for one in row]
            forbidden = [forbid_second_derivative(one, str(error), dependencies) for one in row]
            return type(result)(forbidden) if isinstance(result, (list, tuple)) else forbidden[0]

        return once

    def setup(self, ctx: Any, needs: ByName, inputs: Sequence[Any], output: Any) -> None:
        """Run the user's setup_context, and save what it kept.

        Any: torch's ctx, and the inputs and the output as the schema has them.
        """
        if self.is_one_tuple:
            output = (output,)
        context = Context(self._needs(needs))
        if self.setup_context is not None:
            is_marked = functions.any_requires_grad(*inputs) and not transforms.is_transforming()
            marked = mark(tensors_in([output])) if is_marked else []
            with torch.enable_grad(), transforms.forward_mode_enabled(True):
                self.setup_context(context, inputs, output)
            unmark(marked)
        functions.copy_view_flag(context, ctx)
        tensors, saved = pack(context)
        tensors = self.forbid_following(tensors, inputs, output)
        setattr(ctx, SAVED_VALUES, saved)
        ctx.save_for_backward(*tensors)
        if transforms.is_forward_mode() and any(map(transforms.has_tangent, tensors_in(inputs))):
            ctx.forward_saved = tensors, context.custom_autograd_fixed
        if context.custom_autograd_fixed:
            ctx.mark_non_differentiable(*context.custom_autograd_fixed)

    def forbid_following(
        self, kept: Sequence[Tensor | None], inputs: Any, outputs: Any
    ) -> tuple[Tensor | None, ...]:  # Any: as there
        """Return the kept tensors, with a second derivative that raises if they were computed from outputs."""
        return forbid_following(kept, inputs, outputs, self._not_followed)

    @Lazy
    def _not_followed(self) -> str:
        """The message of a second derivative that would need more history than there is."""
        error = self.origin.error(
            GradientUnavailable,
            "a second derivative needs what setup_context computes from an output",
            do="save the output with ctx.save_for_backward, and compute the same from it in the backward",
        )
        return str(error)

    def _call_setup(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        assert self.rule.setup_context is not None
        positional, keywords = tuple(inputs), dict[str, Any]()
        if self.keyword_only:
            by_name = dict(zip(self.arguments, inputs, strict=True))
            positional = tuple(value for name, value in by_name.items() if name not in self.keyword_only)
            keywords = {name: by_name[name] for name in self.keyword_only}
        if self.rule.takes_keywords:
            self.rule.setup_context(ctx=ctx, inputs=positional, keyword_only_inputs=keywords, output=output)
        elif self.rule.by_keyword:
            self.rule.setup_context(ctx=ctx, inputs=positional, output=output)
        else:
            self.rule.setup_context(ctx, positional, output)

    def helpers(self) -> dict[str, Any]:
        """Return what generated source calls by name (Any: functions of any signature)."""
        op, rule, setup = str(self.plan.declaration.name), self.rule, self.rule.setup_context
        found: dict[str, Any] = {"rule_0": self.function, "note_0": lambda error: explain_rule(error, op, rule)}
        if setup is not None:
            found["check_saved"] = check_saved
            found["setup"] = self._setup_of_eager_call(setup)
        return found

    def _setup_of_eager_call(self, setup: Callable[..., Any]) -> Callable[..., Any]:  # Any: any parameters
        """Return the setup_context, called with (ctx, inputs, output) in that order."""
        is_positional = not self.rule.by_keyword or (not self.rule.takes_keywords and _has_usual_parameters(setup))
        call = setup if is_positional else self._call_setup
        return (lambda ctx, inputs, output: call(ctx, inputs, (output,))) if self.is_one_tuple else call

    def park(self, ctx: Any) -> None:
        """Move what a setup_context left on torch's own ctx off it, if that may hold tensors."""
        attributes = vars(ctx)
        if not any(map(is_parted, attributes.values())):
            return
        context = Context(())
        vars(context).update(attributes)
        context.custom_autograd_saved = ctx.to_save or ()
        context.custom_autograd_materializes = False  # torch does so itself
        for name in [name for name, value in attributes.items() if is_parted(value)]:
            del attributes[name]  # a function that is kept may read the others on ctx
        ctx.to_save, saved = pack(context)
        setattr(ctx, SAVED_VALUES, saved)

    def in_order(self, result: Any, needs: Sequence[Any]) -> tuple[Tensor | None, ...]:
        """Return what a backward returned for an op without lists, as one gradient per argument."""
        found = self._read(result, dict(zip(self.names, needs, strict=True)))
        return tuple([found.get(name) for name in self.arguments])

    def gradients(
        self, ctx: Any, saved: Sequence[Tensor | None], needs: ByName, grads: ByName, metadata: ByName
    ) -> dict[str, Any]:
        """Run the user's backward.

        Returns:
            By differentiable input, what the user's backward returned for it.
        """
        context = self._context(ctx, saved, needs)
        like = first_tensor(grads.values())
        incoming = []
        for output in self.plan.declaration.schema.outputs:
            gradient = plain(grads.get(output.name))
            if context is not ctx and context.custom_autograd_materializes and output.holds_tensors:
                gradient = materialize(gradient, metadata[output.name], like)
            incoming.append(gradient)
        wanted = self._needs(needs)
        if context is not ctx or wanted == ctx.needs_input_grad:
            return self._read(self.backward(context, *incoming), needs)
        with needs_set(ctx, wanted):
            return self._read(self.backward(ctx, *incoming), needs)

    def _needs(self, needs: ByName) -> tuple[Any, ...]:
        return tuple([needs.get(name, False) for name in self.names])

    def _context(self, ctx: Any, saved: Sequence[Tensor | None], needs: ByName) -> Any:
        """Return the ctx that the user's backward sees: torch's own, where it is all that setup_context used."""
        if not hasattr(ctx, SAVED_VALUES):
            return ctx
        return unpack(saved, getattr(ctx, SAVED_VALUES), self._needs(needs))

    def _read(self, result: Any, needs: ByName) -> dict[str, Any]:
        """Return one gradient per argument, as lenient as the engine; Any: whatever the user's code returned."""
        if result is None and returns_nothing(self.rule.function):
            raise self._error(
                "the backward returns None",
                expected=f"a gradient, or one for each of {quote(self.names)}",
                found="None",
                do="is a return missing? if the gradient is zero, write return None",
            )
        results = self._row(result)
        while len(results) > len(self.names) and results[-1] is None:
            results.pop()
        missing = self.names[len(results) :]
        if len(results) > len(self.names) or any(not self._may_miss(name, needs.get(name)) for name in missing):
            raise self._error(
                "the backward returns the wrong number of gradients",
                expected=f"{len(self.names)}: {quote(self.names)}",
                found=str(len(results)),
                do="return one per positional argument and keyword-only tensor, None for what is not a tensor",
            )
        results += [None] * len(missing)
        valid = self.differentiable
        found = {}
        for name, is_list, gradient in zip(self.names, self.are_lists, results, strict=True):
            if name in valid:
                found[name] = self._list(name, gradient, needs[name]) if is_list else self._one(name, gradient)
            elif gradient is not None:
                raise self._error(
                    f"the backward returns a gradient for '{name}', which carries none",
                    expected="None",
                    found=type(gradient).__name__,
                    do="return None in its place",
                )
        return found

    def _row(self, result: Any) -> list[Any]:
        """Return what a backward returned as a list of gradients, one per argument."""
        is_list = isinstance(result, list) and not (self.takes_sole_list and not _holds_list_first(result))
        return list(result) if is_list or isinstance(result, tuple) else [result]

    def _may_miss(self, name: str, need: Any) -> bool:
        """Return True if a backward may leave out the gradient of an argument at the end, as in torch.library.

        There a backward returns one gradient per argument that the dispatcher passes on, which leaves out those that
        equal their defaults.
        """
        return name in self.optional and not is_wanted(need)

    def _one(self, name: str, gradient: Any) -> Tensor | None:
        if gradient is not None and not isinstance(gradient, Tensor):
            raise self._error(
                f"the gradient of '{name}' is not a tensor",
                expected="a tensor or None",
                found=f"{type(gradient).__name__}: {show(gradient)}",
                do=advise_tensor(gradient),
            )
        return gradient

    def _list(self, name: str, gradients: Any, need: list[bool]) -> list[Tensor | None]:
        if gradients is None:
            return [None] * len(need)
        if not isinstance(gradients, (list, tuple)) or len(gradients) != len(need):
            found = f"{len(gradients)}" if isinstance(gradients, (list, tuple)) else type(gradients).__name__
            raise self._error(
                f"the gradient of the list '{name}' does not fit it",
                expected=f"a list of {len(need)}",
                found=found,
                do="return one gradient (or None) per tensor of the list",
            )
        return [self._one(f"{name}[{index}]", gradient) for index, gradient in enumerate(gradients)]


def _has_usual_parameters(setup: Callable[..., Any]) -> bool:  # Any: any parameters
    """Return True if the first parameters are (ctx, inputs, output), so that calls by position and by keyword agree.

    The signature of a decorated function may be that of another one: so its own code is asked.
    """
    code = setup.__code__ if isinstance(setup, FunctionType) else None
    return code is not None and code.co_argcount >= 3 and code.co_varnames[:3] == ("ctx", "inputs", "output")


def _holds_list_first(result: Sequence[Any]) -> bool:
    """Return True if a list is a row of gradients, the first of which is that of a list of tensors."""
    return len(result) > 0 and isinstance(result[0], (list, tuple))
