"""A fake that reads a value of a tensor, or is derived from a reference that does, is refused as a fault of the op."""

import re

import pytest
import torch
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from custom_autograd import FakeUnavailable, Sample, custom_op
from slow_cases import slow_but_every


@custom_op("value_reads::scaled", reference=True)
def scaled(x: Tensor) -> Tensor:
    return x / x.max().item()


@custom_op("value_reads::branch", reference=True)
def branch(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x * 3


@custom_op("value_reads::listed", reference=True)
def listed(x: Tensor) -> Tensor:
    return torch.tensor(x.tolist())


@custom_op("value_reads::numpy", reference=True)
def through_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().numpy() * 2)


@custom_op("value_reads::indexed", reference=True)
def indexed(x: Tensor) -> Tensor:
    return sum(x[int(i)] for i in x.long().clamp(max=2).tolist()) + x.new_zeros(3)


@custom_op("value_reads::registered")
def registered(x: Tensor) -> Tensor:
    return x * 2


@registered.register_fake
def _(x):
    return x * x.sum().item()


@custom_op("value_reads::positive", reference=True)
def positive(x: Tensor) -> Tensor:
    return x[x > 0]


OPS = {op.overload.name(): op for op in (scaled, branch, listed, through_numpy, indexed, registered)}
X = torch.tensor([1.0, 4.0, 2.0])


def faked(op):
    with FakeTensorMode() as mode:
        return op(mode.from_tensor(X))


def exported(op):
    class Calling(torch.nn.Module):
        def forward(self, x):
            return op(x)

    return torch.export.export(Calling(), (X,), strict=False)


WAYS = {"fake tensors": faked, "meta tensors": lambda op: op(X.to("meta")), "export": exported}


@each("way", WAYS)
@each("op", OPS.values(), ids=OPS)
def test_a_fake_that_reads_a_value_is_refused(op, way):
    with pytest.raises(FakeUnavailable, match="reads a value, and fake tensors have none") as caught:
        WAYS[way](op)

    assert "register_fake a function" in caught.value.do


def test_message():
    with pytest.raises(FakeUnavailable) as caught:
        faked(branch)

    assert_expected_inline(
        re.sub(r":\d+", ":N", str(caught.value)),
        """\
value_reads::branch: the fake derived from the reference reads a value, and fake tensors have none
  expected   outputs whose metadata follows from that of the inputs
  found      aten._local_scalar_dense.default
  rule       test_fakes_that_read_values.py:N, fake
  declared   test_fakes_that_read_values.py:N
  do         register_fake a function of shapes and dtypes; torch.library.get_ctx() has new_dynamic_size()""",
    )


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_full_graph_is_refused_with_the_same_words(op):
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"reads a value, and fake tensors have none(.|\n)*register_fake a function"):
        torch.compile(lambda x: op(x), backend="eager", fullgraph=True)(X)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_graph_is_broken_at_the_op_if_it_may(op):
    torch.compiler.reset()

    assert torch.equal(op(X) + 1, torch.compile(lambda x: op(x) + 1, backend="aot_eager")(X))


def test_a_size_that_depends_on_data_is_none_of_these():
    torch.compiler.reset()

    assert torch.equal(X, torch.compile(lambda x: positive(x), backend="aot_eager", fullgraph=True)(X))


@custom_op("value_reads::number_branch", reference=True)
def number_branch(x: Tensor, n: Tensor) -> Tensor:
    return x * 2 if n.item() > 2 else x * 3


@custom_op("value_reads::number_index", reference=True)
def number_index(x: Tensor, n: Tensor) -> Tensor:
    return x * [1, 2, 3, 4][int(n)]


@custom_op("value_reads::number_size", reference=True)
def number_size(x: Tensor, n: Tensor) -> Tensor:
    return x[: int(n)].clone()


@pytest.mark.parametrize("op", [number_branch, number_index, number_size], ids=lambda op: op.name)
def test_a_graph_is_broken_at_an_op_that_reads_a_number_of_the_caller(op):
    """Dynamo knows it and what AOTAutograd traces does not, so that the graph would be refused when it is made."""
    torch.compiler.reset()
    compiled = torch.compile(lambda x, n: op(x, n) + 1, backend="aot_eager")

    for n in (2, 3, 1):
        assert torch.equal(op(X, torch.tensor(n)) + 1, compiled(X, torch.tensor(n)))


@custom_op("value_reads::ones")
def ones(x: Tensor, n: Tensor) -> Tensor:
    return x.new_ones(n.item())


ones.register_fake(lambda x, n: x.new_empty(n.item()))


def test_a_size_that_the_graph_has_read_is_the_same_symbol():
    torch.compiler.reset()

    def call(x, n):
        size = n.item()
        torch._check(size >= 0)
        return ones(x, n) + x.new_ones(size)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        assert torch.equal(torch.full((2,), 2.0), compiled(X, torch.tensor([2])))


@pytest.mark.parametrize("name", slow_but_every(3, OPS))
def test_check_calls_it_a_fault_of_the_op(name):
    report = OPS[name].check([Sample(X.clone())], checks=["fake", "compile"], raise_on_failure=False, isolated=False)

    found = {result.check: (result.status, "reads a value" in result.message) for result in report.results}
    assert {"fake": ("failed", True), "compile": ("failed", True)} == found


@custom_op("value_reads::rows", reference=True)
def rows(table: Tensor, index: Tensor) -> Tensor:
    return table[index]


def test_strides_of_meta_kernels_are_called_a_fault_of_torch():
    report = rows.check(
        [Sample(torch.ones(5, 3), torch.tensor([[0, 2], [1, 4]]))], checks=["fake"], raise_on_failure=False
    )

    cause = next(result.cause for result in report.results if result.status == "failed")
    assert_expected_inline(
        cause.replace(": ", ":\n"),
        """\
a fault of torch, not of the op:
the meta kernels that the reference calls return another stride than the kernels:
end the reference in .contiguous(), or register_fake with x.new_empty(x.shape)""",
    )


@custom_op("value_reads::counted", schema="(Tensor x) -> (Tensor positive, int count)")
def counted(x):
    return x * 1, int((x > 0).sum())


@counted.register_fake
def _(x):
    return torch.empty_like(x), torch.library.get_ctx().new_dynamic_size()


@custom_op("value_reads::sized", schema="(Tensor x) -> (Tensor, int)")
def sized(x):
    return x * 1, x.shape[0]


@sized.register_fake
def _(x):
    return torch.empty_like(x), x.shape[0]


def test_message_for_a_number_that_depends_on_data_as_int():
    with pytest.raises(FakeUnavailable) as caught:
        exported(counted)

    said, _, _ = str(caught.value).partition("\n\n")  # torch.export adds where the call is
    assert_expected_inline(
        re.sub(r":\d+", ":N", said),
        """\
value_reads::counted: the fake returns a number that depends on data as output 'count', whose type is int
  expected   the type SymInt in the schema
  found      (Tensor x) -> (Tensor positive, int count)
  rule       test_fakes_that_read_values.py:N, fake
  declared   test_fakes_that_read_values.py:N
  do         write SymInt there; it is the type that follows from the annotation int""",
    )


def test_such_a_number_breaks_a_graph_that_may_be_broken(fresh_compiler):
    compiled = torch.compile(lambda x: counted(x)[1] * 2, backend="eager")

    assert 6 == compiled(X)


def test_a_size_as_int_is_no_such_number(fresh_compiler):
    compiled = torch.compile(lambda x: sized(x)[1], backend="eager", fullgraph=True, dynamic=True)

    assert 3 == compiled(X)
