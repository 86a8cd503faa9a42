"""The C++ sources of the gallery are built before the first test: once, several at a time, and in no test's time.

Without this the first test of each kernel waits for its build, or for that of another worker.
"""

import contextlib
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from custom_autograd.kernels import CppKernel, KernelUnavailable

HERE = Path(__file__).parent
GALLERY = HERE.parents[1] / "examples" / "gallery"


def kernels():
    """One kernel of each library of the gallery whose module a collected test has imported, the largest first."""
    found = [kernel for kernel in gc.get_objects() if type(kernel) is CppKernel and kernel.source.parent == GALLERY]
    libraries = {(kernel.source, kernel.flags): kernel for kernel in found}
    return sorted(libraries.values(), key=lambda kernel: kernel.source.stat().st_size, reverse=True)


def build(kernel):
    with contextlib.suppress(KernelUnavailable):  # the tests of the kernel say why
        kernel.build()  # a lock keeps processes from building the same library


def pytest_collection_finish(session):
    is_needed = any(item.path.is_relative_to(HERE) for item in session.items)
    if is_needed and not session.config.option.collectonly:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(build, kernels()))
