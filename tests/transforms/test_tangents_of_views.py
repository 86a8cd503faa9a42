"""A kernel may return a view of what it made, laid out as no tangent is: PyTorch fails with an internal assertion."""

import torch
from tables import each
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import jvp, vmap

from custom_autograd import custom_op

VIEWS = {
    "transposed": lambda x: (2 * x).t().contiguous().t(),
    "second half": lambda x: torch.cat([x, 2 * x])[3:],
    "first columns": lambda x: torch.cat([2 * x, x], 1)[:, :2],
    "reshaped": lambda x: (2 * x).view(2, 3).view(3, 2),
    "expanded": lambda x: (2 * x).sum(1, keepdim=True).expand(3, 2),
}
FORMULAS = {name: (lambda x: 2 * x) for name in VIEWS} | {"expanded": VIEWS["expanded"]}
LAYOUTS = {"rows": lambda t: t.contiguous(), "columns": lambda t: t.t().contiguous().t()}


def declare(name, layout, *, returns_list):
    def kernel(x: Tensor) -> Tensor:
        return VIEWS[name](x)

    def listed(x: Tensor) -> list[Tensor]:
        return [VIEWS[name](x)]

    op_name = f"{name.replace(' ', '_')}_{layout}_{returns_list}"
    op = custom_op(f"view_tangents::{op_name}", listed if returns_list else kernel)

    @op.register_jvp
    def _(tangent_x):
        tangent = LAYOUTS[layout](FORMULAS[name](tangent_x))
        return [tangent] if returns_list else tangent

    return (lambda x: op(x)[0]) if returns_list else op


@each("returns_list", [False, True], ids=["tensor", "list"])
@each("layout", LAYOUTS)
@each("name", VIEWS)
def test_the_tangent_of_a_view_of_new_memory(name, layout, returns_list):
    op, formula = declare(name, layout, returns_list=returns_list), FORMULAS[name]
    x, tangent = torch.rand(3, 2), torch.rand(3, 2)

    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(op(forward_ad.make_dual(x, tangent)))
        torch.testing.assert_close(found.primal, formula(x))
        torch.testing.assert_close(found.tangent, formula(tangent))
    torch.testing.assert_close(jvp(op, (x,), (tangent,)), (formula(x), formula(tangent)))
    xs, tangents = torch.rand(4, 3, 2), torch.rand(4, 3, 2)
    torch.testing.assert_close(
        vmap(lambda x, t: jvp(op, (x,), (t,)))(xs, tangents), (vmap(formula)(xs), vmap(formula)(tangents))
    )
