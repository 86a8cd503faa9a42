"""custom-autograd check -j N and Ctrl-C: the same report in the same order, and neither a crash nor a stop loses it."""

import json
import signal
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from expecttest import assert_expected_inline

from custom_autograd.cli import main
from custom_autograd.cli.workers import Task, Workers, _end_of

OPS = """
import os
import signal
import sys

from custom_autograd.checks.targets import Target, TargetArgument
from custom_autograd.core.samples import Sample


def samples(make):
    yield Sample(make(3)).named("three")
    yield Sample(make(7)).named("seven")


def right(x):
    return x * 2


def wrong(x):
    return x.detach() * 2


def killed_on_seven(x):
    if x.shape[0] == 7:
        sys.stdout.flush()
        signal.raise_signal(signal.SIGSEGV)
    return x * 2


def leaving(x):
    os._exit(3)


def interrupted_on_seven(x):
    if x.shape[0] == 7 and not SENT:  # once, as a key is pressed: a second time ends a program that is ending
        SENT.append(True)
        os.kill({interrupted}, signal.SIGINT)
    return x * 2


SENT = []


def target(function):
    return Target(f"workers::{{function.__name__}}", function, function, (TargetArgument("x"),), samples=samples)


RIGHT, WRONG, KILLED, LEAVING = target(right), target(wrong), target(killed_on_seven), target(leaving)
INTERRUPTED = target(interrupted_on_seven)
"""

CHECKS = ["--checks", "gradcheck"]


@pytest.fixture
def file(imports_of):
    (imports_of / "worker_ops.py").write_text(OPS.format(interrupted="os.getpid()"))
    return imports_of


def rows(document):
    results = json.loads(document.read_text())["results"]
    return [(row["op"], row["check"], row["sample"], row["status"], row["message"]) for row in results]


def test_several_processes_find_the_same_in_the_same_order(file, capsys):
    targets = ["worker_ops.py:WRONG", "worker_ops.py:RIGHT"]
    codes = [main(["check", *targets, *CHECKS, "-j", n, "--json", f"{n}.json"]) for n in ("1", "2")]

    assert [1, 1] == codes
    assert rows(file / "1.json") == rows(file / "2.json")
    assert {"workers::wrong", "workers::right"} == {row[0] for row in rows(file / "2.json")}


def test_a_process_that_dies_is_an_error_of_its_op_and_what_remains_gets_another(file, capsys):
    code = main(["check", *(f"worker_ops.py:{name}" for name in ("KILLED", "LEAVING", "RIGHT")), *CHECKS, "-j", "2"])

    assert 1 == code
    assert_expected_inline(
        capsys.readouterr().out,
        """\
op                        check      status  samples
------------------------  ---------  ------  -----------------
workers::killed_on_seven  gradcheck  error   1 passed, 1 error
workers::leaving          gradcheck  error   1 error
workers::right            gradcheck  passed  2 passed

ERROR workers::killed_on_seven: gradcheck, on the sample after 'three'
  the process was ended by SIGSEGV, a segmentation fault; the checks that follow were not run
  to see it happen: custom-autograd check worker_ops.py:KILLED --checks gradcheck -j 1

ERROR workers::leaving: gradcheck, on its first sample
  the process ended by itself, with exit code 3; the checks that follow were not run
  to see it happen: custom-autograd check worker_ops.py:LEAVING --checks gradcheck -j 1

3 passed, 2 error
""",
    )


def test_a_process_goes_on_after_a_target_that_it_cannot_load_and_tells_each_result(file):
    told = []
    texts = ["nowhere.py:op", "worker_ops.py:RIGHT"]
    Workers([Task(text, 0, text, ("gradcheck",), "cpu", None, 0) for text in texts], 1, told.append).run()

    assert ["error", "passed", "passed"] == [result.status for result in told]
    assert "nowhere.py: there is no such file" == told[0].message


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_ends_with_130_and_what_was_found(file, processes):
    # With several processes the child that reaches the sample interrupts its parent, as the terminal would.
    (file / "worker_ops.py").write_text(OPS.format(interrupted="os.getpid()" if processes == "1" else "os.getppid()"))
    arguments = ["worker_ops.py:INTERRUPTED", *CHECKS, "-j", processes, "--junit", "r.xml"]
    program = [sys.executable, "-m", "custom_autograd", "check", *arguments]
    finished = subprocess.run(program, capture_output=True, text=True, check=False, timeout=120)

    cases = ElementTree.parse(file / "r.xml").getroot().findall(".//testcase")
    assert 130 == finished.returncode
    assert "custom-autograd: stopped by Ctrl-C; this is what was found until then\n" == finished.stderr
    assert "gradcheck: three" in [case.get("name") for case in cases]
    assert "gradcheck: seven" not in [case.get("name") for case in cases]


@pytest.mark.parametrize("number", ["0", "-1", "two"])
def test_a_number_of_processes_is_at_least_one(capsys, number):
    with pytest.raises(SystemExit) as caught:
        main(["check", "worker_ops.py", f"-j{number}"])

    assert 2 == caught.value.code
    assert f"a number of processes is 1 or more, not '{number}'" in capsys.readouterr().err


def test_ctrl_c_while_targets_load_ends_with_130(imports_of, capsys):
    (imports_of / "slow_ops.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")

    assert 130 == main(["list", "slow_ops.py"])
    assert "custom-autograd: stopped by Ctrl-C\n" == capsys.readouterr().err


def test_the_signal_is_named():
    named = [_end_of(code) for code in (-signal.SIGSEGV, -signal.SIGKILL, 1)]

    assert [
        "was ended by SIGSEGV, a segmentation fault",
        "was ended by SIGKILL, which the system sends where memory runs out",
        "ended by itself, with exit code 1",
    ] == named
