"""Gradients by differentiating the reference: recomputed from the saved inputs, and differentiable again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError, VmapUnavailable
from custom_autograd.core.messages import quote
from custom_autograd.execution.bind import spread
from custom_autograd.execution.cut_references import Recompute, check_reached, is_of_torch
from custom_autograd.execution.plan import Plan
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.dispatcher_library import keep_at_exit
from custom_autograd.schema.named_tuples import results_in_order
from custom_autograd.schema.schema import Schema
from custom_autograd.torch_private import dispatch, transforms
from custom_autograd.torch_private.functions import direct_apply
from custom_autograd.torch_private.saved_tensors import without_hooks
from custom_autograd.torch_private.thread_values import HandedOn
from custom_autograd.torch_private.trees import flatten_tree, unflatten_tree
from custom_autograd.values.tensors import tensors_in
from custom_autograd.values.user_code import note_reference

IS_IN_JVP: HandedOn[bool] = HandedOn("custom_autograd.is_in_jvp")
"""Set while a jvp runs: there functorch cannot open a level, and need not, since the level in progress is alive.

A derived jvp runs a backward, which for tensors on a GPU is in another thread.
"""

ByName = Mapping[str, Any]  # Any: tensors, lists of tensors and other values, by name


def reference_gradients(
    plan: Plan, reference: Callable[..., Any], needs: ByName, grads: ByName, values: ByName
) -> dict[str, Any]:
    """Return the gradients of some inputs, from a recomputation by the reference.

    Returns:
        By wanted input: a tensor, None if the reference does not depend on it, or a list of those.
    """
    wanted = {name: _tensors(values[name], need) for name, need in needs.items()}
    primals = [tensor for tensors in wanted.values() for tensor in tensors]
    others = _others(plan.uncovered, needs, values)
    watched = {name: _tensors(values[name], need) for name, need in others.items()}
    incoming = tensors_in(list(grads.values()))

    def recompute(*replacements: Tensor) -> tuple[Tensor, ...]:
        remaining = iter(replacements)
        replaced = dict(values)
        for given in (needs, others):
            replaced.update({name: _replace(replaced[name], need, remaining) for name, need in given.items()})
        results = call_reference(plan.declaration, reference, replaced)
        return tuple(output for name, its in grads.items() for output in _matching(results.get(name), its))

    if not primals or not incoming:
        return {name: _spread(need, iter(())) for name, need in needs.items()}
    names = [name for given in (wanted, watched) for name, tensors in given.items() for _ in tensors]
    are_visible = any(grads.get(name) is not None for name in plan.declaration.schema.visible_results)
    check = partial(
        check_reached, plan.declaration, reference, names, recompute, wanted=len(primals), are_visible=are_visible
    )
    is_open = transforms.is_transforming() and not IS_IN_JVP.get()
    needs_level = torch.compiler.is_dynamo_compiling() or is_open
    find = _gradients_under_transforms if needs_level else _gradients
    values = values if needs_level else {name: _recordable(value) for name, value in values.items()}
    remaining = iter(find(recompute, check, primals, [one for its in watched.values() for one in its], incoming))
    return {name: _spread(need, remaining) for name, need in needs.items()}


def _gradients(
    recompute: Recompute,
    check: Callable[..., None],
    primals: list[Tensor],
    others: list[Tensor],
    incoming: list[Tensor],
) -> Sequence[Tensor | None]:
    """Return the gradients by autograd, on aliases: the same tensor given twice counts as two inputs."""
    is_recording = torch.is_grad_enabled()
    with torch.enable_grad(), transforms.forward_mode_enabled(True), nullcontext() if is_recording else without_hooks():
        aliases = [_recordable(tensor.view_as(tensor)) for tensor in (*primals, *others)]
        is_recorded = is_recording and any(map(transforms.is_recorded_anywhere, (*aliases, *incoming)))
        aliases = [alias if alias.requires_grad else transforms.require_gradient(alias) for alias in aliases]
        computed = recompute(*aliases)
        pairs = [pair for pair in zip(computed, incoming, strict=True) if pair[0].requires_grad]
        found: Sequence[Tensor | None] = [None] * len(primals)
        if pairs:
            outputs, gradients = zip(*pairs, strict=True)
            asked = aliases[: len(primals)]
            found = torch.autograd.grad(outputs, asked, gradients, create_graph=is_recorded, allow_unused=True)
        if others or len(pairs) < len(computed) or any(one is None for one in found):
            check(aliases, computed)
        # A gradient that is independent of all that it is linear in is zero everywhere, as that of round.
        if is_recording and IS_IN_JVP.get() and all(map(_is_recorded, incoming)):
            found = [one if _is_recorded(one) or not is_of_torch(computed, aliases) else None for one in found]
        return found


def _recordable(value: Any) -> Any:  # Any: an input
    """Return an input of which autograd can record what is done with it: inference tensors are copied."""
    if isinstance(value, (list, tuple)):
        return [_recordable(item) for item in value]
    is_inference = isinstance(value, Tensor) and transforms.unwrapped(value).is_inference()
    return value.clone() if is_inference else value


def _is_recorded(gradient: Tensor | None) -> bool:
    return gradient is not None and gradient.requires_grad


def _gradients_under_transforms(
    recompute: Recompute,
    check: Callable[..., None],
    primals: list[Tensor],
    others: list[Tensor],
    incoming: list[Tensor],
) -> Sequence[Tensor | None]:
    """Return the gradients, computed at a separate functorch level.

    The level at which the primals were saved may be gone when their backward runs (jacrev leaves it first); what is
    recorded on them then would be lost, and the gradient silently zero. `view_as` takes them out of a dead level.
    """

    def checked(*replacements: Tensor) -> tuple[Tensor, ...]:
        replacements += tuple(transforms.require_gradient(tensor.view_as(tensor)) for tensor in others)
        computed = recompute(*replacements)
        if not torch.compiler.is_dynamo_compiling():  # Dynamo cannot trace the question
            check(replacements, computed)
        return computed

    is_recording = torch.is_grad_enabled()
    with torch.set_grad_enabled(is_recording), transforms.forward_mode_enabled(True):
        pull = torch.func.vjp(checked, *(tensor.view_as(tensor) for tensor in primals))[1]
        found: tuple[Tensor, ...] = pull(tuple(incoming))
        return found


def call_reference(declaration: Declaration, reference: Callable[..., Any], values: ByName) -> dict[str, Any]:
    """Run the reference on inputs by name; its results by output name (Any: what it returns).

    A reference that raises under vmap is run once for each sample.
    """
    try:
        return _call(declaration, reference, values)
    except Exception as error:
        if not transforms.is_transforming() or is_about_randomness(error):
            raise

        found = for_each_sample(partial(call_reference, declaration, reference), values)
        if found is None:
            raise
        return found


def is_about_randomness(error: Exception) -> bool:
    """Return True if vmap refuses random numbers, which a loop would draw without its leave."""
    return isinstance(error, VmapUnavailable) or "randomness" in str(error)


def _call(declaration: Declaration, reference: Callable[..., Any], values: ByName) -> dict[str, Any]:
    schema: Schema = declaration.schema
    positional = [values[argument.name] for argument in schema.arguments if not argument.is_keyword_only]
    keywords = {argument.name: values[argument.name] for argument in schema.arguments if argument.is_keyword_only}
    try:
        result = reference(*spread(schema, positional), **keywords)
    except Exception as error:
        note_reference(error, str(declaration.name), reference)
        raise
    result = results_in_order(schema, result, partial(_refuse, declaration))
    is_list = len(schema.outputs) == 1 and schema.outputs[0].is_tensor_list
    results = tuple(result) if isinstance(result, tuple) and not is_list else (result,)
    if len(results) != len(schema.outputs):
        raise declaration.error(
            GradientError,
            "the reference returns the wrong number of results",
            expected=f"{len(schema.outputs)}: {quote(schema.output_names)}",
            found=str(len(results)),
            do="return what the kernel returns, hidden outputs included",
        )
    return dict(zip(schema.output_names, results, strict=True))


def _tensors(value: Any, need: Any) -> list[Tensor]:
    """Return the tensors of an input whose gradients are wanted."""
    if isinstance(need, (list, tuple)):
        return [item for item, one in zip(value, need, strict=True) if one]
    return [value] if need else []


def _others(names: Iterable[str], needs: ByName, values: ByName) -> dict[str, Any]:
    """Return the inputs without a wanted gradient that a second derivative may be asked for, in the form of `needs`."""
    if not torch.is_grad_enabled() or torch.compiler.is_dynamo_compiling():
        return {}
    found: dict[str, Any] = {}
    for name in names:
        value, need = values[name], needs.get(name)
        if isinstance(value, (list, tuple)):
            pairs = zip(value, need or [False] * len(value), strict=True)
            found[name] = [
                not one and item is not None and transforms.is_recorded_anywhere(item) for item, one in pairs
            ]
        else:
            found[name] = not need and value is not None and transforms.is_recorded_anywhere(value)
    return found


def _replace(value: Any, need: Any, replacements: Iterator[Tensor]) -> Any:
    """Return the input with the next replacements in place of its wanted tensors."""
    if isinstance(need, (list, tuple)):
        return [next(replacements) if one else item for item, one in zip(value, need, strict=True)]
    return next(replacements) if need else value


def _matching(output: Any, gradient: Any) -> list[Tensor]:
    """Return the tensors of an output that have an incoming gradient."""
    if isinstance(gradient, (list, tuple)):
        return [one for one, its in zip(output, gradient, strict=True) if its is not None]
    return [] if gradient is None else [output]


def _spread(need: Any, found: Iterator[Tensor | None]) -> Any:
    """Return the next gradients of `found`, in the structure of the input."""
    if isinstance(need, (list, tuple)):
        return [next(found, None) if one else None for one in need]
    return next(found, None) if need else None


def _refuse(declaration: Declaration, problem: str, **facts: str) -> NoReturn:
    raise declaration.error(GradientError, f"the reference {problem}", **facts)


# Runs a reference that vmap cannot batch once for each sample, inside a derivative: gradients flow through it.
#
# Each sample is taken out of the batch, and the results of all samples are put back into it, by differentiable
# operations at whatever level of `torch.func` the derivative is.


Values = Mapping[str, Any]  # Any: tensors, lists of tensors and other values, by name


class AllSamples(torch.autograd.Function):
    """All samples of a batched tensor as one that is not batched: the opposite of indexing it with `index`."""

    @staticmethod
    def forward(x: Tensor, index: Tensor) -> Tensor:
        """Continue below this level."""
        with dispatch.below_autograd(), torch.enable_grad(), transforms.forward_mode_enabled(True):
            found: Tensor = all_samples(x, index)
            return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # Any: torch gives it no type
        """Keep the index of the sample."""
        del output
        ctx.index = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the sample."""
        return _sample(grads[0], ctx.index), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """Return the tangents of all samples."""
        with torch.enable_grad(), transforms.forward_mode_enabled(True):
            found: Tensor = all_samples(tangents[0], ctx.index)
            return found


def _sample(samples: Tensor, index: Tensor) -> Tensor:
    """Return each sample of all of them, batched."""
    return samples.index_select(0, index.reshape(1).to(samples.device)).squeeze(0)


def _batched(x: Tensor, index: Tensor) -> Tensor:
    """Return all samples at the level of the batch; a batch of another level is a dimension of theirs."""
    level = transforms.VmapLevel()
    (x, index), (dim, dim_of_index) = level.unwrap((x, index))
    with dispatch.without_key("FuncTorchBatched"):
        if dim_of_index is not None:
            return x.movedim(dim, 0)
        found: Tensor = all_samples(x if dim is None else x.movedim(dim, 0), index)
    return found if dim is None else level.wrap(found, 1)


_LIBRARY = torch.library.Library("custom_autograd", "FRAGMENT")
keep_at_exit(_LIBRARY)
_LIBRARY.define("all_samples(Tensor x, Tensor index) -> Tensor")
_LIBRARY.impl("all_samples", direct_apply(AllSamples), "Autograd")
_LIBRARY.impl("all_samples", _batched, "FuncTorchBatched")
all_samples = torch.ops.custom_autograd.all_samples.default


def for_each_sample(function: Callable[[Values], dict[str, Any]], values: Values) -> dict[str, Any] | None:
    """Return the results of a function that is called for each sample of the innermost batch; None without one."""
    leaves, structure = flatten_tree(dict(values))
    batch = transforms.innermost_batch([leaf for leaf in leaves if isinstance(leaf, Tensor)])
    if batch is None or batch.size == 0:
        return None
    index = batch.index()
    are_batched = [isinstance(leaf, Tensor) and batch.holds(leaf) for leaf in leaves]
    spread = [all_samples(leaf, index) if is_one else leaf for leaf, is_one in zip(leaves, are_batched, strict=True)]
    calls = []
    for sample in range(batch.size):
        chosen = [one[sample] if is_one else one for one, is_one in zip(spread, are_batched, strict=True)]
        calls.append(flatten_tree(function(unflatten_tree(chosen, structure))))
    columns = zip(*(results for results, _ in calls), strict=True)
    joined = [_sample(torch.stack(column), index) if isinstance(column[0], Tensor) else column[0] for column in columns]
    found: dict[str, Any] = unflatten_tree(joined, calls[0][1])
    return found
