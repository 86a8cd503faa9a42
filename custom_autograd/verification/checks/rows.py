"""Checks that are rows of one table: which changes of a call, which ways to make it, and what is wrong, probably.

`Explore` draws several changes together.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from custom_autograd.schema.conversions import GENERATOR_IN_GRAPH
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.compiler import COMPILES_RULES_OF_FUNCTIONS
from custom_autograd.verification.calls import sizes
from custom_autograd.verification.calls.backward_ways import ELSEWHERE, PLAIN, SAVING_ELSEWHERE, USES_OF_A_GRAPH
from custom_autograd.verification.calls.batches import NO_RULE, batchings_of
from custom_autograd.verification.calls.call_arguments import scalars
from custom_autograd.verification.calls.case import Case, Verdict
from custom_autograd.verification.calls.changes import COTANGENTS, LAYOUTS, OUT_OF_RANGE, SCALARS, SHARED, SIZES, VALUES
from custom_autograd.verification.calls.compiled_ways import COMPILED_BACKWARD, TRANSFORMS, compilations_of
from custom_autograd.verification.calls.looking import Looker
from custom_autograd.verification.calls.memory_ways import FILLED
from custom_autograd.verification.calls.numbers import NOT_FINITE, OF_ALL, SMALL
from custom_autograd.verification.calls.ranges import OUTSIDE
from custom_autograd.verification.calls.row import Row, WayRow
from custom_autograd.verification.calls.subclass_ways import SUBCLASSES
from custom_autograd.verification.calls.ways import HIDDEN, IN_THREADS
from custom_autograd.verification.harness.agreement import values_of, why_no_reference
from custom_autograd.verification.harness.base import Check, Finding, NothingToCheckError, failed, first_line, skipped
from custom_autograd.verification.harness.differentiable import (
    can_have_gradient,
    function_of,
    reference_of,
    signed_like,
    vector_jacobian,
    with_reference_gradients,
)
from custom_autograd.verification.harness.dispatching import takes_instances
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.tracing import data_dependence


class Reference(Row):
    """Larger and smaller numbers, zeros, ties, and other scalars; hidden outputs and written inputs too."""

    name = "reference"
    code = "F01"
    group = "values"
    is_quick = True
    purpose = "values equal those of the reference, whatever the numbers"
    stages = (VALUES, SCALARS)
    endings = (*OF_ALL, OUTSIDE)
    begins_plain = True
    is_of_values = True
    asks_reference = True
    tells_refusals = False

    def cause_of(self, verdict: Verdict) -> str:
        """Return what to do about numbers that no sample has."""
        is_outside = any(change.key == OUT_OF_RANGE for change in verdict.case.changes)
        return BEYOND if is_outside else ""

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless there is a reference, and something other than it."""
        return why_no_reference(target)

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding for the sample and each change of it, those left out that the reference refuses."""
        assert target.reference is not None
        try:
            values_of(target, target.reference, copy(sample))
        except NotImplementedError as error:  # the op takes the sample: FirstCall
            yield failed(f"the reference raises {first_line(error)}", cause="a reference takes every sample of its op")
            return
        yield from super().run(target, sample)


BEYOND = (
    "low= and high= of the sample leave these numbers out, for which the reference has a result: "
    "let the kernel agree, or refuse them"
)


class Layouts(Row):
    """Every tensor alone, in every layout that its dimensions allow; what lies between its numbers is nan."""

    name = "layouts"
    code = "F07"
    group = "layout"
    is_quick = True
    purpose = "values and gradients are the same in every memory layout of the inputs"
    why_not_generator = ""  # each call is given a copy, and draws the same
    stages = (LAYOUTS,)
    begins_plain = True
    is_of_changes = True
    cause = "strides, an offset or a view's lazy conjugation are ignored"


class SpecialValues(Row):
    """One element of one input at a time is nan, inf or -inf, or a row of it is -inf."""

    name = "special_values"
    code = "F09"
    group = "values"
    is_quick = True
    purpose = "nan and inf propagate as in the reference"
    stages = (VALUES,)
    endings = NOT_FINITE
    ways = (PLAIN, HIDDEN)
    asks_reference = True

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless there is a reference, and something other than it."""
        return why_no_reference(target)

    def cause_of(self, verdict: Verdict) -> str:
        """Return whether a number is lost, or comes where it does not belong."""
        fault = verdict.fault
        if fault is None or fault.found is None or fault.expected is None:
            return ""
        is_lost = bool((fault.found.isfinite() & ~fault.expected.isfinite()).any())
        return "a comparison or a clamp swallows it" if is_lost else "it spreads to elements that do not depend on it"


class Sizes(Row):
    """The sample with other sizes, as far as the reference takes them."""

    name = "sizes"
    code = "F08"
    group = "layout"
    is_quick = True
    most_samples = 2
    purpose = "values and gradients equal the reference's for sizes 0, 1, odd, of whole vectors and blocks, and larger"
    stages = (SIZES,)
    ways = (PLAIN, HIDDEN)
    longest = 10.0
    asks_reference = True
    tells_refusals = False


class Cotangents(Row):
    """Incoming gradients in the layouts and gaps in which autograd really sends them."""

    name = "cotangents"
    code = "G05"
    group = "layout"
    is_quick = True
    needs = ("gradcheck",)
    purpose = "the backward takes incoming gradients of any layout, or none, and leaves them unchanged"
    why_not_generator = ""  # each call is given a copy, and draws the same
    stages = (COTANGENTS,)
    needs_gradients = True


class SharedInputs(Row):
    """Each pair of floating or complex tensors of one shape and dtype, of which the op writes to neither."""

    name = "shared_inputs"
    code = "F16"
    group = "values"
    is_quick = True
    most_samples = 2
    purpose = "the same tensor given twice, op(x, x), gives the values and gradients of two equal ones"
    why_not_generator = ""  # each call is given a copy, and draws the same
    stages = (SHARED,)
    cause = "a result is kept by the identity or the memory of an argument, or one gradient is taken for both"
    nothing = "no two floating tensors of the sample have one shape and dtype"


class ReferenceGradients(Row):
    """Gradients in float64, for other scalars and small numbers too."""

    name = "reference_gradients"
    code = "G07"
    group = "derivatives"
    is_quick = True
    purpose = "gradients equal those of autograd through the reference, for other scalars and small numbers too"
    stages = (SCALARS, VALUES)
    endings = SMALL
    begins_plain = True
    is_of_gradients = True
    asks_reference = True
    tells_refusals = False

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one comparison of all inputs together for the sample and each change of it."""
        function = with_reference_gradients(function_of(target, sample))
        reference = reference_of(function)
        outputs = reference(*reference.inputs)
        if not any(output.requires_grad for output in outputs):
            raise NothingToCheckError(
                "no result of the reference carries a gradient: it is constant here, or not made by PyTorch operations"
            )
        vector_jacobian(function, function.inputs, signed_like(outputs))  # an op that has no gradient says so
        needs = [x.requires_grad_(i in function.positions) for i, x in enumerate(function.sample.tensors())]
        yield from super().run(target, function.sample.with_tensors(needs))


class Reuse(WayRow):
    """Every way in which a graph is used that is not one forward followed by one backward."""

    name = "reuse"
    code = "G11"
    group = "derivatives"
    is_quick = True
    needs = ("gradcheck",)
    purpose = "a backward gives the gradient of its own call, however often and wherever it runs"
    ways = USES_OF_A_GRAPH
    is_ended_by_failure = True


class SavedHooks(WayRow):
    """Each way of keeping saved tensors elsewhere, or of computing them again, against keeping them."""

    name = "saved_hooks"
    code = "G15"
    group = "saving"
    needs = ("gradcheck", "reuse")
    most_samples = 2
    purpose = "gradients stay the same under saved-tensor hooks, offloading and checkpointing"
    ways = SAVING_ELSEWHERE


class Subclasses(WayRow):
    """A wrapper with __torch_dispatch__, a subclass with __torch_function__, and a mode of each kind."""

    name = "subclasses"
    code = "Y03"
    group = "system"
    needs = ("gradcheck", "reuse")
    most_samples = 2
    purpose = "tensor subclasses and modes see the op as one op, and values and gradients stay"
    ways = SUBCLASSES


@dataclass(frozen=True)
class Threads(WayRow):
    """Every second thread has other numbers; a barrier lets all begin at once, forward and backward.

    Attributes:
        is_first: whether a longer call follows: threads that have little to do come one after the other.
    """

    is_first: bool = True

    name = "threads"
    code = "Y01"
    group = "system"
    needs = ("gradcheck", "reuse")
    most_samples = 2
    purpose = "eight threads at once, forward and backward, get the values of one"
    ways = (IN_THREADS, ELSEWHERE)
    is_ended_by_failure = True
    needs_gradients = False
    why_not_random = why_not_generator = "it draws random numbers, whose order among threads is not fixed"

    def further(self) -> Check:
        """Return the check without a longer call."""
        return replace(self, is_first=False)

    def _cases(self, looker: Looker) -> Iterator[Case]:
        yield from super()._cases(looker)
        if not self.is_first:
            return
        larger = [Case((change,)) for change in looker.changes() if change.text.endswith(f"-> {sizes.LONG}")]
        yield from (replace(case, way=IN_THREADS) for case in larger[:1] if not looker.look(case).reason)


class Uninitialised(Row):
    """Results with memory filled with nan, or with other bytes, against results with memory as it comes."""

    name = "uninitialised"
    code = "F11"
    group = "values"
    is_quick = True
    purpose = "no element of a result or a gradient is left unwritten"
    ways = (FILLED,)
    why_not_generator = ""  # what is filled shows whatever is drawn


class Vmap(Row):
    """Every combination of in_dims out of None, 0 and -1, some with 1, and vmap of vmap; then other scalars."""

    name = "vmap"
    code = "T01"
    group = "transforms"
    purpose = "vmap equals a loop over the batch, whichever arguments are batched, and nested"
    is_plain = True
    why_not_random = "the op gives other results from one call to the next"
    why_not_generator = "it draws from a generator that every call of a loop is given again"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding for each case; an op that says it has no batching rule is honest, and skipped."""
        if not sample.tensors():
            raise NothingToCheckError("the sample has no tensor to batch")
        if any(tensor.layout != torch.strided for tensor in sample.tensors()):
            raise NothingToCheckError("a tensor of the sample is not strided, and cannot be batched")
        for finding in super().run(replace(target, reference=None), sample):
            _, is_lacking, reason = finding.message.partition(NO_RULE)
            yield skipped(f"{NO_RULE}{reason}") if is_lacking else finding

    def _cases(self, looker: Looker) -> Iterator[Case]:
        target, sample = looker.target, looker.sample
        names = [target.name_of(leaf) for leaf in sample.leaves()]
        batchings = batchings_of(sample.tensors(), target.written_positions(sample))
        ways = [batching.way(names) for batching in batchings]
        yield from (Case((), way) for way in ways)
        numbers: dict[str, set[str]] = defaultdict(set)
        for name, other in scalars(target, sample):
            numbers[name].add(f"{name}={other!r}")
        changes = looker.changes()
        for texts in numbers.values():  # of each argument one other number, dimension or flag
            others = (change for change in changes if change.text in texts)
            taken = (change for change in others if not looker.look(Case((change,))).reason)
            yield from (Case((change,), ways[0]) for change in itertools.islice(taken, 1))


@dataclass(frozen=True)
class Compile(Row):
    """The aot_eager backend: all of torch.compile but generating code. Functions, not ops, may break their graph.

    Attributes:
        is_first: whether static shapes are compiled too: one sample shows them.
    """

    is_first: bool = True

    name = "compile"
    code = "C04"
    group = "compiler"
    most_samples = 2
    purpose = "compiled without a graph break, values and gradients equal eager ones"
    is_plain = True
    why_not_generator = GENERATOR_IN_GRAPH

    def further(self) -> Check:
        """Return the check with dynamic shapes alone."""
        return replace(self, is_first=False)

    def _cases(self, looker: Looker) -> Iterator[Case]:
        ways = compilations_of(looker.target)
        yield from (Case((), way) for way in ways if self.is_first or way.text.startswith("dynamic"))


class CompiledAutograd(WayRow):
    """The op runs in eager; its backward is traced through the rules when it runs, and compiled as a whole."""

    name = "compiled_autograd"
    code = "C07"
    group = "compiler"
    most_samples = 1
    needs = ("compile",)
    purpose = "compiled autograd gives the gradients of eager"
    ways = (COMPILED_BACKWARD,)


class CompiledTransforms(Row):
    """One compilation each, of a transform that works in eager."""

    name = "compiled_transforms"
    code = "C08"
    group = "compiler"
    most_samples = 1
    needs = ("compile", "vmap", "gradcheck", "forward_mode")
    purpose = "grad, vmap and jvp of torch.func give the same compiled as in eager"
    ways = TRANSFORMS
    is_plain = True
    why_not_generator = GENERATOR_IN_GRAPH

    def applies_to(self, target: Target) -> str | None:
        """Return a reason if torch.compile leaves out the rules of a Function under a transform: numbers are wrong."""
        if target.overload is not None and takes_instances(target.overload):
            return "torch.compile cannot close over an instance of a registered class under a transform"
        is_function = isinstance(target.subject, type) and issubclass(target.subject, torch.autograd.Function)
        if COMPILES_RULES_OF_FUNCTIONS:
            return None
        return "torch.compile leaves out the rules of a torch.autograd.Function in torch.func" if is_function else None

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding per transform; those that are refused, in eager or by the compiler, are skipped by name."""
        if not any(can_have_gradient(tensor) and tensor.numel() for tensor in sample.tensors()):
            raise NothingToCheckError("no tensor of the sample can have a gradient")
        if data_dependence(target, sample)[0]:
            raise NothingToCheckError("the size of its results depends on the data")
        yield from super().run(target, sample)
