"""The second device in Python: the module that PyTorch finds as `torch.second`, and `install`, which makes it so.

`import torch` calls `install` where the folder `installed` is on the path, as it does for every backend with an entry
point in the group `torch.backends`. So processes that are spawned have the device too.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys

import torch

NAME = "second"
_initialized = True  # without it torch.utils.checkpoint does not save the state of the generator
Stream = torch.Stream
native = None


def install() -> None:
    """Make the device known to this process, for good."""
    global native
    path = os.environ["SECOND_DEVICE_LIBRARY"]
    loader = importlib.machinery.ExtensionFileLoader("second_device", path)
    native = importlib.util.module_from_spec(importlib.util.spec_from_loader("second_device", loader))
    loader.exec_module(native)
    torch.utils.rename_privateuse1_backend(NAME)
    native.install()
    torch._register_device_module(NAME, sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend()


def calls(name: str) -> int:
    """Return how often an operator ran on the device, by a name such as "aten::sin"."""
    return native.calls(name)


def waits() -> int:
    """Return how often the host waited for a value: `item`, `float`, `bool` and their like."""
    return native.calls("aten::_local_scalar_dense")


# ---- What PyTorch expects of the module of a device


def is_available() -> bool:
    return True


is_initialized = _is_initialized = is_available


def init() -> None: ...


_lazy_init = empty_cache = init


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def set_device(device) -> None: ...


def synchronize(device=None) -> None: ...


def manual_seed(seed: int) -> None:
    native.default_generator().manual_seed(seed)


manual_seed_all = manual_seed


def initial_seed() -> int:
    return native.default_generator().initial_seed()


# Not operators of the library: under FakeTensorMode those would return fake tensors.
def get_rng_state(device=0) -> torch.Tensor:
    return native.default_generator().get_state()


def set_rng_state(state: torch.Tensor, device=0) -> None:
    native.default_generator().set_state(state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def current_stream(device=None) -> torch.Stream:
    return torch.accelerator.current_stream()


@contextlib.contextmanager
def stream(stream):
    yield


@contextlib.contextmanager
def device(index=0):
    yield


_DeviceGuard = device
