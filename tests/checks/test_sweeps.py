"""Variants of a sample: same values, other memory; and every subset of inputs."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls.layouts import expanded, of_all, sliced, transposed
from custom_autograd.verification.harness.sweeps import free_sizes, growths, pinned_sizes, resized, subsets

SHAPES = st.lists(st.integers(0, 4), max_size=3)


@given(SHAPES)
def test_transposed_and_sliced_keep_the_values(shape):
    tensor = torch.arange(float(torch.Size(shape).numel())).reshape(shape)

    for changed in (transposed(tensor), sliced(tensor)):
        assert changed is None or torch.equal(tensor, changed)


def test_transposed_swaps_the_last_two_strides():
    assert (1, 4) == transposed(torch.zeros(4, 3)).stride()


def test_sliced_has_an_offset_and_a_step():
    changed = sliced(torch.zeros(4, 3))

    assert ((7, 2), 1) == (changed.stride(), changed.storage_offset())


def test_expanded_has_stride_zero():
    assert (0, 1) == expanded(torch.zeros(4, 3)).stride()
    assert expanded(torch.zeros(1, 3)) is None


def test_layouts_name_what_they_changed_and_leave_out_what_cannot_be():
    assert ["as given", "transposed", "sliced", "expanded", "offset", "negated"] == [
        label for label, _ in of_all(Sample(torch.zeros(4, 3)))
    ]
    assert ["as given", "offset", "negated"] == [label for label, _ in of_all(Sample(torch.zeros(())))]


def test_layouts_never_expand_what_is_written_to():
    expanded_ones = [
        [0 in tensor.stride() for tensor in variant.tensors()]
        for label, variant in of_all(Sample(torch.zeros(4), torch.zeros(4)), written={0})
        if label == "expanded"
    ]

    assert [[False, True]] == expanded_ones


def test_layouts_leave_the_sample_alone():
    sample = Sample(torch.ones(2, 2))
    for _, variant in of_all(sample):
        if variant.args[0].stride()[0]:
            variant.args[0].zero_()

    assert torch.equal(torch.ones(2, 2), sample.args[0])


def test_every_subset_of_four_and_fewer_of_more():
    assert [(0, 1), (0,), (1,)] == list(subsets(2))
    assert 15 == len(list(subsets(4)))
    assert 11 == len(list(subsets(5)))
    assert [] == list(subsets(0))


def test_free_sizes_equal_no_number_among_the_arguments():
    sample = Sample(torch.ones(4, 3, 1), [3, 7], n=5)

    assert {4} == free_sizes(sample)


def test_sizes_grow_together_and_one_by_one():
    assert [{3: 6, 4: 8}, {3: 6}, {4: 8}] == list(growths(Sample(torch.ones(4, 3)), 2))


def test_sizes_that_integers_have_or_point_at_are_not_free():
    offsets, values, weight = torch.tensor([0, 4, 6]), torch.ones(6), torch.ones(5, 2)

    assert {5, 2} == free_sizes(Sample(values, offsets, weight))
    assert {3, 6, 7, 10} == pinned_sizes(Sample(values, offsets, weight))  # 10 is their sum: they may be lengths


def test_labels_fix_the_number_of_classes():
    assert {3} == free_sizes(Sample(torch.ones(3, 5), torch.tensor([4, 0])))


def test_masks_fix_nothing():
    assert {3, 5} == free_sizes(Sample(torch.ones(3, 5), torch.ones(5, dtype=torch.bool)))


def test_integers_are_neither_resized_nor_repeated():
    index = torch.tensor([2, 0, 1])
    changed = resized(Sample(torch.ones(3, 2), index), {3: 6, 2: 4})

    assert [(6, 4), (3,)] == [tuple(tensor.shape) for tensor in changed.tensors()]
    assert all(torch.equal(index, variant.tensors()[1]) for _, variant in of_all(Sample(torch.ones(3, 2), index)))


def test_numbers_follow_a_size_only_if_asked():
    sample = Sample(torch.ones(3), 3, step=3)

    assert (3, {"step": 3}) == (resized(sample, {3: 6}).args[1], resized(sample, {3: 6}).kwargs)
    followed = resized(sample, {3: 6}, with_numbers=True)
    assert (6, {"step": 6}) == (followed.args[1], followed.kwargs)
