"""When the native library is built and loaded, what happens where it cannot be, and what is said of it."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline

from custom_autograd.cli.main import main
from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.kernels.cache_files import require_writable
from custom_autograd.kernels.compilers import ExtensionCompiler
from custom_autograd.native.library import SOURCE, build_library, find_built
from custom_autograd.native.loading import library
from python_server import run_python
from slow_cases import slow_but_every

CALL = """
import sys
import torch
from torch import Tensor
from custom_autograd import custom_op

@custom_op("natlib::double")
def double(x: Tensor) -> Tensor:
    return x * 2

double.register_backward(lambda grad: grad * 2)

def call():
    x = torch.ones(2, requires_grad=True)
    for _ in range(3):
        y = double(x)
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    return type(y.grad_fn).__module__
"""


def run(code, tmp_path, **environment):
    """The output of a process that declares an op and runs some code."""
    file = tmp_path / "script.py"
    file.write_text(CALL + textwrap.dedent(code))
    variables = {**os.environ, **environment}
    done = run_python(file, env=variables)
    return done.stdout + done.stderr


@pytest.fixture
def without_compiler(tmp_path):
    """The environment of a machine without a compiler, where nothing has been built."""
    return {"CXX": str(tmp_path / "no-such-compiler"), "CUSTOM_AUTOGRAD_CACHE": str(tmp_path / "cache")}


def test_nothing_is_loaded_before_a_call_or_where_it_is_switched_off(tmp_path):
    code = """
        from custom_autograd.native.loading import library
        print(library.reason)
        print(call())
        print(library.module, library.reason)
    """
    assert run(code, tmp_path, CUSTOM_AUTOGRAD_NATIVE="0").split("\n")[:3] == [
        "CUSTOM_AUTOGRAD_NATIVE=0",
        "torch.autograd.function",
        "None CUSTOM_AUTOGRAD_NATIVE=0",
    ]


def test_without_a_compiler_calls_are_the_same(tmp_path, without_compiler):
    code = """
        from custom_autograd.native.loading import library
        print(call())
        library.wait()
        print(call())
        print(library.reason)
    """
    said = run(code, tmp_path, CUSTOM_AUTOGRAD_NATIVE="1", **without_compiler)
    assert said.startswith("torch.autograd.function\ntorch.autograd.function\n")
    assert "no C++ compiler" in said
    assert "Error" not in said


def test_what_is_required_and_cannot_be_built_is_an_error(tmp_path, without_compiler):
    said = run("call()", tmp_path, CUSTOM_AUTOGRAD_NATIVE="require", **without_compiler)
    assert "KernelUnavailable: call.cpp: no C++ compiler" in said


@pytest.mark.skipif(library.module is None, reason=library.reason)
def test_it_is_loaded_in_the_background(tmp_path):
    code = """
        from custom_autograd.native.loading import library
        call()
        library.wait()
        call()
        print(call(), library.reason)
    """
    assert run(code, tmp_path, CUSTOM_AUTOGRAD_NATIVE="1") == "custom_autograd.native loaded\n"


@pytest.mark.skipif(library.module is None, reason=library.reason)
def test_a_forked_child_calls_natively(tmp_path):
    code = """
        import os
        call()
        if os.fork() == 0:
            print(call(), call(), flush=True)
            os._exit(0)
        os.wait()
    """
    expected = "custom_autograd.native custom_autograd.native\n"
    assert run(code, tmp_path, CUSTOM_AUTOGRAD_NATIVE="require") == expected


def test_another_setting_is_refused(tmp_path):
    said = run("", tmp_path, CUSTOM_AUTOGRAD_NATIVE="yes")
    assert "CustomAutogradError: CUSTOM_AUTOGRAD_NATIVE: the variable has no such value" in said
    assert "expected   0, 1 or require" in said


@pytest.fixture
def command(monkeypatch, capsys):
    """A function that runs the command in this process, and returns its exit code and output."""

    def run_command(*words, **environment):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            code = main(["native", *words])
        return code, "".join(capsys.readouterr())

    return run_command


@pytest.mark.skipif(library.module is None, reason=library.reason)
def test_the_command_says_what_is_in_force(command):
    code, said = command("--build")
    assert code == 0
    assert [line.split(":")[0].split()[0] for line in said.splitlines()] == [
        "torch", "compiler", "C++", "CUSTOM_AUTOGRAD_NATIVE", "library",
    ]  # fmt: skip


def test_the_command_says_why_not(command, without_compiler):
    for words in ([], ["--build"]):
        code, said = command(*words, **without_compiler)
        assert code == 1
        assert "not available: call.cpp: no C++ compiler" in said


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_the_command_says_that_the_cache_cannot_be_written(command, tmp_path):
    (tmp_path / "file").touch()
    code, said = command(CUSTOM_AUTOGRAD_CACHE=str(tmp_path / "file"))

    assert code == 1
    assert_expected_inline(
        said[said.index("not available") :].replace(str(tmp_path), ""),
        """\
not available: custom_autograd: the native library cannot be written to the cache
  found      [Errno 20] Not a directory: '/file'
  do         point CUSTOM_AUTOGRAD_CACHE at a folder that you can write, and no other user
""",
    )


def test_a_folder_that_is_not_there_yet_can_be_written(tmp_path, monkeypatch):
    require_writable(tmp_path / "new" / "kernels")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere

    with pytest.raises(PermissionError, match=re.escape(str(tmp_path))):
        require_writable(tmp_path / "new" / "kernels")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("0", "0, calls run generated Python"), ("", "1 or not set, calls"), ("require", "require, the first call waits")],
)
def test_the_command_says_what_the_variable_says(command, setting, expected):
    assert f"CUSTOM_AUTOGRAD_NATIVE: {expected}" in command(CUSTOM_AUTOGRAD_NATIVE=setting)[1]


def test_headers_that_others_installed_are_represented_by_the_binaries_of_torch():
    """Each of 3,500 headers would give up the GIL, and wait for it while other threads run Python."""
    lib = Path(torch.__file__).parent / "lib"
    own = [str(SOURCE), str(SOURCE.with_name("node.h"))]
    others = ["/usr/include/stdio.h", str(lib.parent / "include" / "torch" / "version.h"), "/opt/python/Python.h"]
    found = ExtensionCompiler().dependencies([own[0], *others, own[1]])

    assert own == found[:2]
    assert {lib} == {Path(file).parent for file in found[2:]}
    assert {"libtorch_python", "libtorch_cpu", "libc10"} == {Path(file).stem for file in found[2:]}


@pytest.mark.skipif(library.module is None, reason=library.reason)
def test_finding_the_library_asks_for_few_files(monkeypatch):
    asked = []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda *args, **kwargs: asked.append(args) or stat(*args, **kwargs))
    find_built()

    assert 0 < len(asked) < 100


def test_the_command_refuses_another_setting(command):
    code, said = command(CUSTOM_AUTOGRAD_NATIVE="yes")
    assert code == 2
    assert "Traceback" not in said
    assert "custom-autograd: CUSTOM_AUTOGRAD_NATIVE: the variable has no such value" in said


FOREIGN = r"""#!/bin/sh
case " $* " in
  *" -o "*) ;;
  *) exec c++ "$@" ;;
esac
while [ "$1" != "-o" ]; do shift; done
echo 'extern "C" { int not_in_torch(); void* PyInit_call() { not_in_torch(); return nullptr; } }' > "$2.cpp"
exec c++ -shared -fPIC -Wl,-z,now "$2.cpp" -o "$2"
"""


@pytest.mark.slow
@pytest.mark.skipif(library.module is None or sys.platform != "linux", reason="links as on Linux")
def test_a_library_that_does_not_fit_is_named_by_the_command_and_calls_run_python(command, tmp_path):
    """Such as that of a torch of the same version that was built in another way."""
    compiler = tmp_path / "compiler"
    compiler.write_text(FOREIGN)
    compiler.chmod(0o755)
    variables = {"CXX": str(compiler), "CUSTOM_AUTOGRAD_CACHE": str(tmp_path / "cache"), "CUSTOM_AUTOGRAD_NATIVE": "1"}
    for words in (["--build"], []):
        code, said = command(*words, **variables)

        assert 1 == code
        assert "not available: custom_autograd: native calls are not available" in said
        assert "undefined symbol: not_in_torch" in said
    code = """
        from custom_autograd.native.loading import library
        call()
        library.wait()
        print(call().startswith("custom_autograd.native"), "undefined symbol" in library.reason)
    """

    assert "False True\n" == run(code, tmp_path, **variables)


def test_python_without_a_lock_is_refused(monkeypatch):
    variable = sysconfig.get_config_var
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: 1 if name == "Py_GIL_DISABLED" else variable(name))

    for find in (build_library, find_built):
        with pytest.raises(KernelUnavailable, match="free-threaded Python: the kinds of calls are guarded by the GIL"):
            find()


ENDS = {
    "it returns": "pass",
    "it is terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "it is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "its group is killed": "os.setpgid(0, 0); os.killpg(0, signal.SIGKILL)",
    "it exits as a child of a fork does": "os._exit(0)",
}


@pytest.mark.skipif(os.name != "posix", reason="compilers run on Linux and macOS only")
@pytest.mark.parametrize("end", slow_but_every(3, ENDS))
def test_a_compiler_ends_with_the_process_that_started_it(tmp_path, end):
    """It starts others, which end too: it is a shell that waits for `sleep`."""
    compiler, started = tmp_path / "compiler", tmp_path / "started"
    compiler.write_text(f"#!/bin/sh\nsleep 300 &\necho $$ $! > {started}.new\nmv {started}.new {started}\nwait\n")
    compiler.chmod(0o755)
    code = f"""
        from pathlib import Path
        call()
        from custom_autograd.kernels.compilers import _watchers
        while not (Path({str(started)!r}).exists() and _watchers):  # there from when it is watched
            pass
        import os, signal
        {ENDS[end]}
    """
    variables = {"CXX": str(compiler), "CUSTOM_AUTOGRAD_CACHE": str(tmp_path / "cache"), "CUSTOM_AUTOGRAD_NATIVE": "1"}

    assert "" == run(code, tmp_path, **variables)  # with the output closed, as its last owner has ended
    pids = started.read_text().split()
    for _ in range(1000):  # they take a moment to end
        if not any(map(is_running, pids)):
            break
    assert not any(map(is_running, pids))


def is_running(pid):
    """Return True unless a process has ended: one that has may still be in the table."""
    if sys.platform != "linux":
        found = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False).stdout
        return found.strip() not in ("", "Z", "Zs")
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # small systems have no `ps`
        return False
