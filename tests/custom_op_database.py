"""PyTorch's own database of custom ops, with another `custom_op` in place of `torch.library`'s.

The source of `torch.testing._internal.custom_op_db` is read from the installed torch and executed here. Each cell of
op x capability compares by value with a restatement of the op in plain PyTorch operations.
"""

import importlib.util
from pathlib import Path

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}


def _source(namespace: str) -> str:
    """Return the database's source with another `custom_op` and namespace, and one wrong rule replaced.

    `numpy_cat_vmap` unpacks one entry of `in_dims` where there are two; its replacement says what was meant.
    """
    text = Path(importlib.util.find_spec("torch.testing._internal.custom_op_db").origin).read_text(encoding="utf-8")
    assert text.count("@torch.library.custom_op(") >= 11
    text = text.replace("@torch.library.custom_op(", "@custom_op(").replace("_torch_testing", namespace)
    start, end = text.index("def numpy_cat_vmap("), text.index("numpy_cat.register_vmap(")
    return text[:start] + RIGHT_CAT_RULE + text[end:]


RIGHT_CAT_RULE = """
def numpy_cat_vmap(info, in_dims, xs, dim):
    pairs = zip(xs, in_dims[0], strict=True)
    xs = [x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0) for x, d in pairs]
    return numpy_cat(xs, dim + 1 if dim >= 0 else dim), 0

"""


def load(custom_op: object, namespace: str) -> dict[str, object]:
    """Return the database by name of its ops, declared anew with `custom_op` in a namespace."""
    scope: dict[str, object] = {"custom_op": custom_op, "__name__": "custom_op_database"}
    exec(compile(_source(namespace), "custom_op_database.py", "exec"), scope)
    return {info.name: info for info in scope["custom_op_db"]}


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    order, keep = scores.argsort(descending=True).tolist(), []
    area = (boxes[:, 2] - boxes[:, 0] + 1) * (boxes[:, 3] - boxes[:, 1] + 1)
    while order:
        i, *rest = order
        keep.append(i)
        low, high = torch.maximum(boxes[i, :2], boxes[rest, :2]), torch.minimum(boxes[i, 2:], boxes[rest, 2:])
        inter = (high - low + 1).clamp(min=0).prod(1)
        is_kept = inter / (area[i] + area[rest] - inter) <= iou_threshold
        order = [index for index, kept in zip(rest, is_kept.tolist(), strict=True) if kept]
    return torch.tensor(keep)


def sort(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    values, index = torch.sort(x, dim=dim, stable=True)
    return values, index, torch.argsort(index, dim=dim)


def split(x: Tensor, splits: list[int], dim: int) -> list[Tensor]:
    return [part.clone() for part in torch.tensor_split(x, splits, dim)]


REFERENCES = {
    "NumpyCubeCustomOp": lambda x: (x**3, 3 * x**2),
    "NumpyMulCustomOp": lambda x, y: x * y,
    "NumpyMulScalarCustomOp": lambda x, *, scalar: x * scalar,
    "NumpySortCustomOp": sort,
    "NumpyTakeCustomOp": lambda x, ind, ind_inv, dim: torch.take_along_dim(x, ind, dim),
    "NumpyNonzeroCustomOp": lambda x: x.nonzero(),
    "NumpyNMSCustomOp": nms,
    "NumpyViewCopyCustomOp": lambda x, shape: x.reshape(shape).clone(),
    "NumpyCatCustomOp": lambda xs, dim: torch.cat(list(xs), dim),
    "NumpySplitCopyCustomOp": split,
    "NumpySplitCopyWithIntCustomOp": lambda x, splits, dim: (split(x, splits, dim), len(splits)),
}
FORWARD_ONLY = ("forward", "opcheck", "compile")


def capabilities(info: object) -> list[str]:
    """What an op is put through; the database itself declines batched gradients for its list ops."""
    if not info.supports_autograd:
        return list(FORWARD_ONLY)
    return [name for name in RUNS if info.check_batched_grad or "batched" not in name]


class Case:
    """One op on one sample, as functions of the floating-point tensors in it."""

    def __init__(self, info: object, sample: object) -> None:
        self.op, self.arguments, self.keywords = info.op, (sample.input, *sample.args), sample.kwargs
        leaves, self.spec = pytree.tree_flatten((self.arguments, self.keywords))
        self.leaves = leaves
        self.indices = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        self.tensors = tuple(leaves[index].detach().clone() for index in self.indices)
        self.argnums = tuple(range(len(self.tensors)))
        self.f = self.function(info.op)
        self.reference = self.function(REFERENCES[info.name])

    def function(self, callee: object) -> object:
        def f(*tensors: Tensor) -> tuple[Tensor, ...]:
            leaves = list(self.leaves)
            for index, tensor in zip(self.indices, tensors, strict=True):
                leaves[index] = tensor
            arguments, keywords = pytree.tree_unflatten(leaves, self.spec)
            return tuple(pytree.tree_leaves(callee(*arguments, **keywords)))

        return f

    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(tensor.clone().requires_grad_() for tensor in self.tensors)

    def floats(self, f: object) -> object:
        """Only the floating-point results, as gradcheck wants them."""
        return lambda *tensors: tuple(r for r in f(*tensors) if isinstance(r, Tensor) and r.is_floating_point())

    def loss(self, f: object) -> object:
        """A number that depends on every floating-point result, with a second derivative."""
        return lambda *tensors: sum((result * result).sum() for result in self.floats(f)(*tensors))

    def gradients(self, f: object) -> tuple[Tensor, ...]:
        inputs = self.inputs()
        return torch.autograd.grad(f(*inputs), inputs)

    def batches(self) -> list[Tensor]:
        return [torch.stack([tensor, 2 * tensor, tensor - 1]) for tensor in self.tensors]


def same(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected, **TOLERANCE)


def compiled(f: object, *, dynamic: bool = False) -> object:
    torch.compiler.reset()
    return torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=dynamic)


def jvp_of(case: Case, f: object) -> object:
    return torch.func.jvp(case.floats(f), case.tensors, tuple(torch.ones_like(tensor) for tensor in case.tensors))


def vmap_of_grad(case: Case, f: object) -> object:
    return torch.func.vmap(torch.func.grad(case.loss(f), case.argnums))(*case.batches())


def check_gradients(case: Case, **options: bool) -> None:
    assert torch.autograd.gradcheck(case.floats(case.f), case.inputs(), **options)


# Each capability: (what the op gives, what its restatement gives), or None where torch itself compares.
RUNS = {
    "forward": lambda c: (c.f(*c.tensors), c.reference(*c.tensors)),
    "opcheck": lambda c: torch.library.opcheck(c.op, c.arguments, c.keywords) and None,
    "compile": lambda c: (compiled(c.f)(*c.tensors), c.reference(*c.tensors)),
    "gradcheck": lambda c: check_gradients(c) or (c.gradients(c.loss(c.f)), c.gradients(c.loss(c.reference))),
    "gradgradcheck": lambda c: torch.autograd.gradgradcheck(c.floats(c.f), c.inputs()) and None,
    "gradcheck with batched grads": lambda c: check_gradients(c, check_batched_grad=True),
    "torch.func.grad": lambda c: (
        torch.func.grad(c.loss(c.f), c.argnums)(*c.tensors),
        c.gradients(c.loss(c.reference)),
    ),
    "torch.func.jvp": lambda c: (jvp_of(c, c.f), jvp_of(c, c.reference)),
    "gradcheck with forward AD": lambda c: check_gradients(c, check_forward_ad=True),
    "vmap": lambda c: (
        torch.func.vmap(c.floats(c.f))(*c.batches()),
        torch.func.vmap(c.floats(c.reference))(*c.batches()),
    ),
    "vmap(grad)": lambda c: (vmap_of_grad(c, c.f), vmap_of_grad(c, c.reference)),
    "hessian": lambda c: (
        torch.func.hessian(c.loss(c.f), c.argnums)(*c.tensors),
        torch.func.hessian(c.loss(c.reference), c.argnums)(*c.tensors),
    ),
    "compiled backward": lambda c: (c.gradients(compiled(c.loss(c.f))), c.gradients(c.loss(c.reference))),
    "compiled backward, dynamic": lambda c: (
        c.gradients(compiled(c.loss(c.f), dynamic=True)),
        c.gradients(c.loss(c.reference)),
    ),
    "compiled torch.func.grad": lambda c: (
        compiled(torch.func.grad(c.loss(c.f), c.argnums))(*c.tensors),
        c.gradients(c.loss(c.reference)),
    ),
}


def run(info: object, capability: str) -> None:
    """Put an op through one capability, on every sample of the database; raises if a value differs."""
    torch.manual_seed(0)
    # info.sample_inputs looks for a TestCase in every frame of the stack, whose files it reads: 0.1 s a call
    samples = list(info.sample_inputs_func(info, "cpu", torch.double, info.supports_autograd))
    assert samples
    for sample in samples:
        pair = RUNS[capability](Case(info, sample))
        if pair is not None:
            same(*pair)


def cells(database: dict[str, object]) -> list[tuple[str, str]]:
    """Return every pair of an op and a capability."""
    return [(name, capability) for name, info in database.items() for capability in capabilities(info)]
