"""A call with containers: what it refuses, what compiles again, what is exported, saved and loaded."""

# ruff: noqa: E501 - a message is as long as it is

import inspect
import sys
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from containers import CURVE, ROWS, Affine, Block, State, affine, anything, block, named, nested, swapped, weighted
from expecttest import assert_expected_inline
from messages.shown import message, on_lines
from tables import each
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from custom_autograd import DeclarationError, KernelError, custom_op
from python_server import run_python

X = torch.ones(2, 3)


def refusal_of(function, *args, **kwargs):
    return message(lambda: function(*args, **kwargs), KernelError)


def test_a_tuple_for_a_record_is_refused():
    assert_expected_inline(
        refusal_of(affine, X, (X, None)),
        """\
KernelError: containers::affine: argument 'p' is not what was declared
  expected   Affine(weight, bias, times)
  found      a tuple of 2
  declared   containers.py:81
  do         pass Affine(weight, bias, times) as 'p'""",
    )


@dataclass
class LargeState(State):
    more: Tensor


@dataclass
class Halved:
    value: Tensor
    scale: float

    def __post_init__(self):
        self.scale = self.scale / 2


@custom_op("structured_calls::halved", reference=True)
def halved(x: Tensor, h: Halved, s: State | None = None) -> Tensor:
    return x * h.value * h.scale


def test_what_an_instance_became_when_it_was_made_is_kept():
    assert [4.0] == halved(torch.ones(1), Halved(torch.ones(1), 8.0)).tolist()
    compiled = torch.compile(lambda x: halved(x, Halved(x, 8.0)), backend="eager", fullgraph=True)
    assert [4.0] == compiled(torch.ones(1)).tolist()


def test_what_is_refused():
    odd = Halved(X, 1.0)
    odd.more = 3
    found = [
        refusal_of(block, X, Block(3, CURVE, [X])),
        refusal_of(block, X, Block(Affine([X], None), CURVE, [X])),
        refusal_of(halved, X, odd),
        refusal_of(halved, X, Halved(X, 1.0), LargeState(X, X, X)),
        refusal_of(halved, X, Halved(X, 1.0), 3),
        refusal_of(affine, X, Affine(X, None, 1.5)),
        refusal_of(weighted, X, {"a": X, "b": 2}),
        refusal_of(swapped, {"left": X}),
        refusal_of(nested, (X, (X, 2, 3))),
        refusal_of(anything, X, {"on": False, "more": [], "set": {1}}),
    ]

    assert_expected_inline(
        on_lines(*found),
        """\
containers::block: argument 'b.affine' is not what was declared | expected Affine(weight, bias, times) | found int: 3 | do pass Affine(weight, bias, times) as 'b.affine'
containers::block: argument 'b.affine.weight' is not what was declared | expected a tensor | found a list of 1 | do pass a tensor as 'b.affine.weight'
structured_calls::halved: argument 'h' is not what was declared | expected Halved(value, scale) | found one with attributes in addition to its fields: 'more' | do pass Halved(value, scale) as 'h'
structured_calls::halved: argument 's' is not what was declared | expected State(hidden, cell) or None | found LargeState: LargeState(hidden=tensor([[1., 1., 1.], | [1., 1., 1.] | do pass State(hidden, cell) or None as 's'
structured_calls::halved: argument 's' is not what was declared | expected State(hidden, cell) or None | found int: 3 | do pass State(hidden, cell) or None as 's'
containers::affine: argument 'p.times' is not what was declared | expected an int | found float: 1.5 | do pass an int as 'p.times'
containers::weighted: argument weights['b'] is not what was declared | expected a tensor | found int: 2 | do pass a tensor as weights['b']
containers::swapped: argument 'p' is not what was declared | expected a dict with the keys 'left', 'right' | found a dict with the keys 'left' | do pass a dict with the keys 'left', 'right' as 'p'
containers::nested: argument 'pair[1]' is not what was declared | expected a tuple of 2 | found a tuple of 3 | do pass a tuple of 2 as 'pair[1]'
containers::anything: argument table['set'] is not what was declared | expected tensors, numbers, strings, dtypes, Enums, and containers of those | found set: {1} | do pass tensors, numbers, strings, dtypes, Enums, and containers of those as table['set']""",
    )


@pytest.mark.skipif(torch.__version__ < "2.13", reason="Dynamo of torch 2.11 cannot trace an exception from another")
def test_a_refusal_is_the_same_while_compiling(fresh_compiler):
    with pytest.raises(Exception, match=r"not what was declared|KernelError"):
        torch.compile(lambda x: weighted(x, {"a": 2}), backend="eager", fullgraph=True)(X)


def test_too_few_arguments_are_refused_as_python_does():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'p'"):
        affine(X)


def takes_sets(x: Tensor, pair: tuple[Tensor, set[int]]) -> Tensor:
    return x


def gives_sets(x: Tensor) -> tuple[Tensor, tuple[Tensor, set[int]]]:
    return x, (x, set())


def gives_dict(x: Tensor) -> dict[str, Tensor]:
    return {"a": x}


def clashes(x: Tensor, p: Affine, p_weight: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (takes_sets, r"'pair\[1\]' has an annotation that is not supported"),
        (gives_sets, "the output 'output_1_1' has an annotation that is not supported"),
        (gives_dict, r"the return annotation is not supported(.|\n)*outputs="),
        (clashes, "'p_weight' and 'p.weight' both travel under the name 'p_weight'"),
    ],
)
def test_what_cannot_be_declared_is_refused(function, message):
    with pytest.raises(DeclarationError, match=message):
        custom_op("structured_calls::refused", function)


def compilations(function, calls):
    counter = CompileCounter()
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for arguments in calls:
        torch.testing.assert_close(compiled(*arguments), function(*arguments))
    return counter.frame_count


def test_ints_in_a_record_compile_twice_at_most(fresh_compiler):
    assert 2 >= compilations(lambda x, n: affine(x, Affine(X, None, n)), [(X, n) for n in range(2, 11)])


def test_ints_in_a_dict_compile_twice_at_most(fresh_compiler):
    def function(x, n):
        return anything(x, {"on": True, "gain": X, "more": [(X, n)]})

    assert 2 >= compilations(function, [(X, n) for n in range(2, 11)])


def test_sizes_compile_twice_at_most(fresh_compiler):
    def function(x):
        return weighted(x, {"a": x, "b": x * 2})

    assert 2 >= compilations(function, [(torch.ones(n, 3),) for n in range(2, 11)])


def test_other_tensors_compile_once(fresh_compiler):
    assert 1 == compilations(weighted, [(X, {"a": X * n}) for n in range(9)])


def test_another_structure_compiles_again(fresh_compiler):
    tables = [{"a": X}, {"a": X, "b": X}, {"b": X}, {}]

    assert 4 == compilations(weighted, [(X, table) for table in tables])


def test_the_graph_has_the_flat_op():
    exported = torch.export.export(Calls(), (X,))
    targets = [node.target for node in exported.graph.nodes if node.op == "call_function"]

    assert weighted.overload in targets


class Calls(torch.nn.Module):
    def forward(self, x):
        gains = weighted(x, {"gain": x})
        return block(gains, Block(Affine(x, None), CURVE, [x])).hidden


LOADS = """
import sys, torch
sys.path.insert(0, sys.argv[2])
import containers
program = torch.export.load(sys.argv[1])
print(program.module()(torch.ones(2, 3)).sum().item())
"""


@pytest.mark.slow
def test_an_exported_program_runs_in_another_process(tmp_path):
    file = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(Calls(), (X,)), file)

    folder = str(Path(sys.modules["containers"].__file__).parent)
    finished = run_python("-c", LOADS, file, folder)

    assert 0 == finished.returncode, finished.stderr
    assert pytest.approx(Calls()(X).sum().item()) == float(finished.stdout)


def test_the_signature_is_the_authors():
    assert list(inspect.signature(block).parameters) == ["x", "b", "power"]
    assert "power: int = 2" in str(inspect.signature(block))


def test_results_are_of_the_declared_class():
    assert {"left", "right"} == set(swapped({"left": X, "right": X}))
    assert ["sum", "product"] == list(named({"a": [X], "b": [X]}))
    assert "State" == type(block(X, Block(Affine(X, None), CURVE, [X]))).__name__


def test_the_source_shows_what_is_taken_apart():
    assert "p_weight, p_bias, p_times, = take_p(p)" in affine.source


@pytest.mark.parametrize("name", ["dict", "nested tuples"])
def test_checkpointing_recomputes_it(name):
    row = ROWS[name]
    tensors = row.tensors()
    outputs = torch.utils.checkpoint.checkpoint(row.call, *tensors, use_reentrant=False)

    found = torch.autograd.grad(sum(y.sum() for y in outputs), tensors)
    torch.testing.assert_close(found, torch.autograd.grad(sum(y.sum() for y in row.plain(*tensors)), tensors))


class Percent(dict):
    def __getitem__(self, key):
        return super().__getitem__(key) * 100


class Attributes(OrderedDict):
    __getattr__ = dict.__getitem__


class Reversed(list):
    def __getitem__(self, index):
        return super().__getitem__(-1 - index)


class Row(tuple):
    pass


@custom_op("structured_calls::scaled", reference=True)
def scaled(
    x: Tensor,
    gains: dict[str, Tensor] | None = None,
    rows: list[tuple[Tensor, int]] | None = None,
    things: dict[str, Any] | list[Any] | None = None,
    pair: tuple[Tensor, int] | None = None,
) -> Tensor:
    return x * (1 if gains is None else gains["up"])


SUBCLASSES = {
    "dict": {"gains": Percent(up=X)},
    "OrderedDict": {"gains": Attributes(up=X)},
    "list": {"rows": Reversed([(X, 1)])},
    "tuple": {"pair": Row((X, 1))},
    "list for a tuple": {"pair": Reversed((X, 1))},
    "dict of anything": {"things": Percent(up=X)},
    "list of anything": {"things": Reversed([X])},
    "inside": {"things": [Row((X,))]},
}


@each("case", SUBCLASSES)
def test_a_subclass_of_a_container_of_python_is_refused(case):
    """The op would look up what the class looks up otherwise."""
    ((name, value),) = SUBCLASSES[case].items()
    cls = type(value if name != "things" or case != "inside" else value[0])
    base = next(kind for kind in (dict, list, tuple) if issubclass(cls, kind))

    with pytest.raises(KernelError) as caught:
        scaled(X, **{name: value})

    assert f"argument '{name}" in caught.value.problem
    assert f"{cls.__name__}, a subclass of {base.__name__}, of which the op would see less" == caught.value.found
    assert f"make it a plain {base.__name__}: {base.__name__}(...)" == caught.value.do


@pytest.mark.parametrize("make", [dict, OrderedDict, lambda **items: defaultdict(int, items)], ids=["0", "1", "2"])
def test_dicts_of_python_are_taken(make):
    assert torch.equal(X * 3, scaled(X, make(up=X * 3)))


def test_a_named_tuple_is_a_tuple():
    Pair = namedtuple("Pair", ("x", "count"))

    assert torch.equal(X, scaled(X, pair=Pair(X, 1)))
