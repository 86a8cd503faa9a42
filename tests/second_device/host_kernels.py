"""Kernels of the CPU registered for the second device: they run on host tensors that share its memory."""

import functools
from dataclasses import replace

import torch

from custom_autograd.capabilities.autocast import AutocastRule
from custom_autograd.execution.attaching import attach_device
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import map_tensors
from second_device import backend


def serve_by_host_kernels(record: OpRecord, *, device_type: str | None = "cpu") -> bool:
    """Register the kernels of an op for a device type, or for any (None), for the device; return False if none."""
    kernels = [kernel for kernel in record.kernels.all() if kernel.device_type == device_type]
    for kernel in kernels:
        served = replace(kernel, device_type=backend.NAME, function=on_host(kernel.function))
        record.kernels.add(served, replace=True)
    if kernels:
        attach_device(record, backend.NAME)
    return bool(kernels)


def copy_autocast_policy(record: OpRecord) -> None:
    """Register the policy that an op has for the CPU for the device too."""
    rule = record.registrations.get(AutocastRule, "cpu")
    if rule is not None and record.registrations.get(AutocastRule, backend.NAME) is None:
        record.handle.register_autocast(backend.NAME, rule.policy.arguments, output=rule.policy.outputs or None)


def on_host(kernel):
    """Return a kernel for tensors of the device that calls one of the CPU."""

    @functools.wraps(kernel)
    def call(*args, **kwargs):
        host = backend.native.HostCall()
        positional = [to_host(host, value) for value in args]
        keywords = {name: to_host(host, value) for name, value in kwargs.items()}
        result = kernel(*positional, **keywords)
        host.write_back()
        return map_tensors(result, host.from_host)

    return call


def to_host(host, value):
    """Return an argument with tensors of the CPU, on which the kernel also creates those that it returns."""
    is_device = isinstance(value, torch.device) and value.type == backend.NAME
    return torch.device("cpu") if is_device else map_tensors(value, host.to_host)
