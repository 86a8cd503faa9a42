"""Declares an op with the name, schema and rules of one of torch.library.custom_op: `from_custom_op_def`."""

from __future__ import annotations

from typing import Any

from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.messages import show
from custom_autograd.op import CustomOp, custom_op
from custom_autograd.torch_private import definitions
from custom_autograd.torch_private.definitions import Registered
from custom_autograd.torch_private.verification import Definition


def from_custom_op_def(definition: Definition, /) -> CustomOp[..., Any]:
    """Declare an op that replaces one of `torch.library.custom_op`, with everything that was registered for it.

    The op has the same name: `torch.ops`, and the definition itself, call it from now on. Programs that were exported
    or compiled before keep the old one.

    Args:
        definition: an object that `torch.library.custom_op` returned.

    Returns:
        The op, with the schema, tags, kernels, fake, backward, vmap, autocast and `__torch_dispatch__` rules.

    Raises:
        DeclarationError: if the object is not such a definition, or an op cannot have its schema.
        RegistrationError: if a rule does not fit. The definition has been withdrawn by then.

    Example:
        >>> import torch
        >>> from torch import Tensor
        >>> from custom_autograd import from_custom_op_def
        >>> @torch.library.custom_op("docs::tripled", mutates_args=())
        ... def tripled(x: Tensor) -> Tensor:
        ...     return 3 * x
        >>> op = from_custom_op_def(tripled)
        >>> torch.ops.docs.tripled(torch.ones(2))
        tensor([3., 3.])
    """
    given: object = definition
    if not definitions.is_foreign(given):
        raise DeclarationError(
            getattr(given, "name", "from_custom_op_def"),
            "this is not a definition of torch.library.custom_op",
            found=show(given),
            do="pass what torch.library.custom_op returned; an op of custom_autograd needs no change",
        )
    facts = definitions.registered_with(given)
    return definitions.replaced(given, lambda: _declare(facts))


def _declare(facts: Registered) -> CustomOp[..., Any]:
    own = [device for device, kernel in facts.kernels.items() if kernel is facts.function and device is not None]
    op: CustomOp[..., Any] = custom_op(
        facts.name,
        facts.function,
        mutates_args=facts.mutated,
        schema=facts.schema,
        device_types=own or None,
        tags=facts.tags,
    )
    for device, kernel in facts.kernels.items():
        if kernel is not facts.function:
            op.register_kernel(device, kernel)
    if facts.fake is not None:
        op.register_fake(facts.fake)
    if facts.backward is not None:
        op.register_autograd(facts.backward, setup_context=facts.setup_context)
    if facts.vmap is not None:
        op.register_vmap(facts.vmap)
    for device_type, dtype in facts.autocast.items():
        if dtype is not None:
            op.register_autocast(device_type, dtype)
    for cls, rule in facts.torch_dispatch.items():
        op.register_torch_dispatch(cls, rule)
    return op
