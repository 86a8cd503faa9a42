"""Load a new library and raise an exception through it: a program, since either may end the process.

python trial.py FOLDER LIBRARY [NATIVE]

What C++ throws while a library is loaded cannot be caught: a schema that does not parse, a function that is defined
twice, a static variable whose initialiser throws. And a kernel that refuses its input ends the process if the library
holds a C++ runtime besides torch's, as some compilers link it.

FOLDER has torch's libraries, which are loaded without Python's torch: 0.3 s instead of 1.3 s. The exception is raised
by the dispatcher, as `torch.ops` calls a kernel, and through the library of native calls, if NATIVE names it.
"""

from __future__ import annotations

import contextlib
import ctypes
import pathlib
import sys

BEGUN, LOADED = "custom_autograd: loading begins", "custom_autograd: loading ended"
ARRIVED, LOST = "custom_autograd: no exception was lost", "the exception was raised, but did not arrive"
SPACE, NUMBER = b"custom_autograd_trial", 7


def main(folder: str, path: str, native: str = "") -> None:
    """Print each step before and after it is taken."""
    import resource  # not on Windows, where nothing is built

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    library = None
    with contextlib.suppress(OSError):  # why it cannot be loaded is said where it is loaded for use
        libraries = [ctypes.CDLL(str(found)) for found in pathlib.Path(folder).glob("libtorch.*")]
        with contextlib.suppress(OSError):  # only native calls need it
            libraries += [ctypes.CDLL(str(found)) for found in pathlib.Path(folder).glob("libtorch_python.*")]
        print(BEGUN, flush=True)
        library = ctypes.CDLL(path)
    print(LOADED, flush=True)
    kernel = getattr(library, "custom_autograd_raise", None)
    is_lost = kernel is not None and not (arrives_by_dispatcher(kernel, folder) and arrives_natively(kernel, native))
    print(LOST if is_lost else ARRIVED, flush=True)


def arrives_by_dispatcher(kernel: object, folder: str) -> bool:
    """Return True if the exception of a kernel arrives where the dispatcher was asked to call it."""
    torch = ctypes.CDLL(str(next(pathlib.Path(folder).glob("libtorch_cpu.*"))))
    definitions, kernels = ctypes.c_void_p(), ctypes.c_void_p()
    torch.aoti_torch_library_init_fragment(SPACE, b"trial", 0, ctypes.byref(definitions))
    torch.aoti_torch_library_def(definitions, b"raises(int number) -> int")
    torch.aoti_torch_library_init_impl(SPACE, b"CompositeExplicitAutograd", b"trial", 0, ctypes.byref(kernels))
    torch.aoti_torch_library_impl(kernels, b"raises", kernel)
    stack = (ctypes.c_uint64 * 1)(NUMBER)
    return bool(torch.aoti_torch_call_dispatcher(SPACE + b"::raises", b"", stack))


def arrives_natively(kernel: object, native: str) -> bool:
    """Return True if the exception of a kernel arrives in the library of native calls, or that is not built."""
    if not native:
        return True
    try:
        catches = ctypes.CDLL(native).custom_autograd_catches
    except (OSError, AttributeError):  # it has gone, or does not fit this torch: calls are not native then
        return True
    return bool(catches(kernel, ctypes.c_uint64(NUMBER)))


if __name__ == "__main__":
    main(*sys.argv[1:])
