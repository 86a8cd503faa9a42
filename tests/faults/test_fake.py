"""The check `fake` fails a fake kernel that says anything but the truth about the real one."""

import torch
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample


def declare(name, fake):
    def kernel(x: Tensor) -> Tensor:
        return x * 2

    op = torch.library.custom_op(f"faults_fake::{name}", kernel, mutates_args=())
    if fake is not None:
        op.register_fake(fake)
    return op


def message_of(op):
    result = verdict("fake", lambda make: [Sample(make(4, 3))])(op)
    return result.message if result.status == "failed" else result.status


HONEST = declare("honest", torch.empty_like)

FAULTS = {
    "shape": (
        lambda x: x.new_empty(4, 4),
        "as given: output 0: the fake kernel gives shape (4, 4), the real one gives (4, 3)",
    ),
    "dtype": (
        lambda x: torch.empty_like(x, dtype=torch.int32),
        "gives dtype torch.int32, the real one gives torch.float32",
    ),
    "device": (lambda x: torch.empty_like(x, device="meta"), "gives device meta, the real one gives cpu"),
    "stride": (lambda x: x.new_empty(3, 4).t(), "gives stride (1, 4), the real one gives (3, 1)"),
    "contiguous_only": (lambda x: x.new_empty(x.shape), "transposed: output 0: the fake kernel gives stride (3, 1)"),
    "reads_data": (lambda x: x.new_empty(4, int(x.sum().item())), "as given: the fake kernel raises"),
}
OPS = {name: declare(name, fake) for name, (fake, _) in FAULTS.items()}
MISSING = declare("missing", None)


def test_honest_fake_passes():
    assert "passed" == message_of(HONEST)


@each("name", FAULTS)
def test_untrue_fake_fails(name):
    assert FAULTS[name][1] in message_of(OPS[name])


def test_missing_fake_is_skipped_with_its_reason():
    result = verdict("fake", lambda make: [Sample(make(4, 3))])(MISSING)

    assert "skipped" == result.status
    assert "no fake impl" in result.message


def test_size_that_depends_on_data_is_compared_by_dimensions():
    result = verdict("fake", lambda make: [Sample(make(4, 3))])(torch.nonzero)

    assert "passed" == result.status


def derived_cause(name, kernel, *, reference=None, fake=None):
    op = custom_op(f"faults_fake::{name}", reference=True)(reference or double)
    op.register_kernel("cpu", kernel)
    if fake is not None:
        op.register_fake(fake)
    result = verdict("fake", lambda make: [Sample(make(4, 3))])(op)
    return result.status, result.cause


def double(x: Tensor) -> Tensor:
    return x * 2


def test_contiguous_kernel_beside_a_reference_that_keeps_strides_is_told_what_to_do():
    status, cause = derived_cause("to_contiguous", lambda x: (x * 2).contiguous())

    assert "failed" == status
    assert_expected_inline(
        cause,
        """\
all kernels of an op return the same strides, and the fake is derived from the reference: end the reference in \
.contiguous(), or register_fake with x.new_empty(x.shape)""",
    )


def test_kernel_with_strides_of_its_own_is_told_to_return_those_of_the_reference():
    status, cause = derived_cause("to_columns", lambda x: (x * 2).t().contiguous().t())

    assert "failed" == status
    assert cause.endswith("let the kernel return the strides of the reference, or register_fake those of the kernel")


def test_reference_of_another_dtype_is_named_as_the_source_of_the_fake():
    found = derived_cause("to_double", lambda x: (x * 2).double())

    assert ("failed", "the fake is derived from the reference, which returns another dtype: register_fake") == found


def test_registered_fake_is_not_told_to_change_the_reference():
    found = derived_cause("with_fake", lambda x: (x * 2).contiguous(), fake=torch.empty_like)

    assert ("failed", "") == found


@custom_op("faults_fake::parted", outputs=("parts", "norm", "count"))
def parted(x: Tensor) -> tuple[list[Tensor], Tensor | None, int]:
    return [x * 1, x * 2], None, 2


@custom_op("faults_fake::normed", outputs=("count", "norm", "scaled"))
def normed(x: Tensor) -> tuple[int, Tensor | None, Tensor]:
    return 2, None, x * 2


@parted.register_fake
def _(x):
    return [torch.empty_like(x), x.new_empty(3, 4).t()], None, 2


@normed.register_fake
def _(x):
    return 2, None, x.new_empty(3, 4).t()


@each("op, name", [(parted, "output 1"), (normed, "'scaled'")])
def test_a_number_or_an_absent_output_is_not_named_in_place_of_a_tensor(op, name):
    stride = "the fake kernel gives stride (1, 4), the real one gives (3, 1)"

    assert f"as given: {name}: {stride}" == message_of(op).splitlines()[0]
