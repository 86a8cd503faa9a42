"""What is registered comes before what follows from the line, as capabilities() says and as calls show."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from custom_autograd import custom_op

LINE = "x: *b d -> output: *b d"


def declared(name, **options):
    def double(x: Tensor) -> Tensor:
        return x * 2

    return custom_op(f"shapes_precedence::{name}", double, shapes=LINE, **options)


def counted(op):
    with FlopCounterMode(display=False) as counter:
        op(torch.ones(2, 3))
    return counter.get_total_flops()


DERIVED = {"fake": "derived from the line of shapes", "vmap": "derived from the line of shapes"}


@pytest.mark.parametrize("capability", DERIVED)
def test_what_follows_from_the_line_is_told(capability):
    assert declared(f"derived_{capability}").capabilities()[capability].startswith(DERIVED[capability])


def test_registered_fake_comes_first():
    op = declared("fake")
    op.register_fake(lambda x: x.new_empty(x.shape, dtype=torch.float16))

    assert op.capabilities()["fake"].startswith("registered")
    with FakeTensorMode() as mode:
        assert torch.float16 == op(mode.from_tensor(torch.ones(2, 3))).dtype


def test_reference_comes_before_the_line_for_the_fake():
    assert "derived from the reference" == declared("reference", reference=True).capabilities()["fake"]


def test_registered_vmap_comes_first():
    op = declared("vmap")
    op.register_vmap(lambda info, in_dims, x: (x * 3, in_dims[0]))

    assert op.capabilities()["vmap"].startswith("registered")
    assert torch.equal(3 * torch.ones(2, 3), torch.vmap(op)(torch.ones(2, 3)))


def test_registered_flops_come_first():
    op = declared("flops", flops="2*b*d")
    assert 12 == counted(op)
    assert "derived from the line of shapes: 2*b*d" == op.capabilities()["flops"]

    op.register_flops(lambda x: 5)

    assert op.capabilities()["flops"].startswith("registered")
    assert 5 == counted(op)


def test_line_is_shown():
    assert declared("shown").capabilities()["shapes"].endswith(LINE)


def test_op_without_a_line_says_how_to_give_one():
    op = custom_op("shapes_precedence::bare", lambda x: x * 2, schema="(Tensor x) -> Tensor")

    assert "none: no line declares them (shapes=)" == op.capabilities()["shapes"]
