"""Settings and random numbers of the process: read, set to other values for a moment, and put back.

put_back(values)     whatever differs from `values` is set again
perturbed(values)    every setting has another value within, so that a kernel that sets a constant changes it
isolated(seed)              within, every generator starts from the seed; afterwards all are as they were
is_random(target, sample)   whether a call draws random numbers
move_on(devices)            what is drawn next is not what was drawn before
outside_torch()             the state of generators that torch's seed does not reach
"""

import contextlib
import os
import pickle
import random
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import RandomState, accelerators_in_use, kept_random_state
from custom_autograd.verification.harness.dispatching import has_generator
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Target, call_on


@dataclass(frozen=True, slots=True)
class Setting:
    """Something of the process that a call finds, and leaves.

    Args:
        read: gives its value.
        write: sets it to a value that was read.
        other: gives another value that ops run with as well; None if there is none, such as of the default device.
    """

    read: Callable[[], Any]  # Any: each setting has a type of its own
    write: Callable[[Any], object]
    other: Callable[[Any], Any] | None = None


def read() -> dict[str, Any]:
    """Return the value of each setting; one that cannot be read, such as a working folder that is gone, is left out."""
    found = {}
    for name, setting in SETTINGS.items():
        with contextlib.suppress(Exception):  # torch raises where settings contradict each other
            found[name] = setting.read()
    return found


def put_back(values: Mapping[str, object]) -> None:
    """Set each setting that differs to its value."""
    now = read()
    for name, value in values.items():
        if name not in now or now[name] != value:
            SETTINGS[name].write(value)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Put every setting back afterwards."""
    before = read()
    try:
        yield
    finally:
        put_back(before)


@contextlib.contextmanager
def perturbed(values: Mapping[str, object], names: Collection[str] = ()) -> Iterator[dict[str, object]]:
    """Set settings to other values within.

    Args:
        values: what they are.
        names: which settings; all by default.

    Yields:
        The values of all settings within; those without another value are as they were.
    """
    try:
        for name, value in values.items():
            other = SETTINGS[name].other
            if other is not None and (not names or name in names):
                SETTINGS[name].write(other(value))
        yield read()
    finally:
        put_back(values)


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Give torch so many threads within, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _set_deterministic(value: tuple[bool, bool]) -> None:
    """Set them as `torch.use_deterministic_algorithms`, which imports the compiler, only if it is there already."""
    mode = {(False, False): 0, (True, True): 1, (True, False): 2}.get(value)
    if mode is None or "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(value[0], warn_only=value[1])
    else:
        torch.set_deterministic_debug_mode(mode)


def _autocast_types() -> list[str]:
    return ["cpu", *(name for name, _ in accelerators_in_use() if torch.amp.is_autocast_available(name))]


def _autocast() -> tuple[str, ...]:
    """Return the device types for which it is enabled."""
    return tuple(name for name in _autocast_types() if torch.is_autocast_enabled(name))


def _set_autocast(value: tuple[str, ...]) -> None:
    for name in _autocast_types():
        torch.set_autocast_enabled(name, name in value)


def _cudnn() -> tuple[bool, bool, bool]:
    flags = torch.backends.cudnn
    return flags.enabled, flags.benchmark, flags.deterministic


def _set_cudnn(value: tuple[bool, bool, bool]) -> None:
    """Set them where torch's test tools have forbidden to assign to the attributes, too."""
    enabled, benchmark, deterministic = value
    before = torch.backends.cudnn.set_flags(enabled, benchmark, None, deterministic)
    torch.backends.cudnn.set_flags(enabled, benchmark, before[2], deterministic, *before[4:])


def _other_folder(value: str) -> str:
    return next(path for path in (os.path.realpath(tempfile.gettempdir()), os.path.abspath(os.sep)) if path != value)


SETTINGS: Mapping[str, Setting] = {
    "default dtype": Setting(
        torch.get_default_dtype,
        torch.set_default_dtype,
        lambda value: torch.float64 if value != torch.float64 else torch.float32,
    ),
    "default device": Setting(
        lambda: str(torch.get_default_device()),
        lambda value: torch.set_default_device(None if value == "cpu" else value),  # setting the CPU costs
    ),
    "grad mode": Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    "number of threads": Setting(
        torch.get_num_threads, torch.set_num_threads, lambda value: value - 1 if value > 1 else 2
    ),
    "deterministic algorithms": Setting(
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        _set_deterministic,
        lambda value: (False, False) if value[0] else (True, True),  # ops without such an algorithm warn, and run
    ),
    "anomaly mode": Setting(
        torch.is_anomaly_enabled,
        lambda value: torch.autograd.set_detect_anomaly(value, check_nan=torch.is_anomaly_check_nan_enabled()),
        lambda value: not value,
    ),
    "float32 precision": Setting(
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        lambda value: "high" if value == "highest" else "highest",
    ),
    "autocast": Setting(_autocast, _set_autocast),
    "cudnn": Setting(_cudnn, _set_cudnn, lambda value: tuple(not flag for flag in value)),
    "NumPy's error handling": Setting(
        lambda: dict(sys.modules["numpy"].geterr()),
        lambda value: sys.modules["numpy"].seterr(**value),
        lambda value: {kind: "warn" if action == "ignore" else "ignore" for kind, action in value.items()},
    ),
    "recursion limit": Setting(sys.getrecursionlimit, sys.setrecursionlimit, lambda value: value + 100),
    "working folder": Setting(os.getcwd, os.chdir, _other_folder),
}
"""The default device, grad mode and autocast have no other value: they decide what an op computes."""


@contextlib.contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Seed random numbers within, of every device, of Python and of NumPy, and restore the generators afterwards."""
    state = random.getstate()
    numpy = sys.modules.get("numpy")  # a kernel may draw from it, where it is in use
    numpy_state = None if numpy is None else numpy.random.get_state()
    with kept_random_state():
        RandomState.seeded(seed).restore()
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


def is_random(target: Target, sample: Sample) -> bool:
    """Return True if a call draws random numbers, or is given a generator; nothing is drawn or written afterwards."""
    return has_generator(sample) or draws(target, sample)


def draws(target: Target, sample: Sample) -> bool:
    """Return True if a call moves torch's own generators, which are put back, as is what is written."""
    with kept_random_state(), torch.no_grad():
        before = RandomState.current()
        call_on(target.call, copy(sample))
        return before.has_moved()


def where_draws_begin(number: int = 0) -> RandomState:
    """Return where random numbers begin in each of several equal calls, for each number another state.

    No other code starts there, so that drawing again is noticed.
    """
    return RandomState.seeded(torch.initial_seed() // 2 + 1 + number)


def move_on(devices: Set[torch.device]) -> None:
    """Draw numbers on the CPU and on other devices, so that what is drawn next is not what was drawn before."""
    for device in {torch.device("cpu"), *devices}:
        torch.rand(97, device=device)


def outside_torch() -> dict[str, object]:
    """Return the state of each random generator of the process that torch's seed does not reach, by its owner."""
    found: dict[str, object] = {"Python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["NumPy"] = pickle.dumps(numpy.random.get_state(legacy=False))
    return found
