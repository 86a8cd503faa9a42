"""What `check` answers with when it has nothing that it could check."""

import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from torch import Tensor

from custom_autograd import Sample, check, custom_op

ONES = torch.ones(2)


def with_samples(rule):
    op = custom_op("words::sampled", lambda x: x * 1, schema="(Tensor x) -> Tensor", replace=True)
    op.register_samples(rule)
    return op


def one(make):
    return Sample(make(2))


def none(make):
    Sample(make(2))


@custom_op("words::twice", reference=True)
def twice(x: Tensor) -> Tensor:
    return x * 2


def test_one_sample_in_place_of_a_list():
    assert_expected_inline(
        message(lambda: check(twice, Sample(ONES))),
        """\
CheckError: words::twice: its samples are not a list
  expected   an iterable of Sample
  found      one Sample
  declared   FILE.py:LINE
  do         put it in a list: [Sample(...)]""",
    )


def test_samples_that_are_not_in_a_list():
    assert_expected_inline(
        together(
            message(lambda: with_samples(none).check()),
            message(lambda: with_samples(one).check()),
        ),
        """\
CheckError: words::sampled
  rule       FILE.py:LINE
  declared   FILE.py:LINE
its generator of samples returns none
  expected   an iterable of Sample
  found      None
  do         write 'yield Sample(...)' for each call
its generator of samples returns none
  expected   an iterable of Sample
  found      one Sample
  do         write 'yield Sample(...)' for each call""",
    )


def test_an_unknown_check():
    assert_expected_inline(
        message(lambda: check(twice, [Sample(ONES)], checks="gradchek")),
        """\
CheckError: check: there is no check called 'gradchek'
  do         did you mean 'gradcheck'? all are in docs/reference/checks.md; see 'custom-autograd check --help'""",
    )
