"""Eight threads that call an op at once, forward and backward, get what one thread gets."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed, first_line
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import TensorFunction, function_of
from custom_autograd.verification.harness.passes import Forward, cotangents_of, forward, repeatable_gradients, varied
from custom_autograd.verification.harness.targets import Target

THREADS = 8
ROUNDS = 3
PATIENCE = 30.0
"""Seconds after which a thread that waits for the others gives up."""
LIMIT = 120.0
"""Seconds after which threads that have not ended are taken to wait for each other."""


class Threads(Check):
    """Each thread has inputs of its own; a barrier lets them begin at once, forward and backward."""

    name = "threads"
    code = "Y01"
    group = "system"
    needs = ("gradcheck", "reuse")
    most_samples = 2
    purpose = "eight threads at once, forward and backward, get the values of one"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per round; the first that fails ends it."""
        function = function_of(target, sample)
        if function.is_random():
            raise NothingToCheckError("it draws random numbers, whose order among threads is not fixed")
        cotangents = cotangents_of(function, function.inputs)
        inputs = [varied(function, function.inputs, step) for step in range(THREADS)]
        expected = [_run(function, values, cotangents) for values in inputs]
        repeatable_gradients(function, inputs[0], cotangents)
        names = function.output_names + [f"the gradient of '{name}'" for name in function.names]
        with _short_turns():
            for _ in range(ROUNDS):
                finding = _round(function, inputs, cotangents, expected, names)
                yield finding
                if finding is not PASSED:
                    return


def _round(
    function: TensorFunction,
    inputs: Sequence[Sequence[Tensor]],
    cotangents: Sequence[Tensor],
    expected: Sequence[Sequence[Tensor]],
    names: Sequence[str],
) -> Finding:
    barrier = threading.Barrier(len(inputs))
    workers = [_Worker(function, values, cotangents, barrier) for values in inputs]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + LIMIT
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
    if any(worker.is_alive() for worker in workers):
        return failed(f"{THREADS} threads at once: not all have ended after {LIMIT:g} s", cause=LOCKED)
    raised = [worker.error for worker in workers if worker.error is not None]
    first = [error for error in raised if not isinstance(error, threading.BrokenBarrierError)]
    if raised:
        return failed(f"{THREADS} threads at once: one raises {first_line((first or raised)[0])}", cause=CAUSE)
    for worker, wanted in zip(workers, expected, strict=True):
        difference = find_difference(worker.found, wanted, names=names)
        if difference is not None:
            return failed(f"{THREADS} threads at once: {difference} from one thread", cause=CAUSE)
    return _elsewhere([worker.left for worker in workers], cotangents, expected, names)


def _elsewhere(
    left: Sequence[Forward | None],
    cotangents: Sequence[Tensor],
    expected: Sequence[Sequence[Tensor]],
    names: Sequence[str],
) -> Finding:
    """Check the backward of what each thread called, in a thread that has called nothing."""
    count = len(cotangents)
    for called, wanted in zip(left, expected, strict=True):
        try:
            with ThreadPoolExecutor(1) as fresh:
                found = () if called is None else fresh.submit(called.backward, cotangents).result()
        except Exception as error:  # noqa: BLE001 - whatever it raises here and not there is what there is to report
            return failed(f"a backward in another thread than its forward raises {first_line(error)}", cause=LOCAL)
        difference = find_difference(found, wanted[count:], names=names[count:])
        if difference is not None:
            return failed(f"a backward in another thread than its forward: {difference} in its own", cause=LOCAL)
    return PASSED


class _Worker(threading.Thread):
    """One forward and one backward, each begun together with the other threads; then a forward for another thread."""

    def __init__(
        self,
        function: TensorFunction,
        inputs: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        barrier: threading.Barrier,
    ) -> None:
        super().__init__(daemon=True)
        self._work = replace(function, state=None), inputs, cotangents
        self._barrier = barrier
        self.found: Sequence[Tensor] = ()
        self.left: Forward | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Keep what it finds, or what it raises."""
        try:
            self.found = _run(*self._work, self._barrier)
            function, inputs, _ = self._work
            self.left = forward(function, inputs, keeps_randomness=False)
        except Exception as error:  # noqa: BLE001 - a thread hands over what it raises
            self.error = error
            self._barrier.abort()


def _run(
    function: TensorFunction,
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    barrier: threading.Barrier | None = None,
) -> Sequence[Tensor]:
    """Return the outputs and the gradients."""
    if barrier is not None:
        barrier.wait(PATIENCE)
    called = forward(function, inputs, keeps_randomness=barrier is None)
    outputs = [output.detach().clone() for output in called.outputs]
    if barrier is not None:
        barrier.wait(PATIENCE)
    return [*outputs, *called.backward(cotangents)]


@contextlib.contextmanager
def _short_turns() -> Iterator[None]:
    """Switch threads as often as Python can, so that what can go wrong between two lines does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


CAUSE = "state that all threads share, such as a buffer or a variable of the module"
LOCKED = "a lock that one call holds while it waits for another"
LOCAL = "the forward leaves in its own thread what the backward reads"
