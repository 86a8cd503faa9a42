"""checkpointing: selective activation checkpointing that names ops.

`torch.utils.checkpoint` computes what it does not save again in the backward. Which operations it saves is the answer
of a policy, a function of an overload; here it is written as lists of ops, handles and names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from custom_autograd.capabilities.checkpoint import RECOMPUTE, SAVE, default_of
from custom_autograd.core.errors import CustomAutogradError
from custom_autograd.core.messages import quote, show, suggest
from custom_autograd.registration.registry import record_of
from custom_autograd.torch_private import dispatch
from custom_autograd.torch_private.dispatch import OpOverload, OpOverloadPacket

Op: TypeAlias = Any
"""An op of this package, an overload, `torch.ops.namespace.name`, or a name (Any: the second has no public type)."""

Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]
CALL = "checkpointing"
DEFAULTS = {
    SAVE: CheckpointPolicy.PREFER_SAVE,
    RECOMPUTE: CheckpointPolicy.PREFER_RECOMPUTE,
    None: CheckpointPolicy.PREFER_RECOMPUTE,
}


def checkpointing(save: Op | Sequence[Op] = (), recompute: Op | Sequence[Op] = ()) -> Contexts:
    """Return a `context_fn` for `torch.utils.checkpoint.checkpoint` that saves the outputs of the named operations.

    What is named in neither list follows `custom_op(..., checkpoint=...)`, and is else computed again. An op that
    writes to its arguments is always run again: saving its outputs would lose what it writes.

    Args:
        save: operations whose outputs are saved: ops, overloads, `torch.ops.namespace.name`, or names such as
            "mylib::attention" and "aten::mm", in which a ``*`` stands for any text. One alone needs no list.
        recompute: operations that are run again. A name takes precedence over a pattern with ``*``, and this list over
            `save`.

    Returns:
        The function. Make it outside of compiled code, for example once for a module.

    Raises:
        CustomAutogradError: a name matches no operation that exists, or one that PyTorch takes apart before a policy
            sees it; an op that is to be saved writes to its arguments; or an op is in both lists.

    Example:
        >>> import torch
        >>> from torch.utils.checkpoint import checkpoint
        >>> from custom_autograd import checkpointing
        >>> def block(x, weight):
        ...     return torch.tanh(x @ weight)
        >>> x, weight = torch.ones(2, 3, requires_grad=True), torch.ones(3, 3)
        >>> y = checkpoint(block, x, weight, use_reentrant=False, context_fn=checkpointing(save="aten::mm"))
    """
    saved, again = _selections(save, SAVE), _selections(recompute, RECOMPUTE)
    both = {one.text for one in saved} & {one.text for one in again}
    if both:
        problem = f"{quote(sorted(both))} is in save= and in recompute="
        raise CustomAutogradError(CALL, problem, do="leave it in one of the two")
    rows = [(one, CheckpointPolicy.MUST_RECOMPUTE) for one in again]
    rows += [(one, CheckpointPolicy.MUST_SAVE) for one in saved]
    rows.sort(key=lambda row: row[0].is_pattern)  # stable: names first
    return functools.partial(create_selective_checkpoint_contexts, _policy(rows))


@dataclass(frozen=True, slots=True)
class Selection:
    """One entry of a list.

    Attributes:
        text: the name of it in messages.
        names: the overloads that it selects now.
        matches: whether it selects an overload; names may be defined later.
    """

    text: str
    names: Sequence[str]
    matches: Callable[[OpOverload], bool]

    @property
    def is_pattern(self) -> bool:
        """Return True if it is a name with `*`."""
        return "*" in self.text


def _policy(rows: Sequence[tuple[Selection, CheckpointPolicy]]) -> Callable[..., CheckpointPolicy]:
    """Return the policy: a plain function, which is what Dynamo takes."""

    def policy(context: Any, overload: Any, /, *args: Any, **kwargs: Any) -> CheckpointPolicy:  # Any: as torch calls it
        if not isinstance(overload, OpOverload) or dispatch.is_mutable(overload.name()):
            return CheckpointPolicy.PREFER_RECOMPUTE
        found = next((policy for selection, policy in rows if selection.matches(overload)), None)
        return found or DEFAULTS[default_of(overload)]

    return policy


def _selections(given: Op | Sequence[Op], option: str) -> list[Selection]:
    is_one = isinstance(given, (str, OpOverload, OpOverloadPacket)) or record_of(given) is not None
    found = []
    for one in given if isinstance(given, (list, tuple, set, frozenset)) and not is_one else [given]:
        selection = _selection(one, option)
        _refuse_what_is_not_seen(selection)
        if option == SAVE:
            _refuse_mutating(selection)
        found.append(selection)
    return found


def _selection(given: Op, option: str) -> Selection:
    record = record_of(given)
    if record is not None:
        return Selection(record.name, [str(record.definition.name)], lambda overload: overload is record.overload)
    if isinstance(given, OpOverload):
        return Selection(given.name(), [given.name()], lambda overload: overload is given)
    name = dispatch.name_of_packet(given) if isinstance(given, OpOverloadPacket) else given
    if not isinstance(name, str):
        expected = "an op, an overload, torch.ops.namespace.name, or a name such as 'mylib::*'"
        raise CustomAutogradError(CALL, f"{option}= takes operations", expected=expected, found=show(given))
    names = [one for one in dispatch.all_names() if _is_named(one, name)]
    if not names:
        nearest = suggest(name, {one.partition(".")[0] for one in dispatch.all_names()})
        do = nearest or "import what defines it first, or mend the name; '*' matches any part of one"
        raise CustomAutogradError(CALL, f"'{name}' matches no operation that exists in this process", do=do)
    return Selection(name, names, lambda overload: _is_named(overload.name(), name))


def _is_named(name: str, given: str) -> bool:
    """Return True if an overload is meant: by "ns::name" all of an operator are, by "ns::name.overload" one."""
    operator, _, overload = name.partition(".")
    return any(fnmatchcase(one, given) for one in (operator, f"{operator}.{overload or 'default'}"))


def _refuse_what_is_not_seen(selection: Selection) -> None:
    functional = [name for name in selection.names if not dispatch.is_mutable(name)]
    if functional and all(map(dispatch.is_taken_apart, functional)):
        raise CustomAutogradError(
            CALL,
            f"PyTorch takes '{selection.text}' apart, and a policy sees the parts only",
            do="name those, for example 'aten::mm' and 'aten::addmm' for 'aten::linear'",
        )


def _refuse_mutating(selection: Selection) -> None:
    if all(map(dispatch.is_mutable, selection.names)):
        raise CustomAutogradError(
            CALL,
            f"'{selection.text}' writes to its arguments, and would not run again",
            do="leave it out of save=, or save an op that returns new tensors",
        )
