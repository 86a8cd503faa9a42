"""A call and its backward leave the process as it was: default dtype, grad mode, threads, flags and random numbers."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.samples import Sample
from custom_autograd.verification.harness.agreement import values_of
from custom_autograd.verification.harness.base import PASSED, Check, Finding, failed
from custom_autograd.verification.harness.differentiable import gradients_for
from custom_autograd.verification.harness.targets import Target


@dataclass(frozen=True, slots=True)
class Setting:
    """Something of the process that a call finds, and leaves.

    Args:
        read: gives its value.
        write: sets it to a value that was read.
    """

    read: Callable[[], Any]  # Any: each setting has a type of its own
    write: Callable[[Any], object]


def _set_default_device(value: str) -> None:
    torch.set_default_device(None if value == "cpu" else value)  # the CPU is where none is set, and setting it costs


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _cudnn() -> tuple[bool, bool, bool]:
    flags = torch.backends.cudnn
    return flags.enabled, flags.benchmark, flags.deterministic


def _set_cudnn(value: tuple[bool, bool, bool]) -> None:
    flags = torch.backends.cudnn
    flags.enabled, flags.benchmark, flags.deterministic = value


def _numpy_errors() -> dict[str, str]:
    numpy = sys.modules.get("numpy")
    return {} if numpy is None else numpy.geterr()


def _set_numpy_errors(value: dict[str, str]) -> None:
    sys.modules["numpy"].seterr(**value)


class ProcessState(Check):
    """What was changed is put back after it is reported."""

    name = "process_state"
    code = "Y04"
    group = "system"
    is_quick = True
    most_samples = 2
    purpose = "a call and its backward leave default dtype, grad mode, threads, flags and random numbers as they were"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding for the call, and one for forward and backward."""
        before = _read()
        with torch.no_grad():
            values_of(target, target.full, sample)
            yield _compare("a call", {**before, "grad mode": False})
        states = [torch.get_rng_state()]

        def mark(outputs: Sequence[Tensor]) -> Sequence[Tensor]:
            states.append(torch.get_rng_state())
            return [torch.ones_like(output) for output in outputs]

        try:
            gradients_for(target, sample, mark)
        except Exception:  # noqa: BLE001 - derivatives have checks of their own
            _put_back(before)
            return
        yield _compare("forward and backward", before)
        yield _judge_randomness([*states, torch.get_rng_state()])


def _judge_randomness(states: Sequence[Tensor]) -> Finding:
    """A random op draws; a backward that draws where its forward does not disturbs what is drawn next."""
    before, between, after = states
    if not torch.equal(before, between) or torch.equal(between, after):
        return PASSED
    return failed("the backward draws random numbers, or seeds them, and the forward does not", cause="a stray seed")


def _compare(what: str, before: Mapping[str, object]) -> Finding:
    after = _read()
    changed = [name for name in before if after[name] != before[name]]
    if not changed:
        return PASSED
    _put_back(before)
    rows = [f"{name} is {after[name]}, and was {before[name]}" for name in changed]
    return failed(f"{what}: the process is left changed: {'; '.join(rows)}", cause="it is set and not put back")


SETTINGS: Mapping[str, Setting] = {
    "default dtype": Setting(torch.get_default_dtype, torch.set_default_dtype),
    "default device": Setting(lambda: str(torch.get_default_device()), _set_default_device),
    "grad mode": Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    "number of threads": Setting(torch.get_num_threads, torch.set_num_threads),
    "deterministic algorithms": Setting(_deterministic, _set_deterministic),
    "anomaly mode": Setting(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "float32 precision": Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "autocast": Setting(
        lambda: torch.is_autocast_enabled("cpu"), lambda value: torch.set_autocast_enabled("cpu", value)
    ),
    "cudnn": Setting(_cudnn, _set_cudnn),
    "NumPy's error handling": Setting(_numpy_errors, _set_numpy_errors),
    "recursion limit": Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    "working folder": Setting(os.getcwd, os.chdir),
}


def _read() -> dict[str, Any]:
    return {name: setting.read() for name, setting in SETTINGS.items()}


def _put_back(before: Mapping[str, object]) -> None:
    for name, value in before.items():
        if SETTINGS[name].read() != value:
            SETTINGS[name].write(value)
