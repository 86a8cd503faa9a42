"""Reads what `register_autocast` was given into a CastPolicy, or says what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from custom_autograd.core.casting import INPUT_WORDS, KEEP, OUTPUT_WORDS, Cast, CastPolicy
from custom_autograd.core.device_types import advice_on, has_index, is_known, name_of
from custom_autograd.core.errors import RegistrationError
from custom_autograd.core.messages import quote, show, suggest
from custom_autograd.registration.declaration import Declaration


def parse_policy(declaration: Declaration, device_type: str, inputs: Any, output: Any) -> CastPolicy:
    """Read a policy (Any: whatever the author wrote).

    Raises:
        RegistrationError: torch has no autocast for the device type, or a cast names what there is not.
    """
    text = show_casts(inputs) if output is None else f"{show_casts(inputs)}, output {show_casts(output)}"
    reader = _Reader(declaration, location_of(device_type, text))
    device_type = name_of(device_type)
    reader.check_device(device_type)
    return CastPolicy(device_type, text, reader.inputs(inputs), reader.outputs(output))


def location_of(device_type: str, text: str) -> str:
    """Return what messages call a policy, which is not a function with a line of its own."""
    return f"register_autocast({device_type!r}, {text})"


def show_casts(casts: Any) -> str:  # Any: as above
    """Return what the author wrote, in one line."""
    if isinstance(casts, Mapping):
        return "{" + ", ".join(f"{show(name)}: {show(cast)}" for name, cast in casts.items()) + "}"
    return show(casts)


class _Reader:
    def __init__(self, declaration: Declaration, location: str) -> None:
        self.origin = declaration.origin(location)
        self.schema = declaration.schema

    def check_device(self, device_type: object) -> None:
        """Refuse a device type without autocast."""
        if not _has_autocast(device_type):
            raise self.origin.error(
                RegistrationError,
                "the device type has no autocast",
                expected="'cpu', 'cuda', ...",
                found=show(device_type),
                do=_advise_device(device_type),
            )

    def inputs(self, casts: Any) -> dict[str, Cast]:  # Any: whatever the author wrote
        """Return the cast of each argument. One for all leaves out what must stay the caller's own tensor."""
        named = [argument.name for argument in self.schema.tensor_arguments]
        own = self._kept()
        if not isinstance(casts, Mapping):
            self._check(casts, "all arguments", INPUT_WORDS)
            return {name: casts for name in named if name not in own and casts != KEEP}
        for name, cast in casts.items():
            self._check_name(name, named, self.schema.argument_names, "not a tensor argument")
            self._check(cast, f"'{name}'", INPUT_WORDS)
            if name in own and cast != KEEP:
                raise self.origin.error(
                    RegistrationError,
                    f"autocast cannot cast '{name}', which {own[name]}",
                    expected=f"{show(name)}: 'keep'",
                    found=f"{show(name)}: {show(cast)}",
                    do=f"leave '{name}' out",
                )
        return {name: cast for name, cast in casts.items() if cast != KEEP}

    def outputs(self, casts: Any) -> dict[str, Cast]:  # Any: whatever the author wrote
        """Return the cast of each output that a call returns and that shares no memory."""
        if casts is None:
            return {}
        fresh = [o.name for o in self.schema.visible_outputs if o.holds_tensors and o.alias_of is None]
        if not isinstance(casts, Mapping):
            self._check(casts, "the output", OUTPUT_WORDS)
            return {name: casts for name in fresh if casts != KEEP}
        for name, cast in casts.items():
            self._check_name(name, fresh, self.schema.output_names, "not a tensor that the call creates")
            self._check(cast, f"output '{name}'", OUTPUT_WORDS)
        return {name: cast for name, cast in casts.items() if cast != KEEP}

    def _kept(self) -> dict[str, str]:
        """Return arguments that must stay the caller's own tensors, and why."""
        viewed = {output.alias_of for output in self.schema.outputs if output.is_view}
        reasons = {name: "an output is a view of: it would be a view of a copy" for name in viewed if name}
        written = {a.name: "the op writes to: it would write to a copy" for a in self.schema.mutated_arguments}
        return {**reasons, **written}

    def _check_name(self, name: object, valid: Sequence[str], existing: Sequence[str], kind: str) -> None:
        if name in valid:
            return
        is_known = name in existing
        raise self.origin.error(
            RegistrationError,
            f"autocast names {show(name)}, which is {kind if is_known else 'not a name of the op'}",
            expected=quote(valid),
            found=show(name),
            do=None if is_known or not isinstance(name, str) else suggest(name, valid),
        )

    def _check(self, cast: Any, what: str, words: Sequence[str]) -> None:  # Any: whatever the author wrote
        if isinstance(cast, torch.dtype) and cast.is_floating_point:
            return
        if isinstance(cast, str) and cast in words:
            return
        raise self.origin.error(
            RegistrationError,
            f"autocast casts {what} to a floating-point dtype, or as a word says",
            expected=f"torch.bfloat16, ..., {', '.join(map(repr, words))}",
            found=show(cast),
            do=_advice(cast, words) if isinstance(cast, str) else None,
        )


def _advice(word: str, words: Sequence[str]) -> str | None:
    is_dtype = isinstance(getattr(torch, word, None), torch.dtype)
    return f"write torch.{word}" if is_dtype else suggest(word, words)


def _has_autocast(device_type: object) -> bool:
    try:
        if not isinstance(device_type, str) or torch.device(device_type).type != device_type:  # "cuda:0" is not a type
            return False
        return torch.amp.is_autocast_available(device_type)
    except RuntimeError:  # there is no such device type
        return False


def _advise_device(device_type: object) -> str:
    if not isinstance(device_type, str):
        return "give the name of a device type, such as 'cuda'"
    if has_index(device_type) or not is_known(device_type):
        return advice_on(device_type)
    return "leave the policy out; an out-of-tree backend has autocast if its module defines get_amp_supported_dtype"
