"""Rules in the style of `torch.library`: `setup_context(ctx, inputs, output)` and `backward(ctx, *grads)`.

Their author sees a ctx with torch's names. Behind it every tensor goes through `save_for_backward`, also one that was
parked on ctx as an attribute, so that hooks, version checks and checkpointing see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from torch import Tensor

from custom_autograd.core.errors import GradientError
from custom_autograd.core.messages import format_message, quote, show
from custom_autograd.registration.rules import Rule, differentiable_results
from custom_autograd.runtime.plan import Plan
from custom_autograd.runtime.tensors import first_tensor, materialize, plain, tensors_in
from custom_autograd.runtime.user_code import noted
from custom_autograd.torch_private import transforms
from custom_autograd.torch_private.trees import flatten_tree, unflatten_tree

ByName = Mapping[str, Any]  # Any: tensors, lists of tensors and other values, by name


class Context:
    """The ctx that a drop-in rule sees."""

    def __init__(self, needs_input_grad: tuple[Any, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._saved: tuple[Tensor | None, ...] = ()
        self._non_differentiable: tuple[Tensor, ...] = ()
        self._materializes = True

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What `save_for_backward` got."""
        return self._saved

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Saves tensors for the backward; the last call counts.

        Raises:
            TypeError: something is no tensor; plain torch notices that only when a gradient is recorded.
        """
        for index, tensor in enumerate(tensors):
            if tensor is not None and not isinstance(tensor, Tensor):
                raise TypeError(
                    f"save_for_backward can only save tensors, but argument {index} is of type "
                    f"{type(tensor).__name__}: keep other values as attributes of ctx"
                )
        self._saved = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Accepted for compatibility: forward mode reads what `save_for_backward` saved."""

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declares outputs of this call to carry no gradient."""
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether undefined incoming gradients reach the backward as zeros (the default) or as None."""
        self._materializes = value

    @property
    def materializes(self) -> bool:
        """What `set_materialize_grads` was told."""
        return self._materializes

    @property
    def non_differentiable(self) -> tuple[Tensor, ...]:
        """What `mark_non_differentiable` got."""
        return self._non_differentiable

    def pack(self) -> tuple[tuple[Tensor | None, ...], Parcel]:
        """All tensors there are, and a parcel of everything else."""
        attributes = {name: value for name, value in vars(self).items() if name not in OWN}
        leaves, structure = flatten_tree(attributes)
        parked = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        are_tensors = [isinstance(leaf, Tensor) for leaf in leaves]
        parcel = Parcel(others, are_tensors, structure, len(self._saved), self._materializes)
        return (*self._saved, *parked), parcel

    @classmethod
    def unpack(cls, tensors: Sequence[Tensor | None], parcel: Parcel, needs_input_grad: tuple[Any, ...]) -> Context:
        """The inverse of `pack`."""
        context = cls(needs_input_grad)
        context._saved = tuple(plain(tensor) for tensor in tensors[: parcel.saved_count])
        context._materializes = parcel.materializes
        parked = iter(tensors[parcel.saved_count :])
        pairs = zip(parcel.leaves, parcel.are_tensors, strict=True)
        filled = [plain(next(parked)) if is_tensor else leaf for leaf, is_tensor in pairs]
        for name, value in unflatten_tree(filled, parcel.structure).items():
            setattr(context, name, value)
        return context


class Parcel(NamedTuple):
    """What a Context holds besides tensors.

    Attributes:
        leaves: of its attributes, with None in place of each tensor.
        are_tensors: which leaves those are.
        structure: of the attributes.
        saved_count: how many of the tensors came through `save_for_backward`.
        materializes: whether undefined gradients become zeros.
    """

    leaves: list[Any]
    are_tensors: list[bool]
    structure: Any  # Any: torch's TreeSpec
    saved_count: int
    materializes: bool

    @property
    def has_tensors(self) -> bool:
        """Whether tensors were saved along with it."""
        return self.saved_count > 0 or any(self.are_tensors)


OWN = ("needs_input_grad", "_saved", "_non_differentiable", "_materializes")


class DropIn:
    """Runs the rules of one `register_autograd`. Made once per plan; holds nothing of a call."""

    def __init__(self, plan: Plan, rule: Rule) -> None:
        schema = plan.declaration.schema
        self.plan = plan
        self.rule = rule
        self.arguments = schema.argument_names
        answered = [argument for argument in schema.arguments if not argument.is_keyword_only or argument.holds_tensors]
        self.names = tuple(argument.name for argument in answered)
        self.positional = sum(not argument.is_keyword_only for argument in answered)
        self.are_lists = [argument.is_tensor_list for argument in answered]
        self.keyword_only = [argument.name for argument in schema.arguments if argument.is_keyword_only]
        self.results = [result.name for result in differentiable_results(schema)]
        self.backward = noted(str(plan.declaration.name), rule)
        setup = rule.setup_context
        self.setup_context = None if setup is None else noted(str(plan.declaration.name), rule, setup)

    def setup(self, ctx: Any, needs: ByName, inputs: Sequence[Any], output: Any) -> None:
        """Runs the user's setup_context, and saves what it kept.

        Any: torch's ctx, and the inputs and the output as the schema has them.
        """
        context = Context(tuple(needs.get(name, False) for name in self.names))
        if self.setup_context is not None:
            self._call_setup(context, inputs, output)
        tensors, ctx.parcel = context.pack()
        ctx.save_for_backward(*tensors)
        if transforms.is_forward_mode() and any(map(transforms.has_tangent, tensors_in(inputs))):
            ctx.forward_saved, ctx.forward_fixed = tensors, context.non_differentiable
        if context.non_differentiable:
            ctx.mark_non_differentiable(*context.non_differentiable)

    def _call_setup(self, context: Context, inputs: Sequence[Any], output: Any) -> None:
        assert self.setup_context is not None
        by_name = dict(zip(self.arguments, inputs, strict=True))
        positional = tuple(value for name, value in by_name.items() if name not in self.keyword_only)
        if self.rule.extra["takes_keywords"]:
            keywords = {name: by_name[name] for name in self.keyword_only}
            self.setup_context(ctx=context, inputs=positional, keyword_only_inputs=keywords, output=output)
        elif self.rule.extra["by_keyword"]:
            self.setup_context(ctx=context, inputs=positional, output=output)
        else:
            self.setup_context(context, positional, output)

    def gradients(
        self, ctx: Any, saved: Sequence[Tensor | None], needs: ByName, grads: ByName, metadata: ByName
    ) -> dict[str, Any]:
        """Runs the user's backward.

        Args:
            ctx: torch's ctx, with the parcel of `setup` (Any: torch gives it no type).
            saved: its saved tensors.
            needs: by input, whether its gradient is wanted.
            grads: by output, the incoming gradient; non-tensors have None.
            metadata: by name, of tensor inputs and results.

        Returns:
            By differentiable input, what the user's backward returned for it.
        """
        context = Context.unpack(saved, ctx.parcel, tuple(needs.get(name, False) for name in self.names))
        like = first_tensor(grads.values())
        incoming = []
        for output in self.plan.declaration.schema.outputs:
            gradient = plain(grads.get(output.name))
            if context.materializes and output.holds_tensors:
                gradient = materialize(gradient, metadata[output.name], like)
            incoming.append(gradient)
        return self._read(self.backward(context, *incoming), needs)

    def _read(self, result: Any, needs: ByName) -> dict[str, Any]:
        """One gradient per argument, as lenient as the engine; Any: whatever the user's code returned."""
        is_sole_list = len(self.names) == 1 and self.are_lists[0]
        results = (
            list(result) if isinstance(result, tuple) or (isinstance(result, list) and not is_sole_list) else [result]
        )
        while len(results) > len(self.names) and results[-1] is None:
            results.pop()
        if len(results) == self.positional:
            results += [None] * (len(self.names) - self.positional)
        if len(results) != len(self.names):
            self._fail(
                "the backward returns the wrong number of gradients",
                expected=f"{len(self.names)}: {quote(self.names)}",
                found=str(len(results)),
                do="return one per positional argument and keyword-only tensor, None for what is no tensor",
            )
        valid = {argument.name for argument in self.plan.declaration.schema.differentiable_arguments}
        found = {}
        for name, is_list, gradient in zip(self.names, self.are_lists, results, strict=True):
            if name in valid:
                found[name] = self._list(name, gradient, needs[name]) if is_list else self._one(name, gradient)
            elif gradient is not None:
                self._fail(
                    f"the backward returns a gradient for '{name}', which carries none",
                    expected="None",
                    found=type(gradient).__name__,
                    do="return None in its place",
                )
        return found

    def _one(self, name: str, gradient: Any) -> Tensor | None:
        if gradient is not None and not isinstance(gradient, Tensor):
            self._fail(
                f"the gradient of '{name}' is no tensor",
                expected="a tensor or None",
                found=f"{type(gradient).__name__}: {show(gradient)}",
            )
        return gradient

    def _list(self, name: str, gradients: Any, need: list[bool]) -> list[Tensor | None]:
        if gradients is None:
            return [None] * len(need)
        if not isinstance(gradients, (list, tuple)) or len(gradients) != len(need):
            found = f"{len(gradients)}" if isinstance(gradients, (list, tuple)) else type(gradients).__name__
            self._fail(
                f"the gradient of the list '{name}' does not fit it",
                expected=f"a list of {len(need)}",
                found=found,
                do="return one gradient (or None) per tensor of the list",
            )
        return [self._one(f"{name}[{index}]", gradient) for index, gradient in enumerate(gradients)]

    def _fail(self, problem: str, **facts: str | None) -> NoReturn:
        raise GradientError(
            format_message(
                str(self.plan.declaration.name),
                problem,
                rule=f"{self.rule.location}, backward",
                declared=self.plan.declaration.location,
                **facts,
            )
        )
