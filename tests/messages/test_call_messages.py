"""What a call is answered with when a kernel, a fake or a batching rule does not do what the schema declares."""

# ruff: noqa: E501 - a message is as long as it is

import enum
from typing import Literal

import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from torch import Tensor

from custom_autograd import custom_op

ONES = torch.ones(2)
SQUARE = torch.ones(2, 2)


class Mode(enum.Enum):
    """Two of them."""

    MEAN = 1
    SUM = 2


def called(kernel, schema="(Tensor x) -> Tensor", args=(ONES,), **options):
    op = custom_op("words::called", kernel, schema=schema, replace=True, **options)
    return message(lambda: op(*args))


def faked(fake, schema="(Tensor x) -> Tensor"):
    op = custom_op("words::faked", lambda x: x * 1, schema=schema, replace=True)
    if fake is not None:
        op.register_fake(fake)
    return message(lambda: op(torch.ones(2, device="meta")))


def batched(rule=None, schema="(Tensor x) -> Tensor", kernel=lambda x: x * 1, args=(SQUARE,), **options):
    in_dims = options.pop("in_dims", 0)
    op = custom_op("words::batched", kernel, schema=schema, replace=True, **options)
    if rule is not None:
        op.register_vmap(rule)
    return message(lambda: torch.vmap(op, in_dims)(*args))


@custom_op("words::reduce")
def reduce(x: Tensor, mode: Mode = Mode.SUM, side: Literal["left", "right"] = "left") -> Tensor:
    return x * 1


def test_results_of_a_kernel():
    assert_expected_inline(
        together(
            called(lambda x: (x * 1, x * 2, x * 3), schema="(Tensor x) -> (Tensor out, Tensor rstd)"),
            called(lambda x: x * 1, schema="(Tensor x) -> (Tensor out, Tensor rstd)"),
            called(lambda x: None),
            called(lambda x: 3, "(Tensor x) -> Tensor"),
            called(lambda x: 0.5, "(Tensor x) -> int"),
            called(lambda x: x * 1, "(Tensor x) -> Tensor[]"),
        ),
        """\
KernelError: words::called
  declared   FILE.py:LINE
the default kernel, FILE.py:LINE, returns the wrong number of outputs
  expected   2: 'out', 'rstd'
  found      3
  do         return one value per output of the schema, in order
the default kernel, FILE.py:LINE, returns the wrong number of outputs
  expected   2: 'out', 'rstd'
  found      Tensor
  do         return one value per output of the schema, in order
the default kernel, FILE.py:LINE, returns the wrong type as output 'output'
  expected   Tensor
  found      None
  do         is a 'return' missing?
the default kernel, FILE.py:LINE, returns the wrong type as output 'output'
  expected   Tensor
  found      int
  do         return a tensor: torch.tensor(...)
the default kernel, FILE.py:LINE, returns the wrong type as output 'output'
  expected   int
  found      float
  do         return a value of the type int
the default kernel, FILE.py:LINE, returns no list of tensors as output 'output'
  expected   a list of tensors
  found      Tensor
  do         return one tensor per element, in a list""",
    )


def test_memory_that_a_kernel_shares_or_writes_to():
    assert_expected_inline(
        together(
            called(lambda x: x),
            called(lambda x: [x * 1] * 2, schema="(Tensor x) -> (Tensor out, Tensor rstd)"),
            called(lambda x: x * 1, "(Tensor(a!) x) -> Tensor(a!)", mutates_args=("x",)),
            called(lambda x: x.mul_(1) + 1, args=(torch.ones(2),)),
        ),
        """\
KernelError: words::called
  declared   FILE.py:LINE
the default kernel, FILE.py:LINE, returns an output 'output' that shares memory with input 'x'
  expected   new memory
  do         return a copy (.clone()), or declare aliases={'output': 'x'} for 'x' itself, or 'Tensor(a)' in schema= for a view
the default kernel, FILE.py:LINE, returns an output 'rstd' that shares memory with output 'out'
  expected   new memory
  do         return a copy of one of them
the default kernel, FILE.py:LINE, returns something other than 'x' as output 'output'
  expected   the tensor that was given as 'x', or None
  do         write the result to 'x' (copy_) and return it
the default kernel, FILE.py:LINE, writes to its input 'x'
  do         write to a copy, or declare it: mutates_args=('x',)""",
    )


@custom_op("words::inner")
def inner(x: Tensor) -> Tensor:
    return x * 1


@custom_op("words::add_", schema="(Tensor(a!) x, Tensor y) -> Tensor(a!)", mutates_args="x")
def add_(x, y):
    return x.add_(y)


def test_tensors_that_an_op_cannot_take():
    kept = []
    torch.vmap(lambda x: kept.append(x) or x)(SQUARE)
    assert_expected_inline(
        together(
            message(lambda: torch.func.functionalize(lambda x: add_(x, x[:1]))(torch.ones(2))),
            called(lambda x: x * 1, args=(kept[0],)),
            called(lambda x: inner([x])),
        ),
        """\
KernelError
  declared   FILE.py:LINE
words::add_: the op writes to 'x', which shares memory with 'y', in a graph
  expected   arguments that do not share memory with what is written
  do         pass a clone() as 'y'
words::called: the op is called with a batched tensor outside of its torch.vmap
  expected   a tensor that torch.vmap returned
  do         return the tensor from the function that is batched; what the function stores elsewhere stays batched
words::inner: argument 'x' has the wrong type
  expected   Tensor
  found      list: [tensor([1., 1.])]
  do         pass torch.as_tensor(x)""",
    )


def test_kernel_that_is_missing():
    assert_expected_inline(
        together(
            called(lambda x: x, device_types=("cuda", "mps")),
            called(lambda n, device=None: n, "(int n, Device? device=None) -> Tensor", (2,), device_types="cuda"),
        ),
        """\
KernelError: words::called
  declared   FILE.py:LINE
there is no kernel for device type 'cpu'
  expected   tensors on 'cuda', 'mps'
  found      'cpu'
  do         register one with register_kernel('cpu')
there is no kernel for device type 'cpu'
  expected   tensors on 'cuda'
  found      'cpu'
  do         register one with register_kernel('cpu')""",
    )


def test_value_of_no_enumeration_and_no_literal():
    assert_expected_inline(
        together(
            message(lambda: reduce(ONES, "mean")),
            message(lambda: reduce(ONES, side="top")),
        ),
        """\
KernelError: words::reduce
  declared   FILE.py:LINE
argument 'mode': expected one of Mode.MEAN, Mode.SUM, found 'mean'
  do         pass Mode.MEAN, for example
argument 'side': expected one of 'left', 'right', found 'top'
  do         pass 'left', for example""",
    )


def test_fake_that_is_missing():
    assert_expected_inline(
        faked(None),
        """\
FakeUnavailable: words::faked: the op meets fake tensors, and no fake is registered
  declared   FILE.py:LINE
  do         register_fake a function that returns empty tensors of the right shape, dtype and device; torch.compile, export and meta tensors need it""",
    )


def test_results_of_a_fake():
    assert_expected_inline(
        together(
            faked(lambda x: None),
            faked(lambda x: (x, x)),
        ),
        """\
KernelError: words::faked
  declared   FILE.py:LINE
the fake, FILE.py:LINE, returns the wrong type as output 'output'
  expected   Tensor
  found      None
  do         is a 'return' missing?
the fake, FILE.py:LINE, returns the wrong number of outputs
  expected   1: 'output'
  found      2
  do         return one value per output of the schema, in order""",
    )


def in_a_list(info, in_dims, x):
    return [x, x * 2], [0, 1]


def test_results_of_a_vmap_rule():
    assert_expected_inline(
        together(
            batched(lambda info, in_dims, x: x),
            batched(lambda info, in_dims, x: (x, 0, 0)),
            batched(lambda info, in_dims, x: (x * 2, 1), args=(torch.ones(4, 3),)),
            batched(lambda info, in_dims, x: (x * 2, 5), args=(torch.ones(4, 3),)),
            batched(in_a_list, "(Tensor x) -> Tensor[]", lambda x: [x, x * 2], (torch.ones(4, 3),)),
        ),
        """\
KernelError: words::batched
  rule       FILE.py:LINE
  declared   FILE.py:LINE
the vmap rule returns no pair
  expected   (output, out_dims)
  found      Tensor
  do         return the output, and for each output the dimension that is batched, or None
the vmap rule returns no pair
  expected   (output, out_dims)
  found      a tuple of 3
  do         return the output, and for each output the dimension that is batched, or None
the vmap rule reports that output 'output' is batched over dimension 1, and it is not
  expected   4 samples there
  found      shape (4, 3)
  do         return as out_dims the dimension of each output that has the batch, or None
the vmap rule reports that output 'output' is batched over dimension 5, and it is not
  expected   4 samples there
  found      shape (4, 3)
  do         return as out_dims the dimension of each output that has the batch, or None
the vmap rule reports that output 'output' is batched over dimension 1, and it is not
  expected   4 samples there
  found      shape (4, 3)
  do         return as out_dims the dimension of each output that has the batch, or None""",
    )


def test_vmap_without_a_meaning():
    assert_expected_inline(
        batched(
            kernel=lambda x, y: None,
            schema="(Tensor(a!) x, Tensor y) -> ()",
            args=(torch.ones(2), torch.ones(2, 2)),
            in_dims=(None, 0),
            mutates_args=("x",),
        ),
        """\
KernelError: words::batched: vmap would write one tensor once per sample: 'x' is not batched
  found      'y' batched
  declared   FILE.py:LINE
  do         batch 'x' as well: expand and clone it before the call""",
    )


def test_vmap_of_results_that_make_no_batch():
    def kept(x):
        return x[x > 0].clone()

    args = (torch.tensor([[1.0, 2.0], [-1.0, 3.0], [-1.0, -3.0]]),)
    assert_expected_inline(
        together(
            batched(kernel=lambda x: int(x[0]), schema="(Tensor x) -> int", args=args),
            batched(kernel=kept, args=args),
            batched(kernel=lambda x: [kept(x), x * 1], schema="(Tensor x) -> Tensor[]", args=args),
            batched(kernel=lambda x: [x * 1 for _ in kept(x)], schema="(Tensor x) -> Tensor[]", args=args),
            batched(kernel=lambda x: x * 1 if x[0] > 0 else None, schema="(Tensor x) -> Tensor?", args=args),
            batched(kernel=lambda x: int(x[0]), schema="(Tensor x) -> int", args=(torch.arange(12.0).view(6, 2),)),
        ),
        """\
VmapUnavailable: words::batched
  declared   FILE.py:LINE
the output 'output' is not a tensor and differs between the samples of a vmap
  found      1, -1, -1
  do         call the op in a loop over the samples, or register_vmap a rule that says what it means
the output 'output' has another shape for each sample of a vmap
  found      (2,), (1,), (0,)
  do         call the op in a loop over the samples, or register_vmap a rule that says what it means
the output 'output' has another shape for each sample of a vmap
  found      (2,), (1,), (0,)
  do         call the op in a loop over the samples, or register_vmap a rule that says what it means
the output 'output' has another length for each sample of a vmap
  found      a list of 2, a list of 1, a list of 0
  do         call the op in a loop over the samples, or register_vmap a rule that says what it means
the output 'output' is None for some samples of a vmap
  found      a tensor, None, None
  do         call the op in a loop over the samples, or register_vmap a rule that says what it means
the output 'output' is not a tensor and differs between the samples of a vmap
  found      0, 2, 4, 6, ...
  do         call the op in a loop over the samples, or register_vmap a rule that says what it means""",
    )


def test_vmap_of_random_numbers():
    assert_expected_inline(
        batched(tags=[torch.Tag.nondeterministic_seeded]),
        """\
VmapUnavailable: words::batched: vmap met an op that draws random numbers
  expected   randomness='different' or 'same'
  found      randomness='error'
  declared   FILE.py:LINE
  do         pass randomness= to torch.vmap""",
    )


def test_instance_of_the_function():
    assert_expected_inline(
        message(reduce.function, TypeError),
        """TypeError: reduce is not to be instantiated or called: call the op, or reduce.apply(...)""",
    )


def converted(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return x.to(dtype) + 1


def padded(x: Tensor, widths: tuple[int, int]) -> Tensor:
    return torch.nn.functional.pad(x, widths)


class Stack(list):
    """A list that looks up in another way."""

    def __getitem__(self, index):
        return super().__getitem__(-1 - index)


def test_values_of_a_wrong_type():
    """PyTorch takes any integer for a dtype, and reads beyond the end of its table."""
    assert_expected_inline(
        together(
            called(converted, None, (torch.zeros(1), 3000)),
            called(lambda x, n: x * n, "(Tensor x, int n) -> Tensor", (ONES, 1.5)),
            called(padded, None, (ONES, (1, "2"))),
            called(lambda x: x * 1, args=([1.0, 2.0],)),
            called(lambda tensors: tensors[0] * 1, schema="(Tensor[] tensors) -> Tensor", args=(Stack([ONES, ONES]),)),
            called(lambda x, y: x * y, schema="(Tensor x, Tensor y) -> Tensor", args=(ONES, None)),
        ),
        """\
KernelError: words::called
  declared   FILE.py:LINE
argument 'dtype': expected a torch.dtype, found 3000
  do         pass torch.float32, for example
argument 'n' has the wrong type
  expected   int
  found      float: 1.5
  do         pass 3, for example
argument 'widths' has the wrong type
  expected   list[int]
  found      list: [1, '2']
  do         pass (3, 3), for example
argument 'x' has the wrong type
  expected   Tensor
  found      list: [1.0, 2.0]
  do         pass torch.as_tensor(x)
argument 'tensors' has the wrong type
  expected   list[Tensor]
  found      Stack, a subclass of list, of which the op would see less
  do         make it a plain list: list(...)
argument 'y' has the wrong type
  expected   Tensor
  found      None
  do         pass a tensor such as torch.zeros(()), or declare 'y: Tensor | None'""",
    )


def test_tensors_with_data_among_tensors_without():
    op = custom_op("words::two", lambda x, y: x + y, schema="(Tensor x, Tensor y) -> Tensor", replace=True)
    op.register_fake(lambda x, y: torch.empty_like(x))
    assert_expected_inline(
        message(lambda: op(ONES, ONES.to("meta"))),
        """\
KernelError: words::two: the op meets tensors on 'meta', which have no data, together with tensors that have
  expected   all tensors on one device
  found      'x' on 'cpu', 'y' on 'meta'
  rule       FILE.py:LINE, fake
  declared   FILE.py:LINE
  do         move them to one device; a fake makes its outputs on the device of an input""",
    )
