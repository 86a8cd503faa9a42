"""The terms on which a kernel is registered: its name, its turn, its condition, and the layouts that it relies on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from custom_autograd.calls.bind import Binder
from custom_autograd.calls.memory_layouts import LAYOUTS, wrapper_of
from custom_autograd.core.errors import RegistrationError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import advise, quote, show
from custom_autograd.core.signatures import find_signature
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.pytrees.op_adapter import adapter_of
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.kernel import Kernel, flat_kernel

if TYPE_CHECKING:
    from custom_autograd.pytrees.argument_tree import ArgumentTree
    from custom_autograd.registration.conditions import Condition

NAME = r"\w[\w.+-]*"


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """Arguments of `register_kernel` about a kernel (Any: whatever was passed).

    Attributes:
        name: what `use_kernel` calls it; None for the device type, or "default".
        when: a function of some of the arguments that says whether it takes them.
        priority: a higher one has its turn earlier.
        layouts: the layouts that it relies on, by argument, or one for all.
        inline: compiled graphs hold what it does in place of the op.
    """

    name: Any = None
    when: Any = None
    priority: Any = 0
    layouts: Any = None
    inline: bool = False


def make_kernel(
    declaration: Declaration,
    device_type: str | None,
    function: Callable[..., Any],
    location: str,
    options: KernelOptions,
) -> Kernel:
    """Return the kernel of one device type (Any: takes and returns what the schema says).

    Raises:
        RegistrationError: a term cannot be kept.
    """
    wrap = wrapper_of(declaration.schema, str(declaration.name), _layouts(declaration, location, options))
    name = device_type or "default" if options.name is None else options.name
    if not isinstance(name, str) or re.fullmatch(NAME, name) is None:
        problem = "a kernel cannot have this name"
        raise declaration.origin(location).error(
            RegistrationError, problem, expected="letters, digits and any of _ . + -", found=show(name)
        )
    if type(options.priority) is not int:
        problem = "the priority of a kernel is an int"
        raise declaration.origin(location).error(
            RegistrationError, problem, expected="an int, such as 1", found=show(options.priority)
        )
    when = None if options.when is None else _condition(declaration, options.when, location)
    own = wrap(flat_kernel(declaration, function))
    return Kernel(device_type, own, location, name, options.priority, when, function, wrap, bool(options.inline))


def _condition(declaration: Declaration, when: Any, location: str) -> Condition:
    valid = adapter_of(declaration).argument_names()
    signature = find_signature(when) if callable(when) else None
    if signature is None:
        problem = "when= takes a function of some of the op's arguments"
        raise declaration.origin(location).error(
            RegistrationError, problem, expected="a function of " + quote(valid), found=show(when)
        )
    names = []
    for parameter in signature.parameters.values():
        if parameter.name in valid and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            names.append(parameter.name)
        elif parameter.default is parameter.empty:
            problem = f"when= has a parameter {str(parameter)!r}, which is not an argument of the op"
            raise declaration.origin(location_of(when)).error(
                RegistrationError, problem, expected=quote(valid), do=advise(parameter.name, valid)
            )
    from custom_autograd.registration.conditions import Condition  # loaded for kernels with one

    return Condition(when, tuple(names), location_of(when), _binder(declaration), str(declaration.name))


def _binder(declaration: Declaration) -> Callable[..., dict[str, Any]]:
    """Return a kernel's call -> the arguments by name, with the containers that the op's author sees."""
    binder = Binder(declaration.schema)
    return adapter_of(declaration).around(lambda *args, **kwargs: binder.given(*args, **kwargs), _binder_of_containers)


def _binder_of_containers(tree: ArgumentTree, given: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def bind(*args: Any, **kwargs: Any) -> dict[str, Any]:
        positional, keywords = tree.arguments(given(*args, **kwargs))
        return dict(tree.signature.bind(*positional, **keywords).arguments)

    return bind


def _layouts(declaration: Declaration, location: str, options: KernelOptions) -> dict[str, str]:
    """Return the layout of each argument that has to have one."""
    schema, given = declaration.schema, options.layouts
    if given is None:
        return {}
    tensors = [argument.name for argument in schema.tensor_arguments]
    layouts = dict.fromkeys(tensors, given) if isinstance(given, str) else given
    if not isinstance(layouts, Mapping):
        problem = "layouts= takes a layout, or a dict of layouts by argument"
        raise declaration.origin(location).error(RegistrationError, problem, expected=quote(LAYOUTS), found=show(given))
    for name, layout in layouts.items():
        if name not in tensors:
            problem = f"layouts= names {name!r}, which is not a tensor argument"
            raise declaration.origin(location).error(
                RegistrationError, problem, expected=quote(tensors), do=advise(name, tensors)
            )
        if layout not in LAYOUTS:
            problem = f"layouts= names a layout for '{name}' that is none"
            raise declaration.origin(location).error(
                RegistrationError, problem, expected=quote(LAYOUTS), found=show(layout), do=advise(layout, LAYOUTS)
            )
    if schema.is_view:
        problem = "a kernel that returns a view cannot have its arguments copied"
        raise declaration.origin(location).error(RegistrationError, problem, expected="no layouts=", found=schema.text)
    return dict(layouts)
