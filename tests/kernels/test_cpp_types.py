"""A C++ function has the types of its schema: torch reads a float in place of a double as another number."""

import re
import shutil

import pytest
import torch
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.kernels import KernelUnavailable, KernelWarning, cpp_kernel

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")

# By name: the function, its schema, and what is expected and found if they do not fit.
FUNCTIONS = {
    "shortfloat": ("Tensor F(Tensor x, float k)", "(Tensor x, float k) -> Tensor", "double", "a floating-point number"),
    "shortint": ("Tensor F(Tensor x, int k)", "(Tensor x, int k) -> Tensor", "int64_t", "an integer of another size"),
    "whole": ("Tensor F(Tensor x, int64_t k)", "(Tensor x, float k) -> Tensor", "double", "int64_t"),
    "truth": ("Tensor F(Tensor x, bool k)", "(Tensor x, int k) -> Tensor", "int64_t", "bool"),
    "given": (
        "Tensor F(Tensor x, std::optional<double> k)",
        "(Tensor x, float k) -> Tensor",
        "double",
        "std::optional",
    ),
    "absent": (
        "Tensor F(Tensor x, const Tensor& k)",
        "(Tensor x, Tensor? k) -> Tensor",
        "std::optional<Tensor>",
        "Tensor",
    ),
    "listed": (
        "Tensor F(Tensor x, std::vector<float> k)",
        "(Tensor x, float[] k) -> Tensor",
        "std::vector<double>",
        "std::vector<a floating-point number",
    ),
}
RESULTS = {
    "number": ("float F(Tensor x)", "(Tensor x) -> float", "double", "a floating-point number"),
    "pair": ("std::tuple<Tensor, int> F(Tensor x)", "(Tensor x) -> (Tensor, int)", "int64_t", "an integer"),
}
FITTING = {
    "scalars": (
        "Tensor F(const Tensor& x, const int64_t i, double f, bool b, const std::string& s, ScalarType)",
        "(Tensor x, int i, float f, bool b, str s, ScalarType t) -> Tensor",
        (torch.ones(2), 2, 0.5, True, "größe", torch.float64),
        "i + f + b + s.size()",
    ),
    "several": (
        "Tensor F(Tensor x, std::optional<double> f, std::vector<int64_t> i, std::vector<std::optional<Tensor>> t,"
        " torch::headeronly::HeaderOnlyArrayRef<double> d, std::string_view s)",
        "(Tensor x, float? f, int[] i, Tensor?[] t, float[] d, str s) -> Tensor",
        (torch.ones(2), 0.5, [3, 4], [None], [2.0], "abc"),
        "*f + i[1] + t.size() + d[0] + s.size()",
    ),
}
EXPECTED = {"scalars": 2 + 0.5 + 1 + len("größe".encode()), "several": 0.5 + 4 + 1 + 2 + 3}


def source_text():
    """Return one source with all functions; those whose types do not fit are never called."""
    lines = ["#include <custom_autograd/kernel.h>", "#include <optional>", "#include <string>", "#include <vector>"]
    lines += ["using namespace custom_autograd;", "Tensor filled(const Tensor& x, double value) {"]
    lines += ["  Tensor out = allocate_like(x);", "  for (int64_t i = 0; i < 2; ++i) write<float>(out)[i] = value;"]
    lines += ["  return out;", "}"]
    rows = {name: (head, schema, "") for name, (head, schema, *_) in {**FUNCTIONS, **RESULTS}.items()}
    rows |= {name: (head, schema, f"return filled(x, {value});") for name, (head, schema, _, value) in FITTING.items()}
    lines += [f"{head.replace('F(', f'{name}(')} {{ {body or 'throw 1;'} }}" for name, (head, _, body) in rows.items()]
    lines += ["STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {"]
    lines += [f'  m.def("{name}{schema}");' for name, (_, schema, _) in rows.items()]
    lines += ["}", "STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {"]
    lines += [f'  m.impl("{name}", TORCH_BOX(&{name}));' for name in rows]
    return "\n".join([*lines, "}", ""])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("types") / "types.cpp"
    path.write_text(source_text(), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", [*FUNCTIONS, *RESULTS])
def test_a_function_with_another_type_than_its_schema_is_refused(name, source):
    _, _, expected, found = {**FUNCTIONS, **RESULTS}[name]
    where = "a result" if name in RESULTS else "'k'"
    text = (
        f"the C++ function behind '{name}' has another type for {where} than its schema\n  expected   {expected}, since"
    )
    with pytest.raises(KernelUnavailable, match=f"{re.escape(text)}.*\n  found      {re.escape(found)}"):
        cpp_kernel(source, name).load()


@pytest.mark.parametrize("name", FITTING)
def test_a_function_with_the_types_of_its_schema_computes(name, source):
    _, _, arguments, _ = FITTING[name]

    assert [EXPECTED[name]] * 2 == cpp_kernel(source, name)(*arguments).tolist()


def test_an_op_runs_its_next_kernel_in_place_of_one_that_would_read_other_numbers(source):
    @custom_op("cpp_types::scaled", reference=True)
    def scaled(x: Tensor, k: float) -> Tensor:
        return x * k

    scaled.register_kernel("cpu", cpp_kernel(source, "shortfloat"))

    with pytest.warns(KernelWarning, match="has another type for 'k' than its schema"):
        assert [2.5, 2.5] == scaled(torch.ones(2), 2.5).tolist()
