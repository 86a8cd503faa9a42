"""C++ sources that test files hold as text, written and built."""

from pathlib import Path

import pytest

from custom_autograd.kernels import KernelUnavailable, cpp_kernel


def built_source(path: Path, text: str, function: str) -> Path:
    """Write the text of a C++ source to a path, and return that; skip the test if a function cannot be loaded."""
    path.write_text(text)
    try:
        cpp_kernel(path, function).load()
    except KernelUnavailable as error:
        pytest.skip(str(error))
    return path
