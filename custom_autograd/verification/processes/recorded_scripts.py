"""Runs a script or tests in a fresh process, which records calls, and returns what the process sends.

messages = run_apart(work, "--record script.py")     in this process
run_script("script.py")                              within `work`, in the fresh one
"""

import importlib.util
import io
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from custom_autograd.core.errors import CheckError
from custom_autograd.core.messages import first_line
from custom_autograd.kernels.compilers import end_of
from custom_autograd.verification.processes.process import ParentPipe, listen, started


def run_apart(work: Callable[[ParentPipe], None], subject: str) -> list[object]:
    """Run work in a fresh process, and return the objects that it sends; its standard output goes to standard error.

    Args:
        work: a picklable function, which is called with a function that sends an object.
        subject: what messages are about, such as "--record script.py".

    Raises:
        CheckError: if the work raises, or its process ends early.
    """
    messages: list[object] = []
    with started(partial(_work, work)) as child:
        ending = listen(child, messages.append)
    if ending.is_finished:
        return messages
    problem = str(ending.error or f"its process {end_of(ending.exit_code)}\n{ending.trace}").strip()
    raise CheckError(subject, problem.removeprefix(f"{ScriptError.__name__}: "), do="correct it, and run it again")


def _work(work: Callable[[ParentPipe], None], line: ParentPipe) -> None:
    os.dup2(2, 1)  # the output of the parent is a report
    work(line)


class ScriptError(Exception):
    """A script failed, or no test ran."""


def run_script(path: str) -> None:
    """Run a script as Python does, or tests with pytest.

    Raises:
        ScriptError: if the script raises or exits with an error, or no test runs. Tests may fail.
    """
    file = Path(path.partition("::")[0])
    if file.is_dir() or file.name.startswith("test_") or "::" in path:
        _run_tests(path)
        return
    sys.argv = [path]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise ScriptError(f"it exits with {error.code!r}") from error
    except Exception as error:
        traceback.print_exc()
        raise ScriptError(f"it raises {type(error).__name__}: {first_line(error)}") from error


def _run_tests(path: str) -> None:
    import pytest  # only a test suite has it

    is_parallel = importlib.util.find_spec("xdist") is not None
    code = pytest.main([path, "-q", "-p", "no:cacheprovider", *(["-n0"] if is_parallel else [])])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise ScriptError(f"pytest ends with {pytest.ExitCode(code).name}")


def dump(value: object) -> bytes:
    """Return a value with tensors as bytes.

    Raises:
        Exception: if an object in it cannot be pickled.
    """
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def load(data: bytes) -> Any:  # Any: what was dumped
    """Return the value that `dump` returned as bytes."""
    return torch.load(io.BytesIO(data), weights_only=False)
