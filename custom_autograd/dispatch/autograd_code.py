"""AutogradCode: the generated kernel at the Autograd dispatch key, and the functions that its source calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from custom_autograd.autograd.function import FunctionWriter
from custom_autograd.calls.parameters import own_names, values_of
from custom_autograd.calls.source import Source, compile_source
from custom_autograd.dispatch import sharing
from custom_autograd.dispatch.autograd_key import AutogradWriter
from custom_autograd.dispatch.below import below, remaining
from custom_autograd.dispatch.names_in_source import shared_names
from custom_autograd.dispatch.recording_code import RecordingCode
from custom_autograd.dispatch.write_refusals import refuse_if_tracked, refuse_leaves
from custom_autograd.registration.one_tuple import opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private import dispatch, functions, transforms
from custom_autograd.values import lists, overlap, tensors


class AutogradCode:
    """What stands at the Autograd key for one op.

    Attributes:
        source: its text.
        call: (keyset, *args, **kwargs) -> what the schema says (Any).
    """

    def __init__(self, record: OpRecord, writer: FunctionWriter, recording: RecordingCode) -> None:
        declaration = record.declaration
        source = Source(own_names(declaration.schema, declaration.name.name))
        AutogradWriter(source, writer).write()
        self.source = source.text
        applies = {"apply": recording.apply, "apply_under_transforms": recording.apply_under_transforms}
        helpers = {**shared_names(), **_helpers(record), **values_of(declaration), **applies}
        namespace = compile_source(self.source, f"{record.name} autograd", source.namespace(helpers))
        self.call: Callable[..., Any] = namespace[source.own("autograd")]


def _helpers(record: OpRecord) -> dict[str, Any]:
    """Return what the source calls (Any: functions of any signature)."""
    return {
        "overload": opened(record),
        **sharing.NAMES,
        "record": record,
        "below": below,
        "remaining": remaining,
        "redispatch": dispatch.redispatcher(opened(record)),
        "NOT_PLAIN": dispatch.NOT_PLAIN,
        "PYTHON": dispatch.PYTHON,
        "has_python_key": has_python_key,
        "NotImplemented": NotImplemented,
        "BELOW_AUTOGRAD": dispatch.BELOW_AUTOGRAD,
        "any_requires_grad": functions.any_requires_grad,
        "is_forward_mode": transforms.is_forward_mode,
        "has_view": lambda values: any(map(functions.is_view, tensors.tensors_in(values))),
        "plain": tensors.plain,
        "without_history": without_history,
        "tensors_in": tensors.tensors_in,
        "overwrite": tensors.overwrite,
        "flatten_lists": lists.flatten,
        "restore_lists": lists.restore,
        "Layout": lists.Layout,
        "refuse_leaves": partial(refuse_leaves, record),
        "refuse_overlap": lambda inputs: overlap.refuse_overlap(record.declaration, inputs),
        "refuse_if_tracked": partial(refuse_if_tracked, record),
    }


def without_history(value: Any) -> Any:  # Any: a tensor, a list of tensors, or None
    """Return a non-differentiable input, cut off from reverse and forward mode."""
    if isinstance(value, (list, tuple)):
        return [without_history(item) for item in value]
    if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
        return tensors.plain(value.detach())
    return value


def has_python_key(*values: Any) -> bool:  # Any: tensors, lists of tensors, or None
    """Return True if a tensor answers for itself in Python; the key of a mode is on for any tensor."""
    return any(map(dispatch.is_wrapper, tensors.tensors_in(values)))
