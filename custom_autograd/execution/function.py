"""Generates the autograd.Function of an op, for every call that goes through the dispatcher.

NOTE [why forward re-enables grad mode]
Under a `torch.func` transform, `forward` hands the call to the transforms below this one. torch switches grad mode and
forward mode off inside `forward`; the levels below would then record nothing, and second derivatives would be silently
wrong. `below` switches both on again, under transforms only; and grad mode alone where AOTAutograd traces, which takes
what is written while it is off for a write under `no_grad`, and drops the gradients that flow through it.

NOTE [why apply is not Function.apply]
`Function.apply` sends a call under functorch through a higher-order op that gets nested forward mode wrong and, inside
`torch.compile`, ignores the backward. `apply` in the generated source is that of the base class: it records one node.
"""

from __future__ import annotations

from collections.abc import Sequence

from custom_autograd.execution.plan import Plan
from custom_autograd.execution.source import Source, by_position, dict_of, in_users_form, pass_on, tuple_of
from custom_autograd.schema.schema import Schema
from custom_autograd.torch_private.functions import MATERIALIZES, SAVED

IS_FORWARD = "$forward_ad._current_level >= 0 or ($is_transforming() and $has_forward_transform())"
"""Source of whether forward mode is on: `torch.func.jvp` opens no level that Python counts where it is compiled."""


class FunctionWriter:
    """Writes the Function of one op according to a plan."""

    def __init__(self, source: Source, plan: Plan) -> None:
        self.source = source
        self.plan = plan
        self.schema: Schema = plan.declaration.schema
        self.name = plan.declaration.name
        self.inputs = [argument.name for argument in self.schema.arguments]
        self.results = [result.name for result in plan.results]
        self.has_lists = self.schema.has_lists
        self.differentiable = list(self.schema.differentiable_names)
        self.is_differentiable = plan.is_differentiable
        self.mutated = [argument.name for argument in self.schema.mutated_arguments]
        self.lead = [name for name, is_there in (("$layout", self.has_lists), ("$in_place", self.mutated)) if is_there]
        self.saved_tensors, self.saved_values = plan.saved_tensors, plan.saved_values

    def write(self) -> None:
        """Write the class."""
        source = self.source
        with source.block(f"class {self.name.name}($torch.autograd.Function)"):
            source.line(f'"""Autograd of {self.name}: `apply` takes the arguments of its schema, in order."""')
            source.line()
            self._write_apply()
            if self.is_differentiable:
                for write in (self._write_forward, self._write_setup_context, self._write_backward, self._write_jvp):
                    source.line()
                    write()

    def _write_apply(self) -> None:
        self.source.line("@$classmethod")
        with self.source.block(f"def apply({', '.join(['$cls', *by_position(self.schema)])})"):
            self.source.line(f"return $overload({pass_on(self.schema)})")

    def _write_forward(self) -> None:
        source, schema = self.source, self.schema
        source.line("@$staticmethod")
        with source.block(f"def forward({', '.join(self.parameters())})"):
            self.write_lists()
            self.write_copies()
            self.write_tangents_forgotten()
            source.line(f"{self.targets()}$below($overload, {pass_on(schema)})")
            self.write_views_cut()
            source.line(f"return {self.flat_results()}")

    def write_lists(self) -> None:
        """Write that lists are put together again."""
        if self.has_lists:
            self.source.line(f"{', '.join(self.inputs)}, = $restore_lists($flat, $layout.inputs)")

    def write_copies(self) -> None:
        """Write that written arguments are copied unless they are written in place."""
        if self.mutated:
            with self.source.block("if not $in_place"):
                self.source.line(f"{', '.join(self.mutated)}, = $below($copies, {tuple_of(self.mutated)})")

    def targets(self) -> str:
        """Return source of what the result of the call is assigned to."""
        fresh = self.schema.fresh_outputs
        names = ", ".join(one.name if one in fresh else "$_" for one in self.schema.outputs)
        return names and f"{names} = "

    def write_views_cut(self) -> None:
        """Write that no result is a view of a temporary: tangents of views would have to be laid out as those."""
        types = {output.name: output.type for output in self.schema.fresh_outputs if output.type.startswith("Tensor")}
        if types and not self.schema.is_view:
            are_views = [f"{name}._is_view()" if types[name] == "Tensor" else "True" for name in types]
            with self.source.block(f"if ({IS_FORWARD}) and ({' or '.join(are_views)})"):
                self.source.line(f"{', '.join(types)}, = $without_bases({tuple_of(list(types))})")

    def flat_results(self) -> str:
        """Return source of what a node returns: one tensor, or all, with lists spread out."""
        if self.has_lists:
            are_lists = tuple_of([str(result.is_tensor_list) for result in self.plan.results])
            return f"$layout.flatten_outputs({tuple_of(self.results)}, {are_lists})"
        return self.results[0] if len(self.results) == 1 else tuple_of(self.results)

    def parameters(self) -> list[str]:
        """Return what `forward` takes: what the node needs to know first, then the arguments, lists spread out."""
        return [*self.lead, *(["*$flat"] if self.has_lists else self.inputs)]

    def _write_setup_context(self) -> None:
        source = self.source
        source.line("@$staticmethod")
        with source.block("def setup_context($ctx, $inputs, $output)"):
            self._unpack_call()
            self.write_dirty()
            self.write_context(keeps_metadata=True)
            self.write_hidden_check()
            with source.block("if $has_tangent(*$inputs)"):
                self.write_kept_for_jvp()

    def write_dirty(self) -> None:
        """Write that written arguments are marked as such."""
        if self.mutated:
            with self.source.block("if $in_place"):
                self.source.line(f"$ctx.mark_dirty(*$tensors_in({tuple_of(self.mutated)}))")

    def write_hidden_check(self) -> None:
        """Write that reverse mode over a hidden output whose tangent is unknown is refused."""
        hidden = self._hidden_saved()
        if hidden:
            self.source.line(f"$check_hidden($ctx, {tuple_of([repr(name) for name in hidden])})")

    def write_tangents_forgotten(self) -> None:
        """Write that what an earlier call said of hidden outputs does not count for the one that begins."""
        if self._hidden_saved():
            self.source.line("$levels_below.unknown = ()")

    def _hidden_saved(self) -> list[str]:
        if self.plan.drop_in is not None:
            return []
        return [o.name for o in self.schema.hidden_outputs if o.name in self.saved_tensors and o.is_differentiable]

    def write_kept_for_jvp(self) -> None:
        """Write that forward keeps what the jvp reads right after it, which takes the tensors off ctx again."""
        results = [result.name for result in self.plan.results if result.holds_tensors]
        if self.plan.drop_in is not None:  # its rules keep what they need themselves
            self._keep_values()
        self.source.line(f"$ctx.forward = ({dict_of(self.saved_tensors)}, {dict_of(results)})")

    def write_context(self, *, keeps_metadata: bool) -> None:
        """Write what the node keeps of a call, from variables named after its inputs and results."""
        source = self.source
        fixed = [r.name for r in self.plan.results if r.holds_tensors and not r.is_differentiable]
        if fixed:
            source.line(f"$ctx.mark_non_differentiable(*$tensors_in({tuple_of(fixed)}))")
        source.line(f"$ctx.{MATERIALIZES} = False")
        if keeps_metadata:
            source.line(f"$ctx.known = {self.metadata()}")
        if self.plan.drop_in is not None:
            self._save_drop_in()
        else:
            self._save_by_name()

    def _unpack_call(self) -> None:
        source = self.source
        source.line(f"{', '.join(self.parameters())}, = $inputs")
        if self.has_lists:
            source.line("$ctx.layout = $layout")
            source.line(f"{', '.join(self.inputs)}, = $restore_lists($flat, $layout.inputs)")
            source.line(f"{', '.join(self.results)}, = $restore_lists($output, $layout.outputs)")
        else:
            source.line(f"{', '.join(self.results)}{', ' if len(self.results) > 1 else ''} = $output")
        self.unpack_needs()

    def unpack_needs(self, found: str = "$ctx.needs_input_grad") -> None:
        """Write one variable per differentiable input: whether its gradient is needed."""
        needed = f"{found}[{len(self.lead)}:]" if self.lead else found
        found = f"$restore_lists({needed}, $ctx.layout.inputs)" if self.has_lists else needed
        targets = ", ".join(needs_of(name) if name in self.differentiable else "$_" for name in self.inputs)
        self.source.line(f"{targets}, = {found}")

    def metadata(self) -> str:
        """Return source of a dict: the metadata of each tensor input and fresh output."""
        fresh = [output.name for output in self.schema.fresh_outputs if output.holds_tensors]
        names = [argument.name for argument in self.schema.tensor_arguments] + fresh
        return dict_of(names, "$metadata_of({})")

    def _save_drop_in(self) -> None:
        outputs = [output.name for output in self.schema.outputs]
        output = outputs[0] if len(outputs) == 1 else tuple_of(outputs)
        self.source.line(f"$drop_in.setup($ctx, {self.needs_dict()}, {tuple_of(self.converted())}, {output})")

    def converted(self) -> list[str]:
        """Return source of all arguments, as users see them."""
        return [in_users_form(argument) for argument in self.schema.arguments]

    def _keep_values(self) -> None:
        arguments = {argument.name: argument for argument in self.schema.arguments}
        for name in self.saved_values:
            self.source.line(f"$ctx.kept_{name} = {in_users_form(arguments[name]) if name in arguments else name}")

    def _save_by_name(self) -> None:
        source = self.source
        self._keep_values()
        if not self.saved_tensors:
            return
        wanted = [self._if_needed(name) for name in self.saved_tensors]
        if self.saves_lists():
            flags = tuple_of([str(self.is_list(name)) for name in self.saved_tensors])
            source.line(f"$saved, $ctx.saved_lengths = $flatten_lists({tuple_of(wanted)}, {flags})")
            source.line(f"$ctx.{SAVED} = $tuple($saved)")
        else:
            source.line(f"$ctx.{SAVED} = {tuple_of(wanted)}")
        if self.plan.saving:
            source.line(f"$note_saved({tuple_of(list(map(repr, self.saved_tensors)))}, {tuple_of(wanted)})")

    def saves_lists(self) -> bool:
        """Return True if lists of tensors are saved."""
        return any(self.is_list(name) for name in self.saved_tensors)

    def is_list(self, name: str) -> bool:
        """Return True if an input or an output is a list of tensors."""
        return any(v.name == name and v.is_tensor_list for v in self.schema.values)

    def _if_needed(self, name: str) -> str:
        if self.plan.is_always_saved(name):
            return name
        users, for_hidden = self.plan.saved[name], self.plan.saved_for_hidden.get(name, ())
        own = [user for user in users if user not in for_hidden]
        tests = [self.any_needed(own)] if own else []
        if for_hidden:
            tests.append(
                f"({self.any_needed(for_hidden)}) and $any_floating({tuple_of(list(self.plan.unnamed_results))})"
            )
        return f"{name} if {' or '.join(tests)} else None" if tests else "None"

    def any_needed(self, names: Sequence[str]) -> str:
        """Return source of whether any of some inputs needs a gradient."""
        return " or ".join(f"$is_wanted({needs_of(n)})" if self.is_list(n) else needs_of(n) for n in names)

    def needs_dict(self) -> str:
        """Return source of a dict: by differentiable input, whether its gradient is needed."""
        return dict_of(self.differentiable, needs_of("{}"))

    def _write_backward(self) -> None:
        source = self.source
        source.line("@$staticmethod")
        parameters = self.incoming()
        with source.block(f"def backward($ctx, {parameters})"):
            self.unpack_grads()
            self.unpack_needs(self.needed())
            incoming = dict_of([r.name for r in self.plan.results if r.is_differentiable], grad_of("{}"))
            source.line(f"$gradients = $backward_of($ctx, {self.needs_dict()}, {incoming})")
            returned = [f'$gradients["{name}"]' if name in self.differentiable else "None" for name in self.inputs]
            self.write_gradients(returned)

    def write_gradients(self, found: list[str]) -> None:
        """Write that a backward returns gradients, given as source by input: in the order of what the node takes."""
        if self.has_lists:
            found = [f"*$flatten_gradients({tuple_of(found)}, $ctx.layout.inputs)"]
        self.source.line(f"return {', '.join(['None'] * len(self.lead) + found)}")

    def unpack_grads(self) -> None:
        """Write one variable per result: its incoming gradient."""
        if self.has_lists:
            targets = ", ".join(map(grad_of, self.results))
            self.source.line(f"{targets}, = $restore_lists($grads, $ctx.layout.outputs)")

    def needed(self) -> str:
        """Return source of a tuple: by input of the node, whether the backward in progress needs its gradient."""
        return f"$needed_gradients($ctx{', is_write=True' if self.mutated else ''})"

    def incoming(self) -> str:
        """Return source of the parameters of a backward, behind ctx."""
        return "*$grads" if self.has_lists else ", ".join(map(grad_of, self.results))

    def _write_jvp(self) -> None:
        source = self.source
        source.line("@$staticmethod")
        names = [f"{'$tangent' if name in self.differentiable else '$unused'}${name}" for name in self.inputs]
        parameters = ["$ctx", *self.lead, *(["*$tangents"] if self.has_lists else names)]
        with source.block(f"def jvp({', '.join(parameters)})"):
            if self.has_lists:
                source.line(f"{', '.join(names)}, = $restore_lists($tangents, $ctx.layout.inputs)")
            self.write_quick_jvp()
            source.line(f"$tangents = $jvp_of($ctx, {dict_of(self.differentiable, '$tangent${}')})")
            returned = [f'$tangents.get("{name}")' for name in self.results]
            if self.has_lists:
                source.line(f"return $flatten_gradients({tuple_of(returned)}, $ctx.layout.outputs)")
            else:
                source.line(f"return {returned[0] if len(returned) == 1 else tuple_of(returned)}")

    def write_quick_jvp(self) -> None:
        """Write what the jvp runs first: nothing, unless a subclass does."""


def needs_of(name: str) -> str:
    """Return source of whether the gradient of an input is needed."""
    return f"$needs${name}"


def grad_of(name: str) -> str:
    """Return source of the incoming gradient of a result."""
    return f"$grad${name}"
