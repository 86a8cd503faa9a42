"""The check `shapes` fails what a line does not hold of (the corpus: false_lines.py), and passes what it does."""

import torch
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor
from verdicts import verdict

from corpus.lines import TRUE_LINES
from custom_autograd import check, custom_op
from custom_autograd.schema.samples import Sample

result_of = verdict("shapes", lambda make: [Sample(make(4, 3))])


@each("op", TRUE_LINES)
def test_line_that_holds_passes(op):
    (result,) = check(op.make(), op.samples, checks=["shapes"]).results

    assert ("passed", "", "") == (result.status, result.message, result.advice)


def test_op_without_a_line_is_skipped():
    op = custom_op("faults_shapes::bare", lambda x: x * 2, schema="(Tensor x) -> Tensor")

    result = result_of(op)

    expected = "no line declares the dimensions of its tensors (shapes=, register_shapes)"
    assert ("skipped", expected) == (result.status, result.message)


def test_function_is_skipped():
    assert "skipped" == result_of(torch.relu).status


@custom_op("faults_shapes::mean", reference=True, shapes="x: n d -> output: d")
def mean(x: Tensor) -> Tensor:
    return x.mean(0)


def test_finding_names_dimension_tensor_and_reason():
    result = result_of(mean)

    assert_expected_inline(
        result.message,
        """\
along 'n' the slices of 'output' do not add up: the whole is their mean. Write [n], or return the sum""",
    )
    assert "the whole is their mean" == result.cause


def test_dimension_that_no_sample_cuts_is_advised():
    samples = [Sample(torch.ones(1, 3)), Sample(torch.ones(1, 2))]
    first, second = check(mean, samples, checks=["shapes"]).results

    expected = "no sample cuts 'n': its size is 0 or 1 in all of them; add one with 3 or more"
    assert ["passed", "passed"] == [first.status, second.status]
    assert [expected, expected] == [first.advice, second.advice]


def test_dimension_that_one_sample_cuts_is_not_advised():
    samples = [Sample(torch.ones(1, 3)), Sample(torch.ones(2, 3).requires_grad_())]
    first, second = check(mean, samples, checks=["shapes"]).results

    assert ("passed", "") == (first.status, first.advice)
    assert "failed" == second.status


def test_sample_that_the_line_refuses_fails():
    result = verdict("shapes", [Sample(torch.ones(3))])(mean)

    assert "failed" == result.status
    assert "faults_shapes::mean: 'x' must be (n d)" in result.message


def test_gradients_that_the_op_refuses_are_left_out_and_shown():
    @custom_op("faults_shapes::times", shapes="x: n d, weight: d -> output: n d")
    def times(x: Tensor, weight: Tensor) -> Tensor:
        return x * weight

    @times.register_grad("x")
    def _(grad, weight):
        return grad * weight

    result = verdict("shapes", lambda make: [Sample(make(4, 3), make(3))])(times)

    assert "passed" == result.status
    assert "not checked: gradients: " in result.message


def test_op_that_takes_float32_only_is_checked_in_it():
    @custom_op("faults_shapes::single", shapes="x: n d -> output: n d")
    def single(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return x - x.mean(0)

    assert "failed" == result_of(single, dtype=torch.float32).status
    assert "along 'n'" in result_of(single, dtype=torch.float32).message


def test_dimension_that_is_an_int_argument_is_not_cut():
    @custom_op("faults_shapes::tile", shapes="x: n d -> output: [k] n d", reference=True)
    def tile(x: Tensor, k: int = 2) -> Tensor:
        return x.expand(k, *x.shape).clone()

    assert "passed" == result_of(tile).status
