"""`check`: everything there is to verify about an op, or about any callable on tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path

import torch

from custom_autograd.core.device_types import without_numbers
from custom_autograd.core.errors import CheckError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import advise, quote, show, suggest
from custom_autograd.core.option_types import check_type, several
from custom_autograd.schema.samples import Sample, TensorFactory
from custom_autograd.verification.checks import CHECKS
from custom_autograd.verification.checks.explore import Explore
from custom_autograd.verification.harness import runner, settings
from custom_autograd.verification.harness.base import Check
from custom_autograd.verification.harness.differentiable import with_surrogate
from custom_autograd.verification.harness.targets import SamplesRule, Target, target_of
from custom_autograd.verification.processes import running
from custom_autograd.verification.report import Report, acceptance

ENTRY_POINTS = "custom_autograd.checks"


def check(
    target: object,
    samples: Iterable[Sample] | SamplesRule | None = None,
    *,
    checks: Sequence[str | Check] | str | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    raise_on_failure: bool = False,
    isolated: bool = True,
    surrogate: str | None = None,
    seconds: float | None = None,
) -> Report:
    """Verify a target on samples.

    Args:
        target: a `CustomOp`, a torch.library `CustomOpDef`, an `OpOverload`, a `torch.autograd.Function` subclass, or
            any callable on tensors.
        samples: the calls to verify it on, or a generator of them as `register_samples` takes; by default the
            registered ones.
        checks: which checks to run, by name, code or group; "quick" for those that take a moment; all by default. A
            part of a check (`Check.parts`) is given itself; "explore=2m" gives the check `explore` two minutes of CPU
            time for each op, in place of 2 seconds at most.
        device: where samples live; the CPU by default.
        dtype: the dtype of samples that do not say; torch's default dtype by default.
        seed: equal seeds give equal samples and equal random numbers in checks.
        raise_on_failure: raise instead of returning a report with findings.
        isolated: run the checks in a forked process where that is sound (Linux, no accelerator in use, no other thread
            at work), so that a crash in a kernel is a finding. Changes that the op makes to Python objects are then
            lost with that process. False runs them in this process, where a crash ends the program.
        surrogate: why no gradient and no tangent of the target is the derivative. It is for a
            `torch.autograd.Function`, which cannot say so itself; a rule of an op is registered with it.
        seconds: of CPU time, after which no further check begins; those that were not reached are listed as skipped. No
            limit by default.

    Returns:
        What each check found on each sample.

    Raises:
        CheckError: there are no samples, or none of the tensors of one is on `device`, a name of a check is unknown,
            or, if asked for, something failed.

    Example:
        >>> def double(x): return 2 * x
        >>> check(double, [Sample(torch.ones(3))], checks=["gradcheck"]).ok
        True
    """
    target = with_surrogate(target_of(target), surrogate)
    case = case_of(target, samples, device=device, dtype=dtype, seed=seed, seconds=seconds)
    chosen = select_checks(checks)
    found = (running.run if isolated else running.run_here)(case, chosen, seed=seed)
    report = acceptance.accept(found, accepted_failures())
    if raise_on_failure:
        report.raise_for_failures()
    return report


def all_checks() -> tuple[Check, ...]:
    """Return the built-in checks, then those of other packages, from the entry points custom_autograd.checks.

    Raises:
        CheckError: a package brings something that is not a check.
    """
    return CHECKS + _checks_of_packages()


@cache
def _checks_of_packages() -> tuple[Check, ...]:
    """Return the checks of installed packages, whose metadata takes milliseconds to read."""
    return tuple(_loaded(row.name, row.load()) for row in entry_points(group=ENTRY_POINTS))


def accepted_failures() -> acceptance.Accepted:
    """Return what the pyproject.toml of the current folder accepts, or the nearest one above it: op -> check -> reason.

    Raises:
        CheckError: it cannot be read, or names an unknown check.
    """
    return acceptance.find_accepted(Path.cwd(), [check.name for check in all_checks()])


def select_checks(names: Sequence[str | Check] | str | None) -> tuple[Check, ...]:
    """Return the checks of these names, codes or groups, in running order, then parts of checks; all for None.

    Raises:
        CheckError: a name is unknown, or no name is given.
    """
    available = all_checks()
    if names is None:
        return available
    given = several(names)
    for row in given:
        check_type(partial(CheckError, "check"), "checks", row, (str, Check), "names of checks", example="['vmap']")
    read = [_with_budget(row) if isinstance(row, str) else row for row in given]
    wanted = {row for row in read if isinstance(row, str)}
    parts = tuple(row for row in read if isinstance(row, Check))
    known = {word for check in available for word in _words(check)}
    unknown = sorted(wanted - known)
    if unknown or not given:
        raise _unknown(unknown[0] if unknown else "", known)
    replaced = {type(part) for part in parts if isinstance(part, Explore)}
    return (*(check for check in available if _words(check) & wanted and type(check) not in replaced), *parts)


def _with_budget(name: str) -> str | Check:
    """Return the check that a text such as "explore=2m" asks for; any other text as it is.

    Raises:
        CheckError: the text is not a time.
    """
    head, is_timed, text = name.partition("=")
    if not is_timed or head != Explore.name:
        return name
    found = Explore.lasting(text)
    if found is None:
        raise CheckError(
            "check", "the check explore is given no time", expected="such as 30s, 2m or 1h", found=repr(text)
        )
    return found


def _words(check: Check) -> set[str]:
    """Return what `checks=` may call a check."""
    return {check.name, check.code, check.group} | ({"quick"} if check.is_quick else set())


def case_of(
    target: object,
    samples: Iterable[Sample] | SamplesRule | None = None,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    seconds: float | None = None,
) -> runner.Case:
    """Return a target with its samples, made, and the CPU time that its checks may take.

    Raises:
        CheckError: there are no samples, making them raises, or none of the tensors of one is on the device.
    """
    seen = target_of(target)
    refuse = partial(CheckError, seen.name, declared=seen.location)
    check_type(refuse, "device", device, (torch.device, str, type(None)), "a device", example="'cpu'")
    device = None if device is None else _device_of(seen, device)
    check_type(refuse, "dtype", dtype, (torch.dtype, type(None)), "a dtype", example="torch.float64")
    check_type(refuse, "seed", seed, (int,), "an int", example="0")
    check_type(refuse, "seconds", seconds, (int, float, type(None)), "a number of seconds", example="60")
    if seconds is not None and not seconds > 0:
        problem = "the option 'seconds' leaves no time"
        raise refuse(problem, expected="more than 0", found=show(seconds), do="pass seconds=60, for example")
    made = _given(seen, seen.samples or () if samples is None else samples, device, dtype, seed)
    for sample in made:
        if not isinstance(sample, Sample):
            raise refuse(
                "its samples are not all samples",
                expected="Sample(...)",
                found=f"a {type(sample).__name__}",
                do="wrap the arguments of one call: Sample(x, weight, eps=1e-3)",
            )
    if not made:
        raise refuse(
            "there is nothing to check it on",
            expected="at least one sample",
            found="none",
            do="register samples (register_samples), or give them: check(op, [Sample(...)])",
        )
    accepted = [name for sample in made for name in sample.accepted]
    names = [check.name for check in all_checks()] if accepted else []
    unknown = [name for name in accepted if name not in names]
    if unknown:
        raise _unknown(unknown[0], names)
    for sample in made:
        _check_kept(seen, sample)
    if device is not None:
        _require_device(seen, made, device, seen.samples if samples is None else samples)
    return runner.Case(seen, made, seconds)


def _device_of(target: Target, device: torch.device | str) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise CheckError(
            target.name,
            "the option 'device' is not a device",
            expected="a device, such as 'cpu' or 'cuda:0'",
            found=show(device),
            declared=target.location,
            do="pass device='cpu'",
        ) from error


def _given(
    target: Target,
    samples: Iterable[Sample] | SamplesRule,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
    seed: int,
) -> tuple[Sample, ...]:
    """Return samples a caller gave: moved to what is asked for, or made there."""
    with torch.inference_mode(False), torch.enable_grad():  # as the checks: an inference tensor has no gradients
        if callable(samples):
            return _made(target, samples, device, dtype, seed)
        listed = _listed(target, samples)
        return tuple(_moved(sample, device, dtype) if isinstance(sample, Sample) else sample for sample in listed)


def _listed(target: Target, made: object, rule: SamplesRule | None = None) -> tuple[Sample, ...]:
    """Return samples as a tuple; raise if they are not several."""
    if isinstance(made, Iterable):
        return tuple(made)
    raise CheckError(
        target.name,
        "its samples are not a list" if rule is None else "its generator of samples returns none",
        expected="an iterable of Sample",
        found="one Sample" if isinstance(made, Sample) else show(made),
        rule=None if rule is None else location_of(rule),
        declared=target.location,
        do="put it in a list: [Sample(...)]" if rule is None else "write 'yield Sample(...)' for each call",
    )


def _made(
    target: Target, rule: SamplesRule, device: torch.device | str | None, dtype: torch.dtype | None, seed: int
) -> tuple[Sample, ...]:
    """Return what a generator of samples makes."""
    try:
        with settings.isolated(seed):
            dtype = dtype or torch.get_default_dtype()
            return _listed(target, rule(TensorFactory(device=device or "cpu", dtype=dtype, seed=seed)), rule)
    except CheckError:
        raise
    except Exception as error:
        problem = f"its samples cannot be made: {type(error).__name__}: {error}"
        do = "correct the generator, a function of make, such as 'lambda make: [Sample(make(4, 8))]'"
        raise CheckError(target.name, problem, rule=location_of(rule), declared=target.location, do=do) from error


def _moved(sample: Sample, device: torch.device | str | None, dtype: torch.dtype | None) -> Sample:
    def move(tensor: torch.Tensor) -> torch.Tensor:
        is_cast = dtype is not None and tensor.is_floating_point() and dtype.is_floating_point
        plain = tensor.clone() if tensor.is_inference() else tensor
        moved = plain.to(device=device or tensor.device, dtype=dtype if is_cast else tensor.dtype)
        if moved is tensor and tensor.is_leaf:  # an object may hold it too
            return tensor
        return moved.detach().requires_grad_(tensor.requires_grad)

    is_as_asked = device is None and dtype is None and not any(x.is_inference() for x in sample.tensors())
    return sample if is_as_asked else sample.map(move)


def _require_device(target: Target, samples: Sequence[Sample], device: torch.device, rule: object) -> None:
    """Raise if a sample has tensors, but none on the accelerator under test: the checks would run without it."""
    for position, sample in enumerate(samples):
        leaves = [leaf for leaf in sample.leaves() if without_numbers(leaf.tensor) is not None]
        found = [leaf.tensor.device for leaf in leaves]
        is_there = any(row.type == device.type and device.index in (None, row.index) for row in found)
        if leaves and device.type != "cpu" and not is_there:
            label, name = runner.label_of(sample, position), target.name_of(leaves[0])
            raise CheckError(
                target.name,
                f"{label} has no tensor on the device under test",
                expected=f"'{name}' on {device}",
                found=f"'{name}' on {leaves[0].tensor.device}",
                rule=location_of(rule) if callable(rule) else None,
                declared=target.location,
                do="create the tensors of samples with make(...), make.tensor(...), or device=make.device",
            )


def _loaded(name: str, value: object) -> Check:
    check = value() if isinstance(value, type) else value
    if isinstance(check, Check):
        return check
    raise CheckError(
        f"entry point '{name}'",
        f"what the group {ENTRY_POINTS} brings is not a check",
        expected="a subclass of custom_autograd.extend.Check, or an instance",
        found=repr(value)[:80],
        do="correct the entry point of the package that brings it, or uninstall that package",
    )


def _unknown(name: str, available: Iterable[str]) -> CheckError:
    names = list(available)
    problem = f"there is no check called '{name}'" if name else "no check is named"
    where = "all are in docs/reference/checks.md; see 'custom-autograd check --help'"
    return CheckError("check", problem, do=" ".join(filter(None, (suggest(name, names), where))))


def _check_kept(target: Target, sample: Sample) -> None:
    """Refuse names in `Sample.keeping` that are not arguments."""
    arguments = [argument.name for argument in target.arguments]
    for name in sample.kept:
        if name not in arguments:
            problem = f"keeping() names {name!r}, which is not an argument"
            raise CheckError(target.name, problem, expected=quote(arguments), do=advise(name, arguments))
