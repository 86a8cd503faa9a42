"""Rewrites the forward of an autograd.Function as the kernel of an op, and maps values on ctx to names in its rules.

ctx.save_for_backward(x, s)    the argument `x`; `s`, computed in forward, becomes a hidden output
ctx.beta = beta                the argument `beta`
ctx.shape = x.shape            `meta.x.shape`
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import libcst as cst
import libcst.matchers as m

from custom_autograd.adoption.syntax import (
    TENSOR,
    NotMechanical,
    Values,
    code,
    comments_of,
    elements_of,
    names_in,
    only_part,
    replaced,
    statements_of,
    targets_in,
    tuple_of,
    with_comments,
)

FACTS = ("shape", "dtype", "device", "layout", "ndim")
VIEW = re.compile(
    "view|view_as|detach|expand|expand_as|t|T|mT|transpose|permute|squeeze|unsqueeze|narrow|select|diagonal|unflatten|"
    "contiguous|reshape|flatten|to|type|float|double|half|bfloat16"
)
"""Methods that may return a view of a tensor."""

METHODS = {"size": "shape", "dim": "ndim", "numel": "shape.numel()"}
"""Methods that return facts about the shape of a tensor, and the attributes with these facts."""

CHANGING = re.compile(r"\b(rand\w*|random|seed|time|\w*state|normal\w*|uniform\w*|bernoulli)\b")
"""Words in calls that return another value each time."""

LONGEST = 200
"""Number of characters of an expression that is repeated in backward."""


class Forward:
    """The forward of a Function, and the values that it keeps on ctx.

    Attributes:
        types: annotations by argument.
        outputs: names of the outputs.
        hidden: names of intermediates that backward needs.
        fixed: names of the outputs without a gradient.
        saved: expressions in backward by position in `ctx.saved_tensors`.
        kept: expressions in backward by attribute of ctx.
    """

    def __init__(
        self, forward: cst.FunctionDef, setup_context: cst.FunctionDef | None, types: Mapping[str, str]
    ) -> None:
        self._node = forward
        self._own = parameters_of(forward, has_ctx=setup_context is None)
        self.types = dict(types)
        self.tensors = [name for name, text in self.types.items() if TENSOR.search(text)]
        self.saved: list[cst.BaseExpression] = []
        self.kept: Values = {}
        self.hidden: list[str] = []
        self.fixed: list[str] = []
        self.materializes = True
        self._values: dict[str, cst.BaseExpression | None] = {}
        self._views: set[str] = set()
        statements = statements_of(forward)
        self._returned = self._return_of(statements)
        self._name_outputs()
        self._statements = self._without_ctx(statements)
        self._check_writes()
        self._copies = [self._copied(one) for one in self._returned]
        if setup_context is not None:
            self._values = {}
            rename: Values = {setup_context.params.params[2].name.value: cst.Name(self.outputs[0])}
            self._set_up(self._inputs_unpacked(statements_of(setup_context)), rename)
        if not set(self.fixed) <= set(self.outputs):
            raise NotMechanical("mark_non_differentiable names what is not an output")

    def _return_of(self, statements: list[cst.BaseStatement]) -> list[cst.BaseExpression]:
        returns = m.findall(self._node.body, m.Return())
        last = statements.pop() if statements else cst.SimpleStatementLine([])
        if len(returns) != 1 or not isinstance(last, cst.SimpleStatementLine) or returns[0] is not last.body[-1]:
            raise NotMechanical("forward returns in several places")
        value = cst.ensure_type(returns[0], cst.Return).value or cst.Name("None")
        self._last = last
        self.is_tuple = isinstance(value, cst.Tuple)
        found = elements_of(value) if self.is_tuple else [value]
        if not found:
            raise NotMechanical("forward returns a tuple that is not written one by one")
        return found

    def _name_outputs(self) -> None:
        named = [one.value if isinstance(one, cst.Name) else None for one in self._returned]
        count = len(named)
        plain = ["output"] if count == 1 else [f"output_{index}" for index in range(count)]
        usable = [one if one and one not in self.types and named.count(one) == 1 else None for one in named]
        self.outputs = [one or other for one, other in zip(usable, plain, strict=True)]
        self.is_named = any(usable)

    def _inputs_unpacked(self, statements: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
        """Return the statements of setup_context after `x, y = inputs`, which must use the names of forward."""
        if statements and m.matches(statements[0], m.SimpleStatementLine(body=[m.Assign(value=m.Name("inputs"))])):
            if targets_in(statements[0]) != list(self.types):
                raise NotMechanical("setup_context unpacks its inputs under other names")
            return statements[1:]
        return statements

    # -------------------------------------------------------------------------------------------------- values on ctx

    def _without_ctx(self, statements: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
        """Record assignments to ctx, and return the other statements; comments stay with the next statement."""
        found, comments = with_comments(self._rows_without_ctx(statements))
        self._last = self._last.with_changes(leading_lines=[*comments, *self._last.leading_lines])
        return found

    def _rows_without_ctx(
        self, statements: list[cst.BaseStatement]
    ) -> Iterator[tuple[list[cst.EmptyLine], list[cst.BaseStatement]]]:
        for position, statement in enumerate(statements):
            self._later = [*(name for one in statements[position + 1 :] for name in targets_in(one))]
            own = self._noted(statement)
            if any(m.findall(one, m.Name("ctx")) for one in ([statement] if own is None else own)):
                raise NotMechanical("forward uses ctx within other code")
            yield ([], [statement]) if own is None else (comments_of(statement), own)
            if own is None:
                self._note_variables(statement)

    def _set_up(self, statements: list[cst.BaseStatement], rename: Values) -> None:
        self._later = []
        for statement in statements:
            if self._noted(statement, rename) != []:
                raise NotMechanical("setup_context uses ctx within other code")
        if self.hidden:
            raise NotMechanical(f"it saves '{self.hidden[0]}', which forward does not compute")

    def _noted(self, statement: cst.BaseStatement, rename: Values | None = None) -> list[cst.BaseStatement] | None:
        """Record an assignment to ctx, and return the statements that replace it; None for any other statement."""
        one = only_part(statement)
        if isinstance(one, cst.Expr) and m.matches(one.value, m.Call(func=m.Attribute(m.Name("ctx")))):
            call = cst.ensure_type(one.value, cst.Call)
            return self._note_call(code(call.func), [replaced(arg.value, rename or {}) for arg in call.args])
        if not isinstance(one, cst.Assign) or len(one.targets) != 1:
            return None
        target = one.targets[0].target
        if not isinstance(target, cst.Attribute) or not m.matches(target.value, m.Name("ctx")):
            return None
        name = target.attr.value
        is_tensor = isinstance(one.value, cst.Name) and one.value.value in self.tensors
        is_argument = is_tensor and code(one.value) not in self._values
        self.kept[name] = one.value if is_argument else self._inlined(one.value, f"ctx.{name}")
        return []

    def _note_call(self, method: str, arguments: list[cst.BaseExpression]) -> list[cst.BaseStatement]:
        names = [code(one) for one in arguments]
        if method == "ctx.save_for_backward":
            found: list[cst.BaseStatement] = []
            self.saved = [self._saved(one, position, found) for position, one in enumerate(arguments)]
            return found
        if method == "ctx.mark_non_differentiable":
            self.fixed = names
        elif method == "ctx.set_materialize_grads":
            self.materializes = names != ["False"]
        else:
            raise NotMechanical(f"it calls {method}()")
        return []

    def _saved(self, value: cst.BaseExpression, position: int, before: list[cst.BaseStatement]) -> cst.BaseExpression:
        """Return the expression of a saved tensor in backward; append assignments of new variables to `before`."""
        returned = [code(one) for one in self._returned]
        name = code(value)
        if name in returned and name not in self.types and name not in self._later:
            return cst.Name(self.outputs[returned.index(name)])
        known = self._in_arguments(value)
        if known is not None and self._base_of(value) in self.types:
            return known  # an argument, or a view of it that is made again
        if isinstance(value, cst.Name):
            if name == "None":
                return value
            if name not in self._values:
                raise NotMechanical(f"it saves '{name}', which forward does not compute")
            if name in self.types and known is None:
                raise NotMechanical(f"it saves '{name}' after a block of forward assigns to it")
            if name not in self.types and name not in self._later and name not in self._views:
                self.hidden.append(name)
                return value
        elif not isinstance(value, (cst.Call, cst.BinaryOperation, cst.UnaryOperation, cst.Comparison)):
            raise NotMechanical(f"it saves {name}, which may be an argument or an output")
        new = f"saved_{name if isinstance(value, cst.Name) else position}"
        copy = ".clone()" if name in self._views else ""
        before.append(cst.ensure_type(cst.parse_statement(f"{new} = {name}{copy}"), cst.SimpleStatementLine))
        self.hidden.append(new)
        return cst.Name(new)

    def _in_arguments(self, value: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return an expression in terms of the arguments; None if it has other variables, or is too long."""
        known: Values = {}
        for name in names_in(value):
            one = self._values.get(name, cst.Name(name))
            if one is None:
                return None
            known[name] = one
        found = replaced(value, known)
        return found if len(code(found)) <= LONGEST else None

    def _inlined(self, value: cst.BaseExpression, what: str) -> cst.BaseExpression:
        """Return an expression that backward can compute from arguments that are numbers, and facts about tensors."""
        known = self._in_arguments(value)
        if known is None:
            raise NotMechanical(f"{what} is computed in forward")
        for call in m.findall(known, m.Call()):
            if not self.types.keys() & set(names_in(call)) or CHANGING.search(code(call)):
                raise NotMechanical(f"{what} is {code(call)}, which may be another value in backward")
        facts = _Facts(self.tensors)
        found = known.visit(facts)
        assert isinstance(found, cst.BaseExpression)
        if facts.others:
            raise NotMechanical(f"{what} holds the tensor '{facts.others[0]}' or depends on its data")
        return found

    # --------------------------------------------------------------------------------------------- variables of forward

    def _note_variables(self, statement: cst.BaseStatement) -> None:
        """Record the values of variables in terms of the arguments, or None, after a statement."""
        one = only_part(statement)
        new: dict[str, cst.BaseExpression | None] = dict.fromkeys(_changed_in(statement))
        if isinstance(one, cst.Assign) and len(one.targets) == 1 and isinstance(one.targets[0].target, cst.Name):
            target = one.targets[0].target.value
            new[target] = self._in_arguments(one.value)
            is_view = _root_of(one.value)
            self._views = (self._views | {target}) if is_view else (self._views - {target})
        written = [code(known) for name in _written_in(statement) if (known := self._values.get(name)) is not None]
        new |= {name: None for name, known in self._values.items() if known is not None and code(known) in written}
        self._values |= new

    def _base_of(self, value: cst.BaseExpression) -> str:
        """Return the argument or variable that an expression may be a view of: `x` of `x[0].view(-1)`."""
        return _root_of(self._in_arguments(value) or value)

    def _copied(self, value: cst.BaseExpression) -> str:
        """Return the source of an output, with a copy if it may share memory with an argument."""
        base = self._base_of(value)
        if base in self.types and base not in self.tensors:
            raise NotMechanical(f"it returns its parameter '{base}', which is not a tensor")
        return f"{code(value)}.clone()" if base in self.types else code(value)

    def _check_writes(self) -> None:
        """Raise if forward writes to an argument."""
        assigned: set[str] = set()
        for statement in (*self._statements, self._last):
            wrong = [name for name in _written_in(statement) if name in self.tensors and name not in assigned]
            if wrong:
                raise NotMechanical(f"forward writes to its parameter '{wrong[0]}'")
            assigned.update(targets_in(statement))

    def function(self, name: str, op: str, docstring: list[cst.BaseStatement]) -> cst.FunctionDef:
        """Return the kernel, declared as an op."""
        options = [f'"{op}"']
        hidden = list(dict.fromkeys(self.hidden))
        used = {*(code(one) for one in self.saved), *self.fixed} & set(self.outputs)
        if hidden or (used - {"output"}) or (len(self.outputs) > 1 and self.is_named):
            options.append(f"outputs={tuple_of([*self.outputs, *hidden])}")
        options += [f"hidden={tuple_of(hidden)}"] if hidden else []
        options += [f"non_differentiable={tuple_of(self.fixed)}"] if self.fixed else []
        values = [*self._copies, *hidden]
        is_tuple = self.is_tuple or bool(hidden)
        text = ", ".join(values) + ("," if is_tuple and len(values) == 1 else "")
        returned = f"tuple[{', '.join(['Tensor'] * len(values))}]" if is_tuple else "Tensor"
        last = cst.ensure_type(cst.parse_statement(f"return {text}"), cst.SimpleStatementLine)
        own = [] if self._node.get_docstring() is not None else docstring
        return self._node.with_changes(
            name=cst.Name(name),
            params=self._node.params.with_changes(params=[self._annotated(one) for one in self._own.values()]),
            decorators=[cst.Decorator(cst.parse_expression(f"custom_op({', '.join(options)})"))],
            returns=cst.Annotation(cst.parse_expression(returned)),
            body=self._node.body.with_changes(
                body=[*own, *self._statements, self._last.with_changes(body=[*self._last.body[:-1], *last.body])]
            ),
            leading_lines=[one for one in self._node.leading_lines if one.comment],
        )

    def _annotated(self, parameter: cst.Param) -> cst.Param:
        text = self.types[parameter.name.value]
        return parameter.with_changes(
            annotation=cst.Annotation(cst.parse_expression(text)),
            equal=cst.AssignEqual() if parameter.default else parameter.equal,
        )


def parameters_of(method: cst.FunctionDef, *, has_ctx: bool) -> dict[str, cst.Param]:
    """Return the parameters of a method by name, without `cls` and ctx; raise if it takes `*args` or uses `cls`."""
    parameters = list(method.params.params)
    if not isinstance(method.params.star_arg, cst.MaybeSentinel) or method.params.star_kwarg:
        raise NotMechanical(f"{method.name.value} takes *args")
    if any(code(one.decorator) == "classmethod" for one in method.decorators):
        cls = parameters.pop(0).name.value
        if {cls, "super"} & set(names_in(method.body)):
            raise NotMechanical(f"{method.name.value} uses {cls}")
    return {one.name.value: one for one in (parameters[1:] if has_ctx else parameters)}


def _root_of(value: cst.BaseExpression) -> str:
    while not isinstance(value, cst.Name):
        method = value.func if isinstance(value, cst.Call) else value
        if isinstance(method, cst.Attribute) and VIEW.fullmatch(method.attr.value):
            value = method.value
        elif isinstance(value, cst.Subscript):
            value = value.value
        else:
            return ""
    return value.value


def _written_in(node: cst.CSTNode) -> list[str]:
    """Return the variables that code writes to in place: `x[0] = 1`, `x += 1`, `x.add_(1)`, `add_(x)`."""
    targets = [getattr(one, "target", None) for one in m.findall(node, m.AssignTarget() | m.AugAssign())]
    found = [code(one.value) for one in targets if isinstance(one, (cst.Subscript, cst.Attribute))]
    found += [name for one in m.findall(node, m.AugAssign()) for name in targets_in(one)]
    for call in m.findall(node, m.Call()):
        assert isinstance(call, cst.Call)
        if isinstance(call.func, cst.Attribute) and _is_in_place(call.func.attr.value):
            found.append(code(call.func.value))
        if _is_in_place(code(call.func).rpartition(".")[2]) and call.args:
            found.append(code(call.args[0].value))
    return found


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__") and name != "requires_grad_"


def _changed_in(statement: cst.BaseStatement) -> list[str]:
    """Return the variables that a statement assigns to, writes to, or calls a method of for its effect."""
    one = only_part(statement)
    is_method = isinstance(one, cst.Expr) and m.matches(one.value, m.Call(func=m.Attribute(m.Name())))
    called = [code(one.value.func.value)] if is_method else []  # type: ignore[union-attr]
    return [*targets_in(statement), *_written_in(statement), *called]


class _Facts(cst.CSTTransformer):
    """Replaces `x.shape` by `meta.x.shape`, and records other uses of tensors."""

    def __init__(self, tensors: Sequence[str]) -> None:
        super().__init__()
        self._tensors = tensors
        self.others: list[str] = []

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return not self._is_fact(node)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if self._is_fact(original_node):
            return cst.parse_expression(f"meta.{code(original_node)}")
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        method = original_node.func
        if not isinstance(method, cst.Attribute) or method.attr.value not in METHODS or not self._is_fact(method):
            return updated_node
        index = f"[{code(original_node.args[0].value)}]" if original_node.args else ""
        return cst.parse_expression(f"meta.{code(method.value)}.{METHODS[method.attr.value]}{index}")

    def _is_fact(self, node: cst.Attribute) -> bool:
        is_known = node.attr.value in FACTS or node.attr.value in METHODS
        return is_known and isinstance(node.value, cst.Name) and node.value.value in self._tensors

    def visit_Name(self, node: cst.Name) -> None:
        if node.value in self._tensors:
            self.others.append(node.value)
