"""Shows whether calls run natively here, and builds the library for it, for `custom-autograd native`."""

import argparse
import os
import platform
import shlex
import sys

SETTINGS = {
    "0": "0, calls run generated Python",
    "1": "1 or not set, calls are native once the library is there",
    "require": "require, the first call waits for the library",
}
"""Meanings of the variable's values."""
NOT_BUILT = "not built yet: the first call of an op builds it; --build does so now, and says why where it cannot"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--build", action="store_true", help="build the library now, and load it")


def run(arguments: argparse.Namespace) -> int:
    """Print the settings; return 0, 1 if the library cannot be built here, or 2 if the variable has another value."""
    import torch

    from custom_autograd.core.errors import CustomAutogradError, KernelUnavailable
    from custom_autograd.kernels.compilers import CppCompiler
    from custom_autograd.native import library

    print(f"torch {torch.__version__}, {platform.python_implementation()} {platform.python_version()}")
    print(f"compiler: {_describe_compiler()}")
    print(f"C++ runtime: libraries are linked {next(CppCompiler().runtimes())[0]}")
    try:
        print(f"{library.VARIABLE}: {SETTINGS[library.parse_mode()]}")
    except CustomAutogradError as error:
        print(f"custom-autograd: {error}", file=sys.stderr)
        return 2
    try:
        path = library.find_built()
        if arguments.build or path is not None:
            library.Library().load()  # what is there may not fit this torch
            path = library.find_built()
    except KernelUnavailable as error:
        print(f"not available: {error}")
        return 1
    print(NOT_BUILT if path is None else f"library: {path}")
    return 0


def _describe_compiler() -> str:
    """Return the command of the compiler, and the version that it prints."""
    from custom_autograd.kernels.compilers import run as run_command

    command = os.environ.get("CXX") or "c++"
    try:
        said = run_command([*shlex.split(command), "--version"])
    except (OSError, ValueError):
        return f"{command}, which cannot be run"
    version = said.stdout.strip().partition("\n")[0]
    return f"{command}, {version}" if said.returncode == 0 and version else command
