"""Facts about rules that see a ctx for native code, and the functions of Python that it calls for the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from custom_autograd.autograd.context import SIMPLE, Context, SavedValues, check_saved, pack
from custom_autograd.autograd.plan import SAVED_VALUES
from custom_autograd.dispatch.recording_facts import RecordingFacts


@dataclass(frozen=True, slots=True)
class DropInFacts:
    """Facts for native code about rules that see a ctx.

    Attributes:
        function: the backward: ctx, gradients -> a gradient for each input.
        setup: ctx, inputs, output -> None; or None.
        simple: types of attributes of ctx that cannot hold a tensor.
        pack: attributes, saved tensors, materializes -> all tensors, the saved values of the rest.
        forbid_following: saved tensors, inputs, outputs -> the tensors that are saved.
        check_saved: raises for what cannot be saved.
        read: makes a tuple of one gradient per input of anything else that the backward returned, or raises.
        note: adds a note to an error that a rule raised.
    """

    function: Any
    setup: Any
    simple: tuple[type, ...]
    pack: Any
    forbid_following: Any
    check_saved: Any
    read: Any
    note: Any


def drop_in_facts_of(recording: RecordingFacts, forget: Callable[[], None]) -> DropInFacts | None:
    """Return facts for native code about rules that see a ctx, or None if the op has none.

    Args:
        recording: facts about the nodes of the op.
        forget: forgets all native calls of the op.
    """
    if recording.plan.drop_in is None or recording.has_wrapped_backward:
        return None
    drop_in = recording.derivatives.drop_in
    assert drop_in is not None  # the plan has one
    helpers = drop_in.helpers()
    return DropInFacts(
        function=helpers["rule_0"],
        setup=helpers.get("setup"),
        simple=tuple(SIMPLE),
        pack=partial(_pack, recording, forget),
        forbid_following=drop_in.forbid_following,
        check_saved=check_saved,
        read=drop_in.in_order,
        note=helpers["note_0"],
    )


# NOTE [attributes of ctx that Python's collector must see]
# A native node keeps attributes of ctx where the collector does not see them, and an object among them may lead back to
# the node: the graph would never be freed. So the calls of an op whose setup_context keeps such objects, or tensors as
# attributes, record nodes of Python from then on.
def _pack(
    recording: RecordingFacts,
    forget: Callable[[], None],
    attributes: Mapping[str, Any],
    saved: tuple[Tensor | None, ...],
    materializes: bool,  # native code passes it
) -> tuple[tuple[Tensor | None, ...], SavedValues]:
    """Return all tensors that a ctx holds, and the rest; Any: whatever the user keeps."""
    recording.has_native_node = False
    forget()
    context = Context(())
    vars(context).update(attributes)
    context.custom_autograd_saved, context.custom_autograd_materializes = saved, materializes
    return pack(context)


def set_attributes(
    context: Any,
    attributes: dict[str, Any] | None,
    packed: SavedValues | None,
    count: int,
    materializes: bool,  # native code passes it
) -> None:
    """Set what a drop-in setup_context kept (Any: of any type) on a ctx."""
    values = packed or SavedValues(attributes or {}, (), None, count, materializes)
    setattr(context, SAVED_VALUES, values)
    for name, value in (attributes or {}).items():
        if not hasattr(context, name):
            setattr(context, name, value)
