"""Runs programs, each in a fork of one process that has imported torch: that import is most of what many of them cost.

`run_python` takes the arguments of `python`. A program finds what it would find in a fresh interpreter: its arguments,
environment, folder, path and `__main__` are its own, and it ends as an interpreter does. It cannot have options of
Python, or look at an import of torch: such a program is started with subprocess.

This file is its own server, which the workers of a session share: it listens at a socket in the folder for temporary
files, and ends with the worker that started it. A line of JSON is a program, and a line of output is how it ended.
"""

import contextlib
import fcntl
import hashlib
import importlib
import json
import multiprocessing.process
import os
import runpy
import signal
import socket
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
        program = json.dumps(given)
        code = _answer(program, modules, variables) or _answer(program, modules, variables)
        out, err = (path.read_text(encoding="utf-8", errors="replace") for path in printed)
    return subprocess.CompletedProcess([sys.executable, *words], int(code), out, err)


def _answer(program, modules, variables):
    """How a program ended; nothing where the server has ended before it began, with the worker that had started it."""
    with _connection(modules, variables) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(f"{program}\n".encode())
        return connection.makefile().readline()
    return ""


def _connection(modules, variables):
    """A connection with the server, which is started if no worker of this session has."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", os.getpid())
    name = hashlib.sha256(repr((session, modules, variables)).encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir(), f"python-server-{name}")
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):
            return _connected(path)
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen(64)
            descriptor = listening.fileno()
            command = [sys.executable, __file__, path, str(descriptor), *modules]
            env = {**os.environ, **dict(variables)}
            _started.append(subprocess.Popen(command, env=env, pass_fds=[descriptor]))
        return _connected(path)


_started = []  # of this process; they end when it does


def _connected(path):
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def serve(path, descriptor, *modules):
    """Fork for each program, and say how it ended; what a child returns is its program."""
    parent, listening = os.getppid(), socket.socket(fileno=int(descriptor))
    listening.settimeout(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            importlib.import_module(name)
    while os.getppid() == parent:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            continue
        if os.fork() == 0:
            listening.close()
            return answer(connection)
        connection.close()
    os.unlink(path)
    os.unlink(f"{path}.lock")
    sys.exit()


def answer(connection):
    """Return the program, in a child; say how that has ended, in this process."""
    connection.settimeout(None)
    with connection, connection.makefile("rw") as lines:
        given = json.loads(lines.readline())
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            lines.write(f"{os.waitstatus_to_exitcode(status)}\n")
            lines.flush()
            os._exit(0)
    return given


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
    become(*serve(*sys.argv[1:]))
