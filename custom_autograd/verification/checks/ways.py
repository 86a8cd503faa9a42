"""Checks that are rows of a table of ways: a call that is made otherwise gives what a plain call gives."""

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls.backward_ways import ELSEWHERE, SAVING_ELSEWHERE, USES_OF_A_GRAPH
from custom_autograd.verification.calls.memory_ways import FILLED
from custom_autograd.verification.calls.row import Row
from custom_autograd.verification.calls.subclass_ways import SUBCLASSES
from custom_autograd.verification.calls.ways import IN_THREADS


class WayRow(Row):
    """A check of gradients in some ways: each gives what a plain call of the op itself gives."""

    needs_gradients = True
    is_plain = True

    def why_not_random(self, sample: Sample) -> str:
        """Return nothing: equal calls draw equal numbers."""
        del sample
        return ""


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


class Threads(WayRow):
    """Every second thread has other numbers; a barrier lets all begin at once, forward and backward."""

    name = "threads"
    code = "Y01"
    group = "system"
    needs = ("gradcheck", "reuse")
    most_samples = 2
    purpose = "eight threads at once, forward and backward, get the values of one"
    ways = (IN_THREADS, ELSEWHERE)
    is_ended_by_failure = True

    def why_not_random(self, sample: Sample) -> str:
        """Return why: nothing else is asked."""
        del sample
        return "it draws random numbers, whose order among threads is not fixed"


class Uninitialised(Row):
    """Results with memory filled with nan against results with memory as it comes."""

    name = "uninitialised"
    code = "F11"
    group = "values"
    is_quick = True
    purpose = "no element of a result or a gradient is left unwritten"
    ways = (FILLED,)

    def why_not_random(self, sample: Sample) -> str:
        """Return nothing: what is filled shows whatever is drawn."""
        del sample
        return ""
