"""No name in generated source can be one of the op's: the generator gives its own names spellings that are free."""

from __future__ import annotations

import ast
import enum
import itertools
import keyword

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from tables import each
from torch import Tensor

import custom_autograd.execution.source as sources
from custom_autograd import custom_op
from custom_autograd.core.errors import DeclarationError, RegistrationError
from slow_cases import slow_but_every

NUMBERS = itertools.count()


class Mode(enum.Enum):
    SINE = 1
    COSINE = 2


# ------------------------------------------------------------------------ ops of every kind, under any names


FUNCTIONAL = """
@custom_op("{op}", outputs=("{out}", "{spare}"), hidden=("{spare}",))
def op({x}: Tensor, {y}: Tensor, {n}: float = 1.5) -> tuple[Tensor, Tensor]:
    return {x} * {y} * {n}, {y} * {n}

@op.register_backward
def backward(grad_{out}, {x}, {y}, {n}, {spare}, needs):
    return {{"{x}": grad_{out} * {spare}, "{y}": grad_{out} * {x} * {n} if needs.{y} else None}}
"""
INTEGERS = """
@custom_op("{op}", outputs=("{out}", "{spare}"))
def op({x}: Tensor, {y}: Tensor, {n}: bool = False) -> tuple[Tensor, Tensor]:
    return {x}[{y}.long()] * (3 if {n} else 2), {y}.long() * 1

@op.register_grad("{x}")
def gradient(grad_{out}, {spare}, {n}, meta):
    own_factor = 3 if {n} else 2
    return TENSORS.zeros(meta.{x}.shape, dtype=grad_{out}.dtype).index_add(0, {spare}, grad_{out} * own_factor)

@op.register_grad("{y}")
def other(grad_{out}):
    return None
"""
WRITING = """
@custom_op("{op}", mutates_args=("{x}",), outputs=("{out}",))
def op({x}: Tensor, {y}: Tensor, {n}: float = 1.5) -> Tensor:
    {out}_before = {x} * 1
    {x}.mul_({y} * {n})
    return {out}_before

@op.register_backward
def backward(grad_{x}, grad_{out}, {y}, {n}, {out}):
    return {{"{x}": grad_{x} * {y} * {n} + grad_{out}, "{y}": grad_{x} * {out} * {n}}}
"""
LISTS = """
@custom_op("{op}", outputs=("{out}",))
def op({x}: list[Tensor], {y}: Tensor | None = None, *, {n}: str = "$len(x) is int", {m}: int = 3) -> list[Tensor]:
    assert {n} == "$len(x) is int"
    return [{x}[0] * {m} + ({x}[1] if {y} is None else {y} * {x}[1]), {x}[1] * 1]

@op.register_backward
def backward(grad_{out}, {x}, {y}, {m}):
    own_first, own_second = grad_{out}
    return {{
        "{x}": [own_first * {m}, (own_first if {y} is None else own_first * {y}) + own_second],
        "{y}": None if {y} is None else own_first * {x}[1],
    }}
"""
ENUMS = """
@custom_op("{op}", outputs=("{out}",))
def op({x}: Tensor, {y}: Tensor, {n}: Mode = Mode.COSINE, *, {m}: float = 2.0) -> Tensor:
    return ({x}.sin() if {n} is Mode.SINE else {x}.cos()) * {y} * {m}

@op.register_grad("{x}")
def gradient(grad, {x}, {y}, {n}, {m}):
    return grad * ({x}.cos() if {n} is Mode.SINE else -{x}.sin()) * {y} * {m}

@op.register_grad("{y}")
def other(grad, {x}, {n}, {m}):
    return grad * ({x}.sin() if {n} is Mode.SINE else {x}.cos()) * {m}
"""
CONTAINERS = """
@custom_op("{op}", outputs=("{out}",))
def op({x}: tuple[Tensor, Tensor], {y}: dict[str, Tensor], {n}: float = 1.5) -> Tensor:
    return {x}[0] * {x}[1] * {y}["k"] * {n}

@op.register_backward
def backward(grad, {x}, {y}, {n}):
    return {{
        "{x}": (grad * {x}[1] * {y}["k"] * {n}, grad * {x}[0] * {y}["k"] * {n}),
        "{y}": {{"k": grad * {x}[0] * {x}[1] * {n}}},
    }}
"""
DROP_IN = """
@custom_op("{op}", outputs=("{out}",))
def op({x}: Tensor, {y}: Tensor, {n}: float = 1.5) -> Tensor:
    return {x} * {y} * {n}

def setup(ctx, inputs, output):
    ctx.keep_{n}, ctx.keep_{y} = inputs[2], inputs[1]
    ctx.save_for_backward(inputs[0])

def backward(ctx, grad):
    return grad * ctx.keep_{y} * ctx.keep_{n}, grad * ctx.saved_tensors[0] * ctx.keep_{n}, None

op.register_autograd(backward, setup_context=setup)
"""
JVP = """
@custom_op("{op}", outputs=("{out}",))
def op({x}: Tensor, {y}: Tensor, {n}: float = 1.5) -> Tensor:
    return {x} * {y} * {n}

@op.register_backward
def backward(grad, {x}, {y}, {n}):
    return grad * {y} * {n}, grad * {x} * {n}

@op.register_jvp
def jvp(tangent_{x}, tangent_{y}, {x}, {y}, {n}):
    own_first = 0 * {x} if tangent_{x} is None else tangent_{x} * {y} * {n}
    return own_first if tangent_{y} is None else own_first + tangent_{y} * {x} * {n}
"""


def written(op, x, y, /, **values):
    copy = x * 1
    before = op(copy, y, **values)
    return copy + 3 * before


KINDS = {
    "functional": (FUNCTIONAL, lambda op, x, y, n, m: op(x, y, **{n: 2.5})),
    "functional, default": (FUNCTIONAL, lambda op, x, y, n, m: op(x, y)),
    "integers": (INTEGERS, lambda op, x, y, n, m: op(x, torch.tensor([1, 0, 1]), False)[0]),
    "writing": (WRITING, lambda op, x, y, n, m: written(op, x, y, **{n: 2.5})),
    "lists": (LISTS, lambda op, x, y, n, m: sum(op([x, y], x * 1, **{m: 2}))),
    "lists, default": (LISTS, lambda op, x, y, n, m: sum(op([x, y]))),
    "enums": (ENUMS, lambda op, x, y, n, m: op(x, y, Mode.SINE, **{m: 3.0})),
    "containers": (CONTAINERS, lambda op, x, y, n, m: op((x, y), {"k": x * 2}, **{n: 2.5})),
    "drop-in": (DROP_IN, lambda op, x, y, n, m: op(x, y, 2.5)),
    "jvp": (JVP, lambda op, x, y, n, m: op(x, y, **{n: 2.5})),
}
PLAIN = {"x": "x", "y": "y", "n": "n", "m": "m", "out": "out", "spare": "spare"}


def declared(template, names):
    """An op of one kind, under some names."""
    scope = {"custom_op": custom_op, "Tensor": Tensor, "Mode": Mode, "TENSORS": torch}
    exec(template.format(op=f"names::op_{next(NUMBERS)}", **names), scope)
    return scope["op"]


def outcomes(kind, op, names):
    """Values, gradients, and both under transforms: of the first call, and of those that find the op known."""
    call = KINDS[kind][1]
    x, y, v = torch.tensor([[0.3, 0.5, 0.7], [1.1, 1.3, 1.7], [0.2, 0.4, 0.6]], dtype=torch.float64)

    def f(x, y):
        return call(op, x, y, names["n"], names["m"])

    found = []
    for _ in range(2):
        found.append(f(x, y))
        leaves = x.clone().requires_grad_(), y.clone().requires_grad_()
        found += torch.autograd.grad(f(*leaves), leaves, v, allow_unused=True)
    found.append(torch.func.grad(lambda x: (f(x, y) * v).sum())(x))
    found += torch.func.jvp(lambda x: f(x, y), (x,), (v,))
    return [None if value is None else value.tolist() for value in found]


# ------------------------------------------------------------------------------------------ whatever names they have


def names_in(text):
    """Every identifier in a source: variables, parameters, functions, keywords, and attributes of ctx."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        fields = (getattr(node, field, None) for field in ("id", "arg", "name", "attr"))
        found |= {name for name in fields if isinstance(name, str) and name.isidentifier()}
    return sorted(name for name in found if not keyword.iskeyword(name))


HARVEST = sorted({name for template, _ in KINDS.values() for name in names_in(declared(template, PLAIN).source)})


def test_a_rule_that_takes_metadata_refuses_a_name_that_every_object_has():
    with pytest.raises(RegistrationError, match="takes 'meta', whose attribute '__dict__' is Python's own"):
        declared(INTEGERS, {**PLAIN, "x": "__dict__"})


def test_the_harvest_has_the_names_that_once_collided():
    assert {"_", "needs_x", "given_x", "from_dispatcher_n", "result", "ctx", "kept_n"} <= set(HARVEST)


KEYWORDS = ("keyset", "self", "chosen", "context", "fake", "function", "key", "overload", "owner", "traced")


@each("name", KEYWORDS)
@each("kind", ["functional", "writing", "lists", "enums", "containers", "jvp"])
def test_a_keyword_can_have_the_name_of_a_parameter_that_arguments_pass_by(kind, name):
    template = KINDS[kind][0]
    names = {**PLAIN, "m" if "{m}" in template else "n": name}

    assert outcomes(kind, declared(template, PLAIN), PLAIN) == outcomes(kind, declared(template, names), names)


@pytest.mark.parametrize("kind", slow_but_every(3, KINDS))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(drawn=st.data())
def test_an_op_computes_the_same_under_any_names(kind, drawn):
    template = KINDS[kind][0]
    roles = [role for role in PLAIN if "{" + role + "}" in template]
    choices = [st.one_of(st.just(PLAIN[role]), st.sampled_from(HARVEST)) for role in roles]
    chosen = drawn.draw(st.tuples(*choices).filter(lambda names: len(set(names)) == len(names)))
    names = {**PLAIN, **dict(zip(roles, chosen, strict=True))}
    try:
        op = declared(template, names)
    except (DeclarationError, RegistrationError, SyntaxError):  # a rule could not tell two names apart
        reject()

    assert outcomes(kind, declared(template, PLAIN), PLAIN) == outcomes(kind, op, names)


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_in_generated_source_is_the_ops_or_is_chosen_to_be_free(kind, monkeypatch):
    texts = []
    compile_source = sources.compile_source
    own = sources.Source.own

    def marked(self, name):
        self._own[name] = f"own_{name.replace('$', '_')}"
        return own(self, name)

    monkeypatch.setattr(sources.Source, "own", marked)
    for module in ("source", "recording_code"):
        monkeypatch.setattr(
            f"custom_autograd.execution.{module}.compile_source",
            lambda text, name, namespace: texts.append(text) or compile_source(text, name, namespace),
        )
    template = KINDS[kind][0]
    op = declared(template, PLAIN)
    found = outcomes(kind, op, PLAIN)
    stray = {
        node.id if isinstance(node, ast.Name) else node.arg
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Name, ast.arg))
    }
    stray = {name for name in stray if not name.startswith("own_")}
    flat = {*op._record.declaration.schema.argument_names, *op._record.declaration.schema.output_names}

    assert len(texts) >= 2
    assert stray <= {*PLAIN.values(), *flat, op._record.declaration.name.name}
    assert found[0] is not None


# --------------------------------------------------------------------------------------- what once went wrong


def test_an_unused_parameter_may_be_called_underscore():
    op = custom_op("names::unused", lambda x, _: x * 3 if _ else x * 1, schema="(Tensor x, bool _=False) -> Tensor")

    assert [1.0] * 3 == [op(torch.ones(1), False).item() for _ in range(3)]


@each("text", ["$result", "a$b", r"\$x", "len(x) is int", "'$'", "${x}"])
def test_a_default_text_reaches_the_kernel_as_it_is(text):
    @custom_op(f"names::text_{next(NUMBERS)}")
    def op(x: Tensor, reduction: str = text, len: int = 0) -> Tensor:
        assert text == reduction
        return x * 1

    assert [1.0] * 3 == [op(torch.ones(1)).item() for _ in range(3)]


def test_names_that_get_underscores_get_different_ones():
    source = sources.Source(["needs_x", "x", "x_"])
    source.line("$needs$x = $needs$x_ = $needs_x")

    assert "needs_x_ = needs_x__ = needs_x___\n" == source.text


def test_an_optional_list_that_is_left_out_needs_no_gradient():
    @custom_op("names::optional_list")
    def op(x: Tensor, others: list[Tensor] | None = None) -> Tensor:
        return x * 2

    op.register_grad("x")(lambda grad, x: grad * 2)
    op.register_grad("others")(lambda grad, others: None)
    x = torch.ones(2, requires_grad=True)

    assert [2.0, 2.0] == torch.autograd.grad(op(x).sum(), x)[0].tolist()


NAMES_OF_OURS = ["pack", "unpack", "materializes", "_saved", "_ctx", "known", "layout", "forward", "is_odd"]


@each("name", NAMES_OF_OURS)
def test_a_drop_in_rule_may_keep_an_attribute_of_any_name(name):
    op = custom_op(f"names::attribute_{next(NUMBERS)}", lambda x: x * 2, schema="(Tensor x) -> Tensor")

    def setup(ctx, inputs, output):
        setattr(ctx, name, inputs[0] * 2)

    op.register_autograd(lambda ctx, grad: grad * getattr(ctx, name), setup_context=setup)
    x = torch.full((2,), 3.0, requires_grad=True)
    eager = [torch.autograd.grad(op(x).sum(), x)[0].tolist() for _ in range(3)]

    assert [[6.0, 6.0]] * 3 == eager
    assert [6.0, 6.0] == torch.func.grad(lambda x: op(x).sum())(x.detach()).tolist()
