"""What a declaration is answered with when it cannot stand."""

# ruff: noqa: E501 - a message is as long as it is

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Literal, Optional

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from tables import each
from torch import Tensor
from torch.utils import _pytree

from custom_autograd import DeclarationError, custom_op
from custom_autograd.registration.registry import find_record


def declare(function, name="words::op", **options):
    return message(lambda: custom_op(name, function, **options))


def good(x: Tensor, n: int = 2) -> Tensor:
    return x * n


def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 1, x * 2


def write(x: Tensor) -> Tensor:
    return x


def two_writes(x: Tensor, y: Tensor) -> Tensor:
    return x


TWO = torch.ones(2)

custom_op("words::taken", good)
torch.library.custom_op("words::others", good, mutates_args=())


def test_names():
    assert_expected_inline(
        together(
            declare(good, "square"),
            declare(good, "words::square.default"),
            declare(good, "words::to-square"),
            declare(good, "words::lambda"),
            declare(good, "aten::square"),
            declare(good, 3),
        ),
        """\
DeclarationError
  declared   FILE.py:LINE
square: the name has no namespace
  expected   'namespace::name' or 'namespace::name.overload'
  found      'square'
  do         name it, say, 'mylib::square'
words::square.default: 'default' is the overload of a name without one
  expected   'namespace::name' or 'namespace::name.overload'
  found      'words::square.default'
  do         write 'words::square'
words::to-square: namespace and name must be Python identifiers
  expected   'namespace::name' or 'namespace::name.overload'
  found      'words::to-square'
  do         use letters, digits and underscores
words::lambda: 'lambda' is a keyword of Python
  expected   'namespace::name' or 'namespace::name.overload'
  found      'words::lambda'
  do         name it, say, 'words::lambda_op'
aten::square: the namespace 'aten' is reserved for PyTorch
  expected   'namespace::name' or 'namespace::name.overload'
  found      'aten::square'
  do         use the name of your library; reserved are 'at', 'aten', 'c10d', 'prim', 'prims', 'pytorch', 'quantized', 'torch'
3: the name of an op is a string
  expected   'namespace::name' or 'namespace::name.overload'
  found      3
  do         write custom_op('namespace::name')""",
    )


def test_names_that_are_taken():
    assert_expected_inline(
        together(
            declare(pair, "words::taken"),
            declare(good, "words::others"),
            declare(good, "words::name"),
        ),
        """\
DeclarationError
words::taken: the op is already declared
  found      one at FILE.py:LINE, another at FILE.py:LINE
  do         rename one of them, for example 'words::taken_2', or pass replace=True if that is meant
words::others: an op of that name exists, and was not declared through custom_autograd
  declared   FILE.py:LINE
  do         rename this one, for example 'words::others_2', or remove the other declaration
words::name: 'name' cannot be the name of an op: torch.ops.words.name is something else
  declared   FILE.py:LINE
  do         rename it, for example 'words::name_op'""",
    )


def test_objects_that_are_no_functions():
    assert_expected_inline(
        together(
            declare(3),
            re.sub("0x[0-9a-f]+", "0x...", declare(classmethod(good))),
        ),
        """\
DeclarationError: words::op
  declared   FILE.py:LINE
the declared object is not callable
  expected   a function
  found      3
the declared object is not callable
  expected   a function
  found      <classmethod(<function good at 0x...>)>
  do         declare what Class.method gives""",
    )


def test_object_without_a_signature():
    assert_expected_inline(
        declare(max),
        """\
DeclarationError: words::op: the decorated object has no signature
  expected   a Python function, or schema=
  found      <built-in function max>
  declared   builtin_function_or_method max
  do         pass schema=, or wrap it in a function with annotations""",
    )


def taking(annotation, *default):
    """Return a function with an argument of a type."""

    def f(x: Tensor, value: annotation) -> Tensor:
        return x

    f.__defaults__ = default or None
    return f


def without_annotation(x, n: int) -> Tensor:
    return x


def of_any_name(x: Tensor, **options: int) -> Tensor:
    return x


def without_result(x: Tensor):
    return x


def returning_a_dict(x: Tensor) -> dict[str, Tensor]:
    return {"x": x}


class Batch:
    """A class like TensorDict: registered by its own library, with a context that nothing writes down."""


_pytree.register_pytree_node(Batch, lambda batch: ([], type(batch)), lambda values, cls: cls())


def test_annotations():
    assert_expected_inline(
        together(
            declare(without_annotation),
            declare(taking(tuple[int, set[str]])),
            declare(of_any_name),
            declare(taking("Nowhere")),
            declare(taking("Tensor[")),
            declare(taking(tuple[Tensor, Batch])).replace(Batch.__module__, "MODULE"),
            declare(without_result),
            declare(returning_a_dict),
        ),
        """\
DeclarationError: words::op
  declared   FILE.py:LINE
argument 'x' has no type annotation
  expected   a type, such as Tensor, int, float, str, list[Tensor] or Tensor | None
  do         annotate each, or pass schema=; a function or a class takes static=('x',)
'value[1]' has an annotation that is not supported
  expected   tensors, numbers, strings, dtypes, Enums, and containers of those
  found      set[str]
  do         change the annotation, or leave it out of the container
parameter '**options: int' takes arguments of any name, and a schema names each
  expected   parameters with names of their own
  do         give each argument a name of its own; '*' before them makes them keyword-only
the annotation of 'value' cannot be read
  found      'Nowhere'
  do         define or import the type above the op, and not under `if TYPE_CHECKING:`: there it is not known yet
the annotations cannot be read: Forward reference must be an expression -- got 'Tensor['
  do         correct the annotation, or pass schema=
'value[1]' has an annotation that is not supported
  expected   tensors, numbers, strings, dtypes, Enums, and containers of those
  found      MODULE.Batch
  do         change the annotation, or leave it out of the container
the return value has no type annotation
  expected   '-> Tensor', '-> tuple[Tensor, Tensor]', '-> None', ...
  do         annotate it, or pass schema=
the return annotation is not supported
  expected   Tensor, Tensor | None, list[Tensor], int, float, bool, or a tuple of those
  found      dict[str, torch.Tensor]
  do         return a NamedTuple, a dataclass, a TypedDict, or a dict with its keys in outputs=""",
    )


def test_argument_of_an_unsupported_type():
    assert_expected_inline(
        declare(taking(set[int])),
        """\
DeclarationError: words::op: argument 'value' has an annotation that is not supported
  expected   Tensor, bool, int, SymInt, float, complex, Number, str, dtype, device, layout, memory_format, qscheme, Size, Generator, optionals, lists and tuples of them, Literal, Enum, classes registered with torch, and dicts, NamedTuples, dataclasses and slices of all these
  found      set[int]
  declared   FILE.py:LINE
  do         change the annotation, or split the argument into ones the dispatcher can hold""",
    )


NO_CONTEXT = "annotate 'value' with a dataclass or a dict[str, Tensor] of what it holds, or register the class as a pytree node with serialized_type_name="


@each(
    "kind, found, do",
    [
        (
            Callable[[Tensor], Tensor] | None,
            str(Optional[Callable[[Tensor], Tensor]]).removeprefix("typing."),  # noqa: UP045 - newer Pythons write | None
            "pass static=('value',) to custom_op: it then takes functions and classes that can be imported",
        ),
        (torch.FloatTensor, "torch.FloatTensor", "annotate it as Tensor, and check the dtype in the kernel"),
        (Batch, f"{__name__}.Batch", NO_CONTEXT),
        (type("Unknown", (), {}), f"{__name__}.Unknown", NO_CONTEXT),
    ],
)
def test_argument_of_another_unsupported_type(kind, found, do):
    lines = declare(taking(kind)).splitlines()

    assert f"  found      {found}" == lines[2]
    assert f"  do         {do}" == lines[4]


def test_defaults():
    assert_expected_inline(
        together(
            declare(taking(int, "two")),
            declare(taking(int, 2**63)),
            declare(taking(Tensor, torch.ones(2))),
            declare(taking(Literal["left", "right"], "top")),
        ),
        """\
DeclarationError: words::op
  declared   FILE.py:LINE
argument 'value' has a default that does not fit its type
  expected   int
  found      'two'
  do         change the default or the annotation; a tensor can have no default but None
argument 'value' has a default that does not fit its type
  expected   int
  found      9223372036854775808
  do         change the default or the annotation; a tensor can have no default but None
argument 'value' has a default that does not fit its type
  expected   torch.Tensor
  found      tensor([1., 1.])
  do         change the default or the annotation; a tensor can have no default but None
the default of argument 'value' does not fit its type: expected one of 'left', 'right', found 'top'
  do         change the default, or the annotation""",
    )


@each("kind, default", [(str, "a\ud800"), (list[str], ["a\ud800"])], ids=["text", "list"])
def test_default_with_half_of_a_surrogate_pair(kind, default):
    """It raised torch's cast error at each call."""
    assert_expected_inline(
        declare(taking(kind, default)).replace(repr(default), "DEFAULT"),
        """\
DeclarationError: words::op: argument 'value' has a default that the dispatcher cannot hold
  expected   text that UTF-8 can hold
  found      DEFAULT, with half of a surrogate pair
  declared   FILE.py:LINE
  do         write the character itself (chr(0x1F600)), or take its number as an int""",
    )


def test_names_in_options():
    assert_expected_inline(
        together(
            declare(good, static=("m",)),
            declare(good, schema="(Tensor x, int n) -> Tensor", static=("n",)),
            declare(good, mutates_args="y"),
            declare(good, mutates_args="n"),
            declare(pair, outputs=("out", "rstd"), hidden="rst"),
            declare(pair, outputs=("out", "rstd"), hidden=("out", "rstd")),
            declare(good, non_differentiable=("z",)),
            declare(good, device_types=("cpu", "cuda:1")),
        ),
        """\
DeclarationError: words::op
  declared   FILE.py:LINE
static= names 'm', which is not an argument
  expected   'x', 'n'
  found      'm'
  do         name one of 'x', 'n'
the static argument 'n' does not travel as a string
  expected   'str n' or 'str? n=None' in the schema
  found      int
  do         its type in a schema is str: the name of what is passed
mutates_args names 'y', which is not an argument
  expected   'x', 'n'
  found      'y'
  do         name one of 'x', 'n'
argument 'n' is in mutates_args but holds no tensor
  expected   a Tensor or a list of Tensors
  found      int
  do         take it out of mutates_args
hidden= names 'rst', which is not an output
  expected   'out', 'rstd'
  found      'rst'
  do         did you mean 'rstd'?
every output is hidden
  do         leave at least one output visible
non_differentiable= names 'z', which is neither input nor output
  expected   'x', 'n', 'output'
  found      'z'
  do         name one of 'x', 'n', 'output'
a kernel serves every device of a type
  expected   a device type, such as 'cuda'
  found      'cuda:1'""",
    )


@pytest.mark.skipif(not hasattr(torch.Tag, "inplace"), reason="this torch has no tag of that name")
def test_op_tagged_as_writing_that_returns_something_else():
    assert_expected_inline(
        declare(two_writes, mutates_args=("x", "y"), tags=[torch.Tag.inplace]),
        """\
DeclarationError: words::op: an op tagged inplace or out returns each tensor it writes to, in order
  expected   2: 'x', 'y'
  found      1
  declared   FILE.py:LINE""",
    )


def test_schema_that_is_none():
    assert_expected_inline(
        declare(good, schema="(Tensr x) -> Tensor"),
        """\
DeclarationError: words::op: the schema cannot be parsed: unknown type specifier. Common valid schema types include Tensor, SymInt, int, float, bool, Scalar; for a full list, please see https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/README.md#func :
op(Tensr x) -> Tensor
   ~~~~~ <--- HERE
  found      (Tensr x) -> Tensor
  declared   FILE.py:LINE
  do         write it as PyTorch does: (Tensor x, int n=1, *, float? eps=None) -> (Tensor out, Tensor scale)""",
    )


def test_schemas():
    assert_expected_inline(
        together(
            declare(good, schema="op(Tensor x) -> Tensor"),
            declare(lambda x, s: x, schema='(Tensor x, str s="\ud800") -> Tensor'),
            declare(good, schema="(Tensor x, int n, int m) -> Tensor"),
            declare(good, schema="(Tensor(a!) x) -> ()"),
        ),
        """\
DeclarationError: words::op
  declared   FILE.py:LINE
the schema does not begin with '('
  expected   (Tensor x, ...) -> Tensor
  found      op(Tensor x) -> Tensor
  do         leave the name of the op out of the schema
the schema cannot be parsed: it has half of a surrogate pair
  found      '(Tensor x, str s="\\ud800") -> Tensor'
  do         write characters that UTF-8 has
the function does not fit the schema: it takes 2 of 3 positional arguments
  expected   parameters 'x', 'n', 'm'
  found      (x: torch.Tensor, n: int = 2) -> torch.Tensor
mutates_args and the schema do not agree on what is written to
  expected   mutates_args=('x',)
  found      mutates_args=()
  do         mark written arguments in the schema as 'Tensor(a!)', and name the same ones""",
    )


def test_names_of_outputs():
    assert_expected_inline(
        together(
            declare(pair, outputs=("out",)),
            declare(good, outputs=("x",)),
            declare(good, outputs=("the output",)),
        ),
        """\
DeclarationError: words::op
  declared   FILE.py:LINE
outputs= does not have one name per output
  expected   2 names
  found      1: 'out'
  do         name each value that the function returns, in order
the name 'x' is used twice among inputs and outputs
  found      'x', 'n', 'x'
  do         give the output another name through outputs=
'the output' cannot be the name of an argument or an output
  expected   Python identifiers that are not keywords
  do         rename it, so that rules can name it""",
    )


def test_device_type_that_torch_does_not_know():
    assert_expected_inline(
        declare(good, device_types="gpu"),
        """\
DeclarationError: words::op: the dispatcher refuses the op: Expected one of cpu, cuda, ipu, xpu, mkldnn, opengl, opencl, ideep, hip, ve, fpga, maia, xla, lazy, vulkan, mps, meta, hpu, mtia, privateuseone device type at start of device string: gpu
  found      (Tensor x, SymInt n=2) -> Tensor
  declared   FILE.py:LINE
  do         change what the dispatcher names, in the annotations or in schema=""",
    )


def varied(**keywords: Tensor) -> Tensor:
    return keywords["x"]


def untyped(x) -> Tensor:
    return x


def wrong_default(x: Tensor, n: int = 1.5) -> Tensor:
    return x * n


def unknown_type(x: object) -> Tensor:
    return x


def returning_a_string(x: Tensor) -> str:
    return "x"


SCHEMA = "(Tensor x) -> Tensor"
REFUSED = {
    "no namespace": ("square", good, {}),
    "empty": ("", good, {}),
    "no name": ("words::", good, {}),
    "empty namespace": ("::square", good, {}),
    "a dot in the namespace": ("a.b::square", good, {}),
    "two namespaces": ("a::b::square", good, {}),
    "an overload without a name": ("words::square.", good, {}),
    "one colon": ("words:square", good, {}),
    "two overloads": ("words::square.a.b", good, {}),
    "the default overload": ("words::square.default", good, {}),
    "a dash": ("words::to-square", good, {}),
    "a space": ("my words::square", good, {}),
    "a digit": ("words::2square", good, {}),
    "a keyword": ("words::lambda", good, {}),
    "no string": (3, good, {}),
    **{
        f"namespace {name}": (f"{name}::square", good, {})
        for name in ("aten", "prim", "prims", "torch", "pytorch", "at", "c10d")
    },
    "a schema for a bad name": ("aten::square", good, {"schema": SCHEMA}),
    "not callable": ("words::refused", 3, {}),
    "a schema without parentheses": ("words::refused", good, {"schema": "Tensor x -> Tensor"}),
    "a schema with another number": ("words::refused", write, {"schema": "(Tensor x, Tensor y) -> Tensor"}),
    "a keyword in the schema": ("words::refused", write, {"schema": "(Tensor from) -> Tensor"}),
    "a mutated argument that is not there": ("words::refused", good, {"mutates_args": ("z",)}),
    "tags": ("words::refused", good, {"tags": ("x",)}),
    "a device type": ("words::refused", good, {"device_types": "quux"}),
    "one device of a type": ("words::refused", good, {"device_types": ("cpu", "cuda:1")}),
    "checkpoint": ("words::refused", good, {"checkpoint": "x"}),
    "inline": ("words::refused", good, {"inline": "x"}),
    "too many outputs": ("words::refused", good, {"outputs": ("a", "b")}),
    "keywords": ("words::refused", varied, {}),
    "no annotation": ("words::refused", untyped, {}),
    "no annotation of the result": ("words::refused", without_result, {}),
    "a default": ("words::refused", wrong_default, {}),
    "a type": ("words::refused", unknown_type, {}),
    "a list of sets": ("words::refused", taking(list[set[Tensor]]), {}),
    "a type of the result": ("words::refused", returning_a_string, {}),
    "outputs named alike": ("words::refused", pair, {"outputs": ("a", "a")}),
    "an output named after a keyword": ("words::refused", good, {"outputs": ("lambda",)}),
    "everything hidden": ("words::refused", pair, {"hidden": ("output_0", "output_1")}),
    "None for a name": (None, good, {}),
    "a name that another library took": ("words::others", good, {}),
}


@each(("name", "function", "options"), REFUSED.values(), ids=REFUSED)
@each("is_decorator", [False, True])
def test_every_refusal_says_where_the_op_is_declared_and_leaves_nothing(name, function, options, is_decorator):
    with pytest.raises(DeclarationError) as caught:
        custom_op(name, **options)(function) if is_decorator else custom_op(name, function, **options)

    line = inspect.getsourcelines(function)[1] if inspect.isfunction(function) else r"\d+"
    assert re.fullmatch(rf"test_declaration_messages\.py:{line}", caught.value.declared)
    assert f"  declared   {caught.value.declared}" in str(caught.value).splitlines()
    assert str(caught.value).startswith(f"{name}: ")
    assert find_record(name) is None
    assert not hasattr(torch.ops.words, "refused")


@pytest.mark.parametrize("argument", ["Tensor x", "Tensor(b) x"])
def test_result_that_aliases_no_argument(argument):
    """torch.library takes it, and torch.compile, functionalize and vmap then raise."""
    assert_expected_inline(
        declare(lambda x: x * 1, schema=f"({argument}) -> Tensor(a)"),
        """\
DeclarationError: words::op: the schema declares that output 'output' aliases an argument, and no argument has its mark
  expected   a mark that an argument has, as in (Tensor(a) x) -> Tensor(a)
  found      -> Tensor(a)
  declared   FILE.py:LINE
  do         write '-> Tensor' for new memory: PyTorch cannot compile or functionalize the op as it is""",
    )


@dataclasses.dataclass
class Sizes:
    größe: Tensor


def accented(größe: Tensor) -> Tensor:
    return größe * 2


def accented_field(sizes: Sizes) -> Tensor:
    return sizes.größe * 2


@pytest.mark.parametrize(
    ("function", "options"),
    [(accented, {}), (accented_field, {}), (good, {"schema": "(Tensor x, int größe=2) -> Tensor"})],
    ids=["argument", "field", "schema"],
)
def test_names_within_a_schema_that_are_not_ascii(function, options):
    """The dispatcher's parser cuts the character in two, and raises a UnicodeDecodeError."""
    title, found, do = declare(function, **options).splitlines()[:2] + declare(function, **options).splitlines()[-1:]

    assert title == "DeclarationError: words::op: the schema has a name that is not ASCII"
    assert "größe'" in found
    assert do.startswith("  do         rename the argument, the field or the output")


def test_name_of_an_op_that_is_not_ascii():
    assert declare(good, "words::größe").startswith("DeclarationError: words::größe: the name is not ASCII\n")
