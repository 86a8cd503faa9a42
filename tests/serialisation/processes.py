"""Runs Python programs of their own, which find this package and what a test wrote beside them."""

import os
from pathlib import Path

from python_server import run_python

ROOT = Path(__file__).parents[2]


def run(program, *arguments, folder, paths=(), is_script=False):
    """What a program prints, given as text; or its errors, where it fails.

    Args:
        program: the source.
        arguments: of the program.
        folder: to run in.
        paths: further folders to import from.
        is_script: run it from a file, whose functions child processes can find, rather than from the command line.
    """
    finished = start(program, *arguments, folder=folder, paths=paths, is_script=is_script)
    assert 0 == finished.returncode, finished.stderr
    return finished.stdout


def start(program, *arguments, folder, paths=(), is_script=False):
    """How a program ends, with what it prints; arguments as of `run`."""
    command = ["-c", program]
    if is_script:
        (Path(folder) / "script.py").write_text(program)
        command = ["script.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *paths))), "OMP_NUM_THREADS": "1"}
    return run_python(*command, *arguments, cwd=folder, env=environment)
