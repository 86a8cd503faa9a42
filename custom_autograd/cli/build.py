"""Compiles the kernels of a project for every machine of this platform, for `custom-autograd build`."""

import argparse
import sys
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("project", nargs="?", default=".", type=Path, help="folder of pyproject.toml (default: .)")
    parser.add_argument("--hub", metavar="FOLDER", type=Path, help="write a build for the Kernel Hub to that folder")
    parser.add_argument("--kernel-version", metavar="N", type=int, default=1, help="version of the Hub's kernel")
    parser.add_argument("--license", default="BSD-3-Clause", help="its license, as an SPDX expression")


def run(arguments: argparse.Namespace) -> int:
    """Build, and print the paths of the files; return 0, or 1 if a source cannot be built."""
    from custom_autograd.core.errors import KernelUnavailable  # imports torch
    from custom_autograd.packaging.hub import build_for_hub
    from custom_autograd.packaging.project import build_project, files_of, read_project

    project = read_project(arguments.project)
    try:
        if arguments.hub is not None:
            written = build_for_hub(project, arguments.hub, arguments.kernel_version, arguments.license)
        else:
            written = list(files_of(build_project(project)))
    except KernelUnavailable as error:
        print(f"custom-autograd: {error}", file=sys.stderr)
        return 1
    for path in written:
        print(f"wrote {path}")
    if not written:
        print(f"{project.package} declares no C++ or CUDA kernel: a wheel for every platform serves it")
    return 0
