"""Runs programs, each in a fork of one process that has imported torch: that import is most of what many of them cost.

`run_python` takes the arguments of `python`. A program finds what it would find in a fresh interpreter: its arguments,
environment, folder, path and `__main__` are its own, and it ends as an interpreter does. It cannot have options of
Python, or look at an import of torch: such a program is started with subprocess.

This file is its own server: a line of JSON on standard input is a program, and a line of output is how it ended.
"""

import functools
import importlib
import json
import multiprocessing.process
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import types
import warnings
from pathlib import Path

SECONDS = 1500
"""After which the alarm ends a program."""
OF_CHECKS = ("torch", "torch._dynamo", "pytest")
"""What tests that pytest runs of checks import."""


def run_python(*arguments, cwd=None, env=None, modules=("torch",), variables=()):
    """How a program ends, and what it prints, as subprocess.run says it.

    Args:
        arguments: those of `python`: "-c" and code, "-m" and a module, or a file; then what the program is given.
        cwd: the folder to run in.
        env: its whole environment.
        modules: what is imported before the fork.
        variables: the names and values of the environment with which that is imported, where it is another one.
    """
    words = list(map(str, arguments))
    with tempfile.TemporaryDirectory() as folder:
        printed = [Path(folder, name) for name in ("out", "err")]
        given = [words, str(cwd or Path.cwd()), dict(os.environ if env is None else env), *map(str, printed)]
        server = _server(modules, variables, os.getpid())
        server.stdin.write(json.dumps(given) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        out, err = (path.read_text(encoding="utf-8", errors="replace") for path in printed)
    return subprocess.CompletedProcess([sys.executable, *words], code, out, err)


@functools.cache
def _server(modules, variables, _pid):
    command, env = [sys.executable, __file__, *modules], {**os.environ, **dict(variables)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def serve(modules):
    """Fork for each program, and say how it ended; what a child returns is its program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return json.loads(line)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()


def become(words, folder, env, out, err):
    """Run a program in this process as `python` would, which is at the end of its own file."""
    signal.alarm(SECONDS)
    for descriptor, path in enumerate((os.devnull, out, err)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    ours = {str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    theirs = list(filter(None, env.get("PYTHONPATH", "").split(os.pathsep)))
    os.chdir(folder)
    multiprocessing.process.ORIGINAL_DIR = folder  # where processes that it spawns begin
    os.environ.clear()
    os.environ.update(env)
    kind, *rest = words
    first = {"-c": "", "-m": folder}.get(kind, os.path.dirname(os.path.realpath(kind)))
    sys.path[:] = [first, *theirs, *(path for path in sys.path if path not in ours)]
    sys.argv[:] = [kind, *rest[1:]] if kind in ("-c", "-m") else words
    if kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    if kind == "-c":
        code = compile(rest[0], "<string>", "exec")
    else:
        main.__file__ = os.path.abspath(kind)
        code = compile(Path(kind).read_text(encoding="utf-8"), kind, "exec")
    exec(code, vars(main))


if __name__ == "__main__":
    become(*serve(sys.argv[1:]))
