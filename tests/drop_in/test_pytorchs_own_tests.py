"""What tests of PyTorch ask of custom ops, and no other test here asked."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from custom_autograd import DeclarationError, custom_op
from custom_autograd.torch_private.definitions import name_source_of_fake

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def added(number: int):
    @custom_op(f"pytorchs_own::added_{number}")
    def op(x: Tensor) -> Tensor:
        return x + number

    op.register_fake(lambda x: torch.empty_like(x))
    return op


OPS = [added(number) for number in range(12)]


def broken(x):
    for op in OPS:
        x = op(x)
        torch._dynamo.graph_break()
    return x


def test_ops_between_graph_breaks_are_not_compiled_one_by_one():
    counters.clear()

    with torch._dynamo.config.patch(error_on_recompile=True):
        found = torch.compile(broken, backend="eager")(torch.zeros(2))

    assert [66, 66] == found.tolist()
    assert 0 == counters["frames"]["ok"]


def test_torch_says_where_a_fake_was_written():
    with pytest.raises(RuntimeError, match=r"already has an? fake impl registered at test_pytorchs_own_tests\.py:\d+"):
        torch.library.Library("pytorchs_own", "FRAGMENT")._register_fake("added_0", lambda x: x, allow_override=False)


def test_the_fake_of_an_unknown_op_has_no_source():
    name_source_of_fake("pytorchs_own::unknown", "nowhere")

    assert torch._library.simple_registry.singleton.find("pytorchs_own::unknown").fake_impl.kernel is None


@pytest.mark.skipif(not hasattr(torch.Tag, "inplace"), reason="the tags came with a later torch")
@pytest.mark.parametrize("tag", ["inplace", "out"])
def test_an_op_that_hands_back_an_argument_returns_no_tuple_of_one(tag):
    def written(x: Tensor) -> tuple[Tensor]:
        return (x.add_(1),)

    with pytest.raises(DeclarationError, match="an op tagged inplace or out returns no tuple of one"):
        custom_op("pytorchs_own::written", written, mutates_args="x", tags=getattr(torch.Tag, tag))


def test_an_op_without_tensors_has_no_device_type():
    def ones() -> Tensor:
        return torch.ones(3)

    with pytest.raises(DeclarationError, match="an op without tensors cannot choose between devices"):
        custom_op("pytorchs_own::ones", ones, device_types="cpu")
