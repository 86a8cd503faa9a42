"""Lists and dicts of tensors that an op writes to: each element counts, also under vmap and next to None."""

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap
from torch.testing import assert_close

from custom_autograd import KernelError, custom_op


@custom_op("mutated_lists::scale_", mutates_args=("ts",))
def scale_(ts: list[Tensor], x: Tensor) -> None:
    for t in ts:
        t.mul_(x)


@custom_op("mutated_lists::scale_dict_", mutates_args=("c",))
def scale_dict_(c: dict[str, Tensor], x: Tensor) -> None:
    for t in c.values():
        t.mul_(x)


@custom_op("mutated_lists::scale_some_", mutates_args=("ts",))
def scale_some_(ts: list[Tensor | None], x: Tensor) -> None:
    for t in ts:
        if t is not None:
            t.mul_(x)


@scale_some_.register_backward
def _(grad_ts, x):
    return {"ts": [None if grad is None else grad * x for grad in grad_ts], "x": None}


@custom_op("mutated_lists::scale_maybe_", mutates_args=("ts",))
def scale_maybe_(ts: list[Tensor] | None, x: Tensor) -> None:
    for t in ts or ():
        t.mul_(x)


def rand(*shape):
    return torch.rand(*shape, dtype=torch.float64)


X = rand(3)
Y = rand(4, 3)


def in_a_list(x, y):
    scale_([x, y], y)


def in_a_dict(x, y):
    scale_dict_({"b": y, "a": x}, y)


def beside_none(x, y):
    scale_some_([None, x, y], y)


def in_an_optional_list(x, y):
    scale_maybe_([y, x], y)


ALL = pytest.mark.parametrize("write", [in_a_list, in_a_dict, beside_none, in_an_optional_list])


@ALL
def test_a_vmap_that_would_write_an_element_once_per_sample_raises(write):
    with pytest.raises(KernelError, match="once per sample"):
        vmap(write, (None, 0))(X.clone(), Y.clone())


@ALL
def test_batched_elements_are_written_to_under_vmap(write):
    def f(x, y):
        x, y = x.clone(), y.clone()
        write(x, y)
        return x, y

    expected = [f(x, y) for x, y in zip(Y + 1, Y, strict=True)]
    assert_close(vmap(f)(Y + 1, Y), tuple(map(torch.stack, zip(*expected, strict=True))))


def test_the_element_or_the_key_is_named():
    assert_expected_inline(
        together(
            message(lambda: vmap(in_a_list, (None, 0))(X.clone(), Y.clone())),
            message(lambda: vmap(in_a_dict, (None, 0))(X.clone(), Y.clone())),
        ),
        """\
KernelError
  declared   FILE.py:LINE
mutated_lists::scale_: vmap would write one tensor once per sample: 'ts[0]' is not batched
  found      'ts[1]', 'x' batched
  do         batch 'ts[0]' as well: expand and clone it before the call
mutated_lists::scale_dict_: vmap would write one tensor once per sample: c['a'] is not batched
  found      c['b'], 'x' batched
  do         batch c['a'] as well: expand and clone it before the call""",
    )


def test_an_unbatched_list_beside_a_batched_argument_is_named():
    with pytest.raises(KernelError, match=r"'ts\[0\]' is not batched"):
        vmap(lambda x: scale_([X.clone()], x))(Y)


@pytest.mark.parametrize("absent", [None, []], ids=["None", "empty"])
def test_an_absent_list_is_no_reason_to_refuse_a_batch(absent):
    assert_close(vmap(lambda x: (scale_maybe_(absent, x), x * 1)[1])(Y), Y)


@pytest.mark.parametrize("call", [scale_some_, scale_some_.overload], ids=["op", "overload"])
def test_a_list_with_none_is_written_to(call):
    first, second = torch.ones(3), 2 * torch.ones(3)
    before = first._version
    for _ in range(3):
        call([first, None, second], torch.full((3,), 2.0))

    assert_close((first, second), (torch.full((3,), 8.0), torch.full((3,), 16.0)))
    assert first._version > before


@pytest.mark.parametrize("targets", [[None], [], [None, None]], ids=str)
def test_a_list_without_tensors_is_accepted(targets):
    assert scale_some_(targets, X) is None


@custom_op("mutated_lists::add_to_all", mutates_args="unknown")
def add_to_all(x: Tensor, targets: list[Tensor | None], last: Tensor | None) -> Tensor:
    for target in (*targets, last):
        if target is not None:
            target.add_(x)
    return x * 2


def test_unknown_writes_may_have_none_anywhere():
    x, target = torch.ones(2), torch.zeros(2)
    found = add_to_all(x, [None, target], None)

    assert_close((found, target), (torch.full((2,), 2.0), torch.ones(2)))


@pytest.mark.parametrize(
    "jacobian",
    [torch.autograd.functional.jacobian, lambda f, x: jacrev(f)(x), lambda f, x: jacfwd(f)(x)],
    ids=["autograd", "jacrev", "jacfwd"],
)
def test_gradients_and_tangents_of_a_list_with_none_are_right(jacobian):
    def f(x):
        ts = [x * 1, None, x * 2]
        scale_some_(ts, Y[0])
        return ts[0] * ts[2]

    assert_close(jacobian(f, X), torch.diag(4 * X * Y[0] ** 2))
