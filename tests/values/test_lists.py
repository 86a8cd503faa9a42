"""Lists of tensors spread over an autograd node come back as they were."""

from hypothesis import given
from hypothesis import strategies as st

from custom_autograd.values.kernel_results import Layout, flatten, restore

LISTS = st.none() | st.lists(st.none() | st.integers(), max_size=4)
SINGLES = st.none() | st.integers() | LISTS
VALUES = st.lists(st.tuples(st.just(True), LISTS) | st.tuples(st.just(False), SINGLES), max_size=6)


@given(VALUES)
def test_restoring_undoes_flattening(pairs):
    are_lists = [is_list for is_list, _ in pairs]
    values = [value for _, value in pairs]
    flat, lengths = flatten(values, are_lists)

    assert values == restore(flat, lengths)
    assert len(values) == len(lengths)


@given(VALUES)
def test_what_is_no_list_is_left_alone(pairs):
    flat, _ = flatten([value for _, value in pairs], [is_list for is_list, _ in pairs])
    expected = sum(1 if not is_list else len(value or ()) for is_list, value in pairs)

    assert expected == len(flat)


@given(VALUES)
def test_a_layout_remembers_the_lengths_of_results(pairs):
    layout = Layout([])
    flat = layout.flatten_outputs([value for _, value in pairs], [is_list for is_list, _ in pairs])

    assert [value for _, value in pairs] == restore(flat, layout.outputs)
