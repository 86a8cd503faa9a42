"""The native library: built once for a torch, a Python and a compiler, in the background, and loaded where it can be.

CUSTOM_AUTOGRAD_NATIVE=1        the default: built in a thread at the first call that could use it; until it is there,
                                and where it cannot be built, calls run generated Python, with the same results
CUSTOM_AUTOGRAD_NATIVE=0        never
CUSTOM_AUTOGRAD_NATIVE=require  built and loaded at that first call, which waits for it and raises if it fails
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType

import torch

from custom_autograd.core.errors import CustomAutogradError, KernelUnavailable
from custom_autograd.core.locks import ThreadLock
from custom_autograd.core.messages import show
from custom_autograd.execution.kernel_call import is_arithmetic
from custom_autograd.kernels import native_kernels
from custom_autograd.torch_private.definitions import ask_native, changes
from custom_autograd.torch_private.dispatch import restore_keys_with
from custom_autograd.torch_private.functions import find_with

VARIABLE = "CUSTOM_AUTOGRAD_NATIVE"
SOURCE = Path(__file__).parent / "source" / "call.cpp"


def parse_mode() -> str:
    """Return "0", "1" or "require", as the environment says."""
    mode = os.environ.get(VARIABLE) or "1"
    if mode in ("0", "1", "require"):
        return mode
    raise CustomAutogradError(VARIABLE, "the variable has no such value", expected="0, 1 or require", found=show(mode))


class Library:
    """The native library of this process.

    Attributes:
        mode: as the environment sets it.
        module: the library, once it is loaded.
        reason: why it is not loaded, in words.
    """

    def __init__(self) -> None:
        self.mode = parse_mode()
        self.module: ModuleType | None = None
        self.reason = "no call has needed it yet" if self.mode != "0" else f"{VARIABLE}=0"
        self._lock = ThreadLock()
        self._thread: threading.Thread | None = None

    def request(self, when_loaded: Callable[[ModuleType], None]) -> None:
        """Load the library, in a thread of its own unless it is required; at once only if it is."""
        if self.mode == "0" or self.module is not None or self._thread is not None:
            return
        if self.mode == "require":
            when_loaded(self.load())
            return
        with self._lock:
            if self._thread is None:
                self.reason = "it is being built"
                self._thread = threading.Thread(target=self._try_to_load, args=[when_loaded], daemon=True)
                self._thread.start()

    def load(self) -> ModuleType:
        """Return the library, built if need be."""
        with self._lock:
            if self.module is None:
                try:
                    path = build_library()
                    self.module = _load(path)
                except KernelUnavailable as error:
                    self.reason = str(error)
                    raise
                find_with(self.module.running_context)
                ask_native(self.module.is_own)
                restore_keys_with(self.module.with_keys_restored)
                self.module.read_code_by(is_arithmetic)
                torch.autograd.graph.Node.register(self.module.Node)
                native_kernels.serve_by(partial(_serve, self.module), path)
                changes.tell_always(self.module.note_change)
                self.reason = "loaded"
            return self.module

    def wait(self) -> None:
        """Wait for the thread that builds, if there is one."""
        if self._thread is not None:
            self._thread.join()

    def renew(self) -> None:
        """Forget, in a forked child, a thread that it does not have."""
        if self._thread is not None and self.module is None:
            self._thread = None

    def _try_to_load(self, when_loaded: Callable[[ModuleType], None]) -> None:
        try:
            when_loaded(self.load())
        except Exception as error:  # noqa: BLE001  # calls run without it, and `custom-autograd native` says why
            self.reason = str(error)


def build_library() -> Path:
    """Return the library's file, built if need be."""
    _refuse_foreign_python()
    from custom_autograd.kernels.compilers import ExtensionCompiler
    from custom_autograd.kernels.shared_library import find_or_build  # loads the compilers

    return find_or_build(SOURCE, (), ExtensionCompiler())[1]


def find_built() -> Path | None:
    """Return the library's file if it is built, or None if it can be built."""
    _refuse_foreign_python()
    from custom_autograd.kernels import prebuilt
    from custom_autograd.kernels.cache_files import cache_folder, require_writable
    from custom_autograd.kernels.compilers import ExtensionCompiler
    from custom_autograd.kernels.shared_library import ANOTHER_CACHE, Build  # loads the compilers

    with suppress(KernelUnavailable):  # what comes with the package does not fit: it can be built
        found = prebuilt.find(SOURCE, (), ExtensionCompiler().targets())
        if found is not None:
            return found[1]
    try:
        build = Build(SOURCE, (), ExtensionCompiler(), cache_folder())
        name = build.recorded()
        if name is not None:
            return build.folder / f"{name}.so"
        ExtensionCompiler().find(SOURCE)  # raises if nothing could build it
        require_writable(build.folder)
    except OSError as error:
        problem = "the native library cannot be written to the cache"
        raise KernelUnavailable("custom_autograd", problem, found=str(error), do=ANOTHER_CACHE) from error
    return None


def _refuse_foreign_python() -> None:
    """Refuse a Python on which native calls could be wrong."""
    import sysconfig  # half a millisecond of the import of custom_op

    found = None
    if sys.implementation.name != "cpython":
        found = f"{sys.implementation.name}: only CPython has the slots that they use"
    elif sysconfig.get_config_var("Py_GIL_DISABLED"):
        found = "free-threaded Python: the kinds of calls are guarded by the GIL"
    if found:
        do = "use CPython with its GIL, or ignore it: calls are slower"
        raise KernelUnavailable("custom_autograd", "native calls are not available", found=found, do=do)


def _serve(native: ModuleType, kernel: object, operator: native_kernels.NativeOperator) -> None:
    try:
        boxed = native.Boxed(operator.name, operator.source, operator.addresses, operator.is_contiguous)
    except TypeError:  # it has an argument or a result that native code does not convert
        return
    native.take_over(kernel, boxed)


def _load(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader("call", str(path))
    spec = importlib.util.spec_from_loader("call", loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        problem = "native calls are not available"
        do = "delete that file: it is built again"
        raise KernelUnavailable("custom_autograd", problem, found=str(error), rule=str(path), do=do) from error
    return module
