"""Where an exception was raised: in code of the op's author, in this package, or in torch.

The last frame of the traceback decides. Where that frame is the author's, the instruction at which it stopped decides
further: a `raise` or an `assert` is the author's own, and anything else is a call into C++ that torch refused.
"""

import dis
import traceback
import types
from pathlib import Path
from typing import Literal

import torch

Origin = Literal["author", "package", "torch"]

PACKAGE = str(Path(__file__).parents[2])
TORCH = str(Path(torch.__file__).parent)
GENERATED = "<custom_autograd "
"""How the file names of generated source begin."""

ASSERTIONS = "_check"
"""How the names of torch's functions begin that raise what their caller says: torch._check and its like."""

RAISE = dis.opmap["RAISE_VARARGS"]


def origin_of(error: BaseException) -> Origin:
    """Return who raised an exception; torch where it has no traceback, as one that was made in C++ has."""
    frames = []
    entry = error.__traceback__
    while entry is not None:
        frames.append(entry)
        entry = entry.tb_next
    while frames and _is_assertion(frames[-1].tb_frame.f_code):
        frames.pop()
        if frames and _owner_of(frames[-1].tb_frame.f_code) == "author":
            return "author"
    if not frames:
        return "torch"
    last = frames[-1]
    owner = _owner_of(last.tb_frame.f_code)
    return "torch" if owner == "author" and not _is_raising(last) else owner


def is_authors(error: BaseException) -> bool:
    """Return True if the author's code raised an exception, or one of those that led to it."""
    seen: BaseException | None = error
    while seen is not None:
        if origin_of(seen) == "author":
            return True
        seen = seen.__cause__
    return False


def location_of(error: BaseException) -> str:
    """Return file:line of what the author raised, of an exception or of one of those that led to it."""
    seen: BaseException | None = error
    while seen is not None and origin_of(seen) != "author":
        seen = seen.__cause__
    frames = traceback.extract_tb((seen or error).__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(TORCH)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _owner_of(code: types.CodeType) -> Origin:
    name = code.co_filename
    if name.startswith(TORCH):
        return "torch"
    if name.startswith((PACKAGE, GENERATED)):
        return "package"
    return "author"


def _is_assertion(code: types.CodeType) -> bool:
    return code.co_filename.startswith(TORCH) and code.co_name.startswith(ASSERTIONS)


def _is_raising(entry: types.TracebackType) -> bool:
    """Return True if a frame stopped at a raise or an assert of its own, not at a call."""
    return entry.tb_frame.f_code.co_code[entry.tb_lasti] == RAISE
