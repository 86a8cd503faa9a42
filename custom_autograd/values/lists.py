"""Arguments or results with tensor lists among them <-> one flat sequence, which is what an autograd node takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SINGLE = -1
NO_LIST = -2


def flatten(values: Sequence[Any], are_lists: Sequence[bool]) -> tuple[list[Any], list[int]]:  # Any: an op's values
    """Replace each list by its elements.

    Args:
        values: arguments or results, in order.
        are_lists: which of them the schema declares to be lists of tensors.

    Returns:
        The flat values, and per value its length (`SINGLE` for what is not a list, `NO_LIST` for None instead of one).
    """
    flat: list[Any] = []
    lengths: list[int] = []
    for value, is_list in zip(values, are_lists, strict=True):
        if not is_list:
            flat.append(value)
            lengths.append(SINGLE)
        elif value is None:
            lengths.append(NO_LIST)
        else:
            flat.extend(value)
            lengths.append(len(value))
    return flat, lengths


def restore(flat: Sequence[Any], lengths: Sequence[int]) -> list[Any]:  # Any: as in `flatten`
    """Return the inverse of `flatten`: lists where there were lists."""
    values: list[Any] = []
    position = 0
    for length in lengths:
        if length == SINGLE:
            values.append(flat[position])
            position += 1
        elif length == NO_LIST:
            values.append(None)
        else:
            values.append(list(flat[position : position + length]))
            position += length
    return values


class Layout:
    """The list lengths of one call: those of the arguments, and, once it has run, those of the results."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, inputs: list[int]) -> None:
        self.inputs = inputs
        self.outputs: list[int] = []

    def flatten_outputs(self, values: Sequence[Any], are_lists: Sequence[bool]) -> tuple[Any, ...]:  # Any: results
        """Flatten results, and note their lengths."""
        flat, self.outputs = flatten(values, are_lists)
        return tuple(flat)


def are_plain(gradients: Sequence[Any]) -> bool:  # Any: tensors, or None
    """Return True if all gradients of a list have arrived, and none is lazily conjugated or negated."""
    return all(one is not None and not (one.is_neg() or one.is_conj()) for one in gradients)


def is_undefined(gradients: Sequence[Any] | None) -> bool:  # Any: as above
    """Return True if no gradient of a list has arrived."""
    return gradients is None or all(one is None for one in gradients)
