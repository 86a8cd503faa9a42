"""The backward belongs to its own call: interleaved, repeated, in another thread, it gives the same gradient."""

import threading
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.harness.base import PASSED, Check, Finding, failed
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import TensorFunction, function_of
from custom_autograd.verification.harness.passes import (
    Forward,
    cotangents_of,
    forward,
    is_same,
    repeatable_gradients,
    varied,
)
from custom_autograd.verification.harness.randomness import move_on
from custom_autograd.verification.harness.targets import Target


class Reuse(Check):
    """Every way in which a graph is used that is not one forward followed by one backward."""

    name = "reuse"
    code = "G11"
    group = "derivatives"
    is_quick = True
    needs = ("gradcheck",)
    purpose = "a backward gives the gradient of its own call, however often and wherever it runs"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per way of use; the first that fails ends it."""
        function = function_of(target, sample)
        cotangents = cotangents_of(function, function.inputs)
        expected = repeatable_gradients(function, function.inputs, cotangents)
        for finding in _findings(function, cotangents, expected):
            yield finding
            if finding is not PASSED:
                return


def _findings(function: TensorFunction, cotangents: Sequence[Tensor], expected: Sequence[Tensor]) -> Iterator[Finding]:
    yield _saved_unchanged(function, cotangents)
    yield from _interleaved(function, cotangents, expected)
    yield _same_noise(function, cotangents, expected)
    yield from _twice(function, cotangents, expected)
    yield _in_thread(function, cotangents, expected)


def _saved_unchanged(function: TensorFunction, cotangents: Sequence[Tensor]) -> Finding:
    """Check that what was saved has the same values after the backward as before."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        called = forward(function, function.inputs)
    values = [tensor.clone() for tensor in saved]  # not in pack: a forward may still write to what it has saved
    called.backward(cotangents)
    for position, (now, before) in enumerate(zip(saved, values, strict=True)):
        if not is_same(now, before):
            return failed(
                f"the backward writes to saved tensor {position}, of shape {tuple(now.shape)}",
                cause="an operation in place on a saved tensor",
            )
    return PASSED


def _interleaved(
    function: TensorFunction, cotangents: Sequence[Tensor], expected: Sequence[Tensor]
) -> Iterator[Finding]:
    """Check the backward of a first call after a second call, and after the backward of that."""
    other_inputs = varied(function, function.inputs, 3)
    other_expected = [grad.clone() for grad in forward(function, other_inputs).backward(cotangents)]
    first, second = forward(function, function.inputs), forward(function, other_inputs)
    label = "two calls, then the backward of the first"
    yield _compare(function, label, first.backward(cotangents), expected, STATE)
    yield _compare(
        function, "the backward of the second after that", second.backward(cotangents), other_expected, STATE
    )
    first, second = forward(function, function.inputs), forward(function, other_inputs)
    second.backward(cotangents)
    yield _compare(function, "backwards in reverse order", first.backward(cotangents), expected, STATE)


def _same_noise(function: TensorFunction, cotangents: Sequence[Tensor], expected: Sequence[Tensor]) -> Finding:
    """Check a backward of a random forward that finds the generator elsewhere, as it does in a model."""
    if not function.is_random():
        return PASSED
    with kept_random_state():
        called = forward(function, function.inputs)
        move_on({x.device for x in called.inputs})
        found = called.backward(cotangents)
    label = "the backward after other random numbers were drawn"
    return _compare(function, label, found, expected, "it draws again what the forward drew, and did not save")


def _twice(function: TensorFunction, cotangents: Sequence[Tensor], expected: Sequence[Tensor]) -> Iterator[Finding]:
    """Check that a graph that is kept gives the same gradient again, in new memory."""
    called = forward(function, function.inputs)
    first = called.backward(cotangents, retain_graph=True)
    kept = [grad.clone() for grad in first]
    called.backward([-0.7 * u for u in cotangents], retain_graph=True)
    if not all(is_same(a, b) for a, b in zip(first, kept, strict=True)):
        yield failed(
            "the gradient that one backward returned changes during the next",
            cause="a buffer that is kept between calls is returned as the gradient",
        )
        return
    again = called.backward(cotangents)
    yield _compare(function, "the backward again, with retain_graph=True", again, expected, "it uses up what it reads")


def _in_thread(function: TensorFunction, cotangents: Sequence[Tensor], expected: Sequence[Tensor]) -> Finding:
    """Check the backward in a thread that has not seen the forward, as engines of devices and data loaders run it."""
    called = forward(function, function.inputs)
    found: list[tuple[Tensor, ...]] = []
    raised: list[BaseException] = []
    thread = threading.Thread(target=_collect, args=(called, cotangents, found, raised))
    thread.start()
    thread.join()
    if raised:
        return failed(
            f"the backward in another thread raises {type(raised[0]).__name__}: {raised[0]}",
            cause="it reads state that belongs to the thread of the forward",
        )
    return _compare(function, "the backward in another thread", found[0], expected, "state that belongs to a thread")


def _collect(
    called: Forward, cotangents: Sequence[Tensor], found: list[tuple[Tensor, ...]], raised: list[BaseException]
) -> None:
    try:
        found.append(called.backward(cotangents))
    except Exception as error:  # noqa: BLE001 - a thread hands over what it raises
        raised.append(error)


def _compare(
    function: TensorFunction, label: str, found: Sequence[Tensor], expected: Sequence[Tensor], cause: str
) -> Finding:
    names = [f"the gradient of '{name}'" for name in function.names]
    difference = find_difference(found, expected, names=names)
    return PASSED if difference is None else failed(f"{label}: {difference} from one call alone", cause=cause)


STATE = "state outside ctx, which the next call overwrites"
