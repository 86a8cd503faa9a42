"""Kernels of a target in checks: by a key of device type and name, each refusing what its condition does not take."""

from collections.abc import Callable

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.registration.kernel import Kernel
from custom_autograd.values.tensors import plain


class KernelDeclined(KernelUnavailable):
    """The condition of a kernel does not accept the arguments."""


def key_of_kernel(kernel: Kernel) -> str:
    """Return the default kernel as "", others as "cpu" or "cpu 'name'"."""
    return "" if kernel.title == "default" else kernel.title


def device_of_kernel(key: str) -> str:
    """Return the device type in the key of a kernel, "" for any."""
    device = key.partition(" ")[0]
    return "" if device == "default" else device


def label_of_kernel(key: str) -> str:
    """Return what a message calls the kernel of a key: "the cpu kernel 'name'"."""
    device, _, name = (key or "default").partition(" ")
    return f"the {device} kernel {name}".rstrip()


def conditional(kernel: Kernel) -> Callable[..., object]:
    """Return the kernel, which raises KernelDeclined for what its condition does not accept."""
    when = kernel.when
    if when is None:
        return kernel.function

    def call(*args: object, **kwargs: object) -> object:
        reason = when.refusal(args, kwargs)
        if reason is not None:
            raise KernelDeclined(f"the {kernel.label} does not take the sample: {reason or when.text}")
        result: object = kernel.function(*args, **kwargs)
        return result

    return call


def as_dispatched(kernel: Callable[..., object]) -> Callable[..., object]:
    """Return the kernel, called as the dispatcher calls it: with views resolved that are conjugated or negated."""

    def call(*args: object, **kwargs: object) -> object:
        return kernel(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})

    return call
