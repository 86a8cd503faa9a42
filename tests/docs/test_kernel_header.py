"""The reference of the C++ headers names each of their public names, and its examples compute what they should.

The C++ blocks of the page are one source, which is compiled once.
"""

import re
import shutil
from pathlib import Path

import pytest
import torch
from tables import each

from cpp_sources import built_source
from custom_autograd.kernels import cpp_kernel, cuda_kernel
from custom_autograd.kernels.compilers import HEADERS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "kernel-header.md").read_text(encoding="utf-8")
INTERNAL = ("addresses.h", "exceptions.h", "older_systems.h", "trial.h", "types.h")
PUBLIC = sorted(path for path in HEADERS.rglob("*.h") if path.name not in INTERNAL)
NAME = re.compile(
    r"^(?:#define|using(?: [\w:]+::)?) ?(?P<alias>\w+)|^(?:struct|class|enum class) .*?(?P<type>\w+) [:{]"
    r"|^constexpr .*?(?P<constant>\w+) =|^(?!using|constexpr|struct|template)\w[\w<>:*& ]*?(?P<function>\w+)\("
)
DOUBLE = torch.float64


def blocks(language: str) -> str:
    """Return the code of all blocks of a language."""
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S))


def names_in(header: str) -> set[str]:
    """Return the names that begin a line of a header: its functions, types, constants and macros."""
    lines = re.sub(r"//.*|\\\n", "", header).splitlines()
    return {next(filter(None, match.groups())) for line in lines if (match := NAME.match(line))}


def test_the_names_of_a_header_are_its_functions_types_constants_and_macros():
    header = """
#define MACRO 1
namespace custom_autograd {
using torch::Tensor;
template <typename T>
using Alias = T;
constexpr int64_t size = 1;
struct alignas(sizeof(T) * 2) Pair {
  int member(int);
};
enum class Choice { one };
__device__ inline S total(S value) {
  return other(value);
}
template <typename Work>
const T* first_of(
    const Work& work) {}
}
"""
    assert {"MACRO", "Tensor", "Alias", "size", "Pair", "Choice", "total", "first_of"} == names_in(header)


@each("path", PUBLIC)
def test_the_page_explains_every_public_name_of_a_header(path):
    code = " ".join(re.findall(r"`[^`]+`", re.sub(r"^```.*?^```$", "", PAGE, flags=re.M | re.S)))
    names = names_in(path.read_text(encoding="utf-8"))

    assert names
    assert [] == sorted(names - set(re.findall(r"\w+", code)))


@each("path", PUBLIC)
def test_an_example_includes_the_header(path):
    assert f"#include <custom_autograd/{path.name}>" in blocks("cpp") + blocks("cuda")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return built_source(tmp_path_factory.mktemp("header") / "examples.cpp", blocks("cpp"), "scale")


def tensor(*values, dtype=DOUBLE):
    return torch.tensor(values, dtype=dtype)


SINGLE = tensor(-30.0, -1.0, 0.0, 0.5, 19.0, 25.0, dtype=torch.float32)
CALLS = {
    "scale": ((tensor(1, 2), 3.0, tensor(10, 20)), tensor(13, 26)),
    "is_alike": ((tensor(1, 2), tensor(3)), False),
    "row_max": ((tensor([1, 3], [5, 4]),), (tensor(3, 5), torch.tensor([1, 0]))),
    "accumulate": ((tensor(1, 2), [tensor(3, 4), None], [2.0, 1.0]), 1),
    "logistic": ((tensor(-2, 0, 700),), tensor(-2, 0, 700).sigmoid()),
    "exponents": ((tensor(1, 10, 0.5),), torch.tensor([0, 3, -1])),
    "row_sums": ((torch.full((2, 4096), 1.0, dtype=torch.bfloat16),), torch.full((2,), 4096.0)),
    "product": (
        (torch.arange(15, dtype=DOUBLE).view(5, 3), torch.arange(21, dtype=DOUBLE).view(3, 7)),
        torch.arange(15, dtype=DOUBLE).view(5, 3) @ torch.arange(21, dtype=DOUBLE).view(3, 7),
    ),
    "sorted_positions": (
        (tensor(2, torch.nan, -0.0, torch.inf, 0, -1, dtype=torch.float32),),
        torch.tensor([5, 2, 4, 0, 3, 1]),
    ),
    "softplus_terms": (
        (SINGLE,),
        (torch.nn.functional.softplus(SINGLE), SINGLE.sigmoid(), torch.nn.functional.softplus(SINGLE).log()),
    ),
}
"""The arguments of each example but `uniform`, and what it returns."""


@each("name", CALLS)
def test_an_example_computes_what_it_should(name, source):
    arguments, expected = CALLS[name]

    torch.testing.assert_close(cpp_kernel(source, name)(*arguments), expected)


def test_the_example_with_lists_writes_to_its_argument(source):
    out = tensor(1, 2)
    cpp_kernel(source, "accumulate")(out, [None, tensor(3, 4), tensor(10, 10)], [5.0, 2.0, 1.0])

    assert [17.0, 20.0] == out.tolist()


def test_random_numbers_are_those_of_the_published_generator(source):
    """The words of counter 0 and key 0 of Random123's known answers."""
    words = torch.tensor([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], dtype=DOUBLE)

    found = cpp_kernel(source, "uniform")(torch.empty(0), 0)

    assert (4, 64) == found.shape
    assert torch.equal((words / 2**8).floor() / 2**24, found[:, 0].double())


def test_every_example_is_called():
    assert {*CALLS, "uniform"} == set(re.findall(r'm\.def\("(\w+)', blocks("cpp")))


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("scale", (tensor(1, 2), 3.0, tensor(1, 2, 3)), "'offset' must have 2 elements, found 3"),
        ("scale", (tensor(1, dtype=torch.float32), 3.0, None), "'x' must be a CPU tensor of dtype Double, found Float"),
        ("row_max", (tensor([1, 3], [5, 4]).t(),), r"'x' must be a contiguous CPU tensor"),
        ("accumulate", (tensor(1), [None], []), "'weights' must have one number for each of 'parts'"),
        ("logistic", (torch.tensor([1]),), "'x' must be float64, float32, bfloat16 or float16"),
        ("sorted_positions", (tensor(1),), "reads or writes a tensor of dtype Double as Float"),
    ],
)
def test_an_example_raises_for_what_it_does_not_take(name, arguments, message, source):
    with pytest.raises(RuntimeError, match=message):
        cpp_kernel(source, name)(*arguments)


@pytest.fixture
def cuda_source(tmp_path):
    path = tmp_path / "row_sums.cu"
    path.write_text(blocks("cuda"))
    return path


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_the_example_for_cuda_compiles(cuda_source, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")

    assert b"sm_80" in cuda_kernel(cuda_source, "row_sums").build()[1].read_bytes()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available() or shutil.which("nvcc") is None, reason="no GPU or no nvcc")
def test_the_example_for_cuda_computes(cuda_source):
    x = torch.randn(7, 4096, device="cuda")

    torch.testing.assert_close(cuda_kernel(cuda_source, "row_sums")(x), x.sum(-1))
