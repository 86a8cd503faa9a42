"""RecordingFacts: how calls of one op are recorded as nodes, as far as it is known before any code is generated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from custom_autograd.autograd.derivatives import Derivatives
from custom_autograd.autograd.function import FunctionWriter
from custom_autograd.autograd.native_nodes import sole_rule_of, why_not
from custom_autograd.autograd.node import NodeWriter
from custom_autograd.autograd.plan import Plan
from custom_autograd.calls.parameters import own_names
from custom_autograd.calls.source import Source
from custom_autograd.core.lazy import Lazy
from custom_autograd.core.once import Once
from custom_autograd.registration.capability import Capability, overriding
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import GradientRule

Backward = Callable[..., Any]  # Any: takes a ctx and gradients, or what a ctx would hold


# NOTE [one kind of nodes]
# A call that goes through the dispatcher, as the first one may, records a node of the Function. Later ones may record a
# native one. Compiled autograd compiles a graph again for nodes of another class: once it has met those of the
# Function, they are recorded from then on.
class RecordingFacts:
    """Facts about the nodes of one op.

    Attributes:
        plan: where each derivative comes from, and what is saved for it.
        is_checked: the results of kernels and rules are looked at.
        has_native_node: native code can record its calls.
        keeps_dispatcher: calls that record a node go through the dispatcher.
    """

    def __init__(self, record: OpRecord, plan: Plan, *, is_checked: bool, is_strict: bool) -> None:
        self._record = record
        self.plan, self.is_checked = plan, is_checked
        self._is_strict = is_strict
        self.has_native_node = why_not(plan, is_strict=is_strict) is None
        self.keeps_dispatcher = False

    @Lazy
    def has_wrapped_backward(self) -> bool:
        """Whether a capability puts something around the backward."""
        return self.around_backward(_no_backward) is not _no_backward

    @Lazy
    def sole_rule(self) -> GradientRule | None:
        """The rule that native nodes call by themselves, or None."""
        return None if self.has_wrapped_backward else sole_rule_of(self.plan)

    @property
    def has_native_quick(self) -> bool:
        """Return True if native nodes need a quick backward of their own, for some calls at least."""
        plan = self.plan
        is_by_name = plan.drop_in is None and not plan.declaration.schema.has_lists
        is_alone = self.sole_rule is not None and len(plan.named_grads) == 1 and not plan.uncovered
        return self.has_native_node and is_by_name and not is_alone

    @property
    def has_native_backward(self) -> bool:
        """Return True if native nodes can run a backward: for lists or a ctx, only the one rule as it is."""
        if self.plan.drop_in is not None:
            return not self.has_wrapped_backward
        return not self.plan.declaration.schema.has_lists or self.sole_rule is not None

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Return the lock of the op; it is held while a writer is made."""
        return self._record.lock

    @Once
    def writer(self) -> FunctionWriter:
        """A writer of the Function, to be asked only: it writes nothing."""
        return self._new_writer()

    def new_writers(self) -> tuple[FunctionWriter, NodeWriter]:
        """Return writers of the Function and of the node of a call that needs no dispatcher, with a new text.

        An exception may come while they write, from a signal or where the stack ends: the next attempt starts anew.
        """
        writer = self._new_writer()
        node = NodeWriter(
            writer, is_checked=self.is_checked, is_strict=self._is_strict, has_native_quick=self.has_native_quick
        )
        return writer, node

    def _new_writer(self) -> FunctionWriter:
        declaration = self._record.declaration
        return FunctionWriter(Source(own_names(declaration.schema, declaration.name.name)), self.plan)

    @Once
    def derivatives(self) -> Derivatives:
        """What the Function calls."""
        return Derivatives(self.plan, is_checked=self.is_checked, is_strict=self._is_strict)

    def why_no_native_node(self) -> str | None:
        """Return why native code cannot record calls of the op, or None."""
        reason = why_not(self.plan, is_strict=self._is_strict)
        if reason is None and not self.has_native_node:
            return "setup_context keeps tensors or objects as attributes of ctx"
        if reason is None and not self.has_native_backward:
            return "the op has lists and not one rule that takes only gradients and what is saved, or autocast policies"
        return reason

    def around_backward(self, backward: Backward) -> Backward:
        """Return what runs in place of a backward: what capabilities put around it."""
        for capability in overriding(self._record.capabilities, Capability.around_backward):
            backward = capability.around_backward(self._record, backward)
        return backward

    def keep_dispatcher(self) -> None:
        """Note that compiled autograd has met a node of the Function."""
        self.keeps_dispatcher = True


def _no_backward(*_: object) -> None:
    """Return nothing, in place of a backward, to see whether a capability wraps it."""
