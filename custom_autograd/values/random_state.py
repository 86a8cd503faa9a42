"""The random numbers and accelerators that this process uses: the generators' states as one, and ended work.

before = RandomState.current()
call()
before.has_moved()               # True if the call drew random numbers, on any device
before.restore()                 # the next call draws the same numbers again

`torch.get_rng_state` is the state of the CPU's generator alone: a call on another device draws from that device's.
A device that is not initialised is left alone, because reading its state would initialise it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from custom_autograd.frozen_dataclass import dataclass


def accelerators_in_use() -> list[tuple[str, ModuleType]]:
    """Return the device types besides the CPU that this process has initialised, each with torch's module for it."""
    current = torch.accelerator.current_accelerator()  # that of the build, or of an out-of-tree backend
    names = [*ACCELERATORS, *([] if current is None or current.type in ACCELERATORS else [current.type])]
    modules: list[tuple[str, ModuleType | None]] = [(name, getattr(torch, name, None)) for name in names]
    return [(name, module) for name, module in modules if module is not None and _is_in_use(module)]


def synchronize_accelerators() -> None:
    """Wait for everything that was launched."""
    for _, module in accelerators_in_use():
        if hasattr(module, "synchronize"):
            module.synchronize()


def _is_in_use(module: ModuleType) -> bool:
    """Return True if a device is initialised, or may be: `torch.mps` and some out-of-tree backends cannot say."""
    is_initialized = getattr(module, "is_initialized", None) or module.is_available
    return bool(is_initialized())


ACCELERATORS = ("cuda", "xpu", "mps", "mtia", "hpu")


class _Generator(NamedTuple):
    """The default generator of a device."""

    device: torch.device
    read: Callable[[], Tensor]
    write: Callable[[Tensor], object]


@dataclass(frozen=True, slots=True, eq=False)
class RandomState:
    """The states of the default generators of the CPU and of each device in use."""

    states: tuple[tuple[_Generator, Tensor], ...]

    @classmethod
    def current(cls) -> RandomState:
        """Return the state as it is now."""
        return cls(tuple((generator, generator.read()) for generator in _generators()))

    @classmethod
    def seeded(cls, seed: int) -> RandomState:
        """Return the state in which every generator starts from a seed; nothing is changed."""
        generators = _generators()
        return cls(tuple((row, torch.Generator(row.device).manual_seed(seed).get_state()) for row in generators))

    @property
    def devices(self) -> set[torch.device]:
        """Return the devices of the generators."""
        return {generator.device for generator, _ in self.states}

    def restore(self) -> None:
        """Set every generator to its state."""
        for generator, state in self.states:
            generator.write(state)

    def has_moved(self) -> bool:
        """Return True if a generator is in another state now: random numbers were drawn, or it was seeded."""
        return bool(self.moved(RandomState.current()))

    def moved(self, later: RandomState) -> set[torch.device]:
        """Return the devices whose generator is in another state later."""
        others = {generator.device: state for generator, state in later.states}
        return {row.device for row, state in self.states if not torch.equal(state, others.get(row.device, state))}


@contextlib.contextmanager
def kept_random_state(*, is_enabled: bool = True) -> Iterator[None]:
    """Restore the state afterwards, so that what runs next draws the same numbers."""
    if not is_enabled:
        yield
        return
    before = RandomState.current()
    try:
        yield
    finally:
        before.restore()


def _generators() -> list[_Generator]:
    found = [_Generator(torch.device("cpu"), torch.get_rng_state, torch.set_rng_state)]
    for name, module in accelerators_in_use():
        if not hasattr(module, "get_rng_state"):
            continue
        count = module.device_count()
        if count == 1:  # the functions of torch.mps have no argument for a device
            found.append(_Generator(torch.device(name, 0), module.get_rng_state, module.set_rng_state))
            continue
        for index in range(count):
            read, write = partial(module.get_rng_state, index), partial(module.set_rng_state, device=index)
            found.append(_Generator(torch.device(name, index), read, write))
    return found
