"""custom-autograd check -j N: the same report in the same order, and neither a crash, Ctrl-C nor SIGTERM loses it."""

import json
import re
import signal
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from expecttest import assert_expected_inline

from custom_autograd.cli import main, workers
from custom_autograd.cli.workers import Task, Workers, _command
from custom_autograd.verification.checks import explore
from custom_autograd.verification.processes import process
from custom_autograd.verification.processes.process import CannotForkError
from custom_autograd.verification.processes.running import Progress

OPS = """
import ctypes
import dataclasses
import os
import signal
import threading

import torch

from custom_autograd.verification.harness.targets import Target, TargetArgument
from custom_autograd.schema.samples import Sample


def samples(make):
    yield Sample(make(3)).named("three")
    yield Sample(make(7)).named("seven")


def right(x):
    return x * 2


def wrong(x):
    return x.detach() * 2


def killed_on_seven(x):
    if x.shape[0] == 7:
        ctypes.string_at(0)
    return x * 2


class Device:  # on which a kernel fails, which is noticed when the host waits for it
    @staticmethod
    def is_initialized():
        return bool(FAILED)

    @staticmethod
    def synchronize():
        raise RuntimeError("device-side assert triggered")


def breaking(x):
    torch.hpu = Device  # in a worker alone: fake tensors ask each accelerator whether it is there
    FAILED.append(True)
    return x * 2


def killed_on_eight(x):
    if x.shape[0] == 8:
        ctypes.string_at(0)
    return x * (3 if x.shape[0] > 200 else 2)


def leaving(x):
    os._exit(3)


def interrupted_on_seven(x):
    if x.shape[0] == 7 and not SENT:  # once, as a key is pressed: a second time ends a program that is ending
        SENT.append(True)
        os.kill({interrupted}, signal.{kind})
        if {interrupted} != os.getpid():
            threading.Event().wait(600)  # its parent ends it, however busy the machine is
    return x * 2


SENT = []
FAILED = []


def target(function):
    return Target(f"workers::{{function.__name__}}", function, function, (TargetArgument("x"),), samples=samples)


RIGHT, WRONG, KILLED, LEAVING = target(right), target(wrong), target(killed_on_seven), target(leaving)
INTERRUPTED, BREAKING = target(interrupted_on_seven), target(breaking)
DRAWN = dataclasses.replace(target(killed_on_eight), reference=right)
"""

CHECKS = ["--checks", "gradcheck"]


@pytest.fixture
def file(imports_of):
    (imports_of / "worker_ops.py").write_text(OPS.format(interrupted="os.getpid()", kind="SIGINT"))
    return imports_of


def rows(document):
    results = json.loads(document.read_text())["results"]
    return [(row["op"], row["check"], row["sample"], row["status"], row["message"]) for row in results]


def without_frames(text):
    """The report without the stack of a crash, whose lines are those of this package."""
    kept = [line for line in text.splitlines() if not re.match(r"    \S+:\d+ |  Stack ", line)]
    return "\n".join(kept) + "\n"


def cannot_fork():
    raise CannotForkError("torch lost the threads of its engine")


def fork_too_late(started):
    """Let a thread begin to work between the question whether a fork is sound, and the fork."""

    def late(work, *, is_forked=False, share):
        if is_forked:
            raise CannotForkError("another thread is at work")
        return started(work, share=share)

    return late


WAYS = [
    pytest.param(None, id="forks"),
    pytest.param((workers, "is_sound", lambda: False), id="fresh interpreters", marks=pytest.mark.slow),
    pytest.param((process, "_require_engine", cannot_fork), id="forks without an engine", marks=pytest.mark.slow),
    pytest.param((workers, "started", fork_too_late(workers.started)), id="late forks", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("changed", WAYS)
def test_several_processes_find_the_same_in_the_same_order(file, monkeypatch, changed):
    if changed is not None:
        monkeypatch.setattr(*changed)
    targets = ["worker_ops.py:WRONG", "worker_ops.py:RIGHT"]
    codes = [main(["check", *targets, *CHECKS, "-j", n, "--json", f"{n}.json"]) for n in ("0", "2")]

    assert [1, 1] == codes
    assert rows(file / "0.json") == rows(file / "2.json")
    assert {"workers::wrong", "workers::right"} == {row[0] for row in rows(file / "2.json")}


def test_a_process_that_dies_is_an_error_of_its_op_and_what_remains_gets_another(file, capsys):
    code = main(["check", *(f"worker_ops.py:{name}" for name in ("KILLED", "LEAVING", "RIGHT")), *CHECKS, "-j", "2"])

    assert 1 == code
    assert_expected_inline(
        without_frames(capsys.readouterr().out),
        """\
ERROR workers::killed_on_seven: all checks, on seven
  the process was ended by SIGSEGV, a segmentation fault; no check was run on it
  last call: Sample(float32[7])
  to reproduce: custom-autograd check worker_ops.py:KILLED
  Fatal Python error: Segmentation fault

ERROR workers::leaving: all checks, on three
  the process ended by itself, with exit code 3; no check was run on it
  last call: Sample(float32[3])
  to reproduce: custom-autograd check worker_ops.py:LEAVING

ERROR workers::leaving: all checks, on seven
  the process ended by itself, with exit code 3; no check was run on it
  last call: Sample(float32[7])
  to reproduce: custom-autograd check worker_ops.py:LEAVING

workers::killed_on_seven: 1 passed, 1 error
workers::leaving: 2 error
workers::right: 2 passed
3 ops: 3 passed, 3 error
""",
    )


@pytest.mark.slow
def test_a_draw_that_ends_a_process_is_an_error_and_the_rest_is_run_in_another(file, monkeypatch):
    monkeypatch.setattr(explore, "SECONDS", 3.0)
    main(["check", "worker_ops.py:DRAWN", "--checks", "determinism,explore,second_order", "--json", "found.json"])

    found = rows(file / "found.json")
    kinds = [(check, status) for _, check, sample, status, _ in found if sample == "three"]
    assert [("determinism", "passed"), ("explore", "error"), ("explore", "failed"), ("second_order", "passed")] == kinds
    crash, wrong = (row[4] for row in found if row[1:3] == ("explore", "three"))
    assert "size 3 -> 8: the process was ended by SIGSEGV, a segmentation fault; the rest was run" in crash
    assert "size 3 -> 256: output 0[" in wrong


def test_a_device_that_fails_is_an_error_of_its_op_and_what_remains_gets_another_process(file, capsys):
    main(["check", "worker_ops.py:BREAKING", "worker_ops.py:RIGHT", *CHECKS, "--json", "found.json"])

    assert ["passed", "passed", "error", "passed", "passed"] == [row[3] for row in rows(file / "found.json")]
    message = rows(file / "found.json")[2][4]
    assert "the process ended by itself, with exit code 1" in message
    assert "RuntimeError: device-side assert triggered" in message


def test_a_process_goes_on_after_a_target_that_it_cannot_load_and_tells_each_result(file):
    told = []
    texts = ["nowhere.py:op", "worker_ops.py:RIGHT"]
    tasks = [Task(text, 0, text, ("gradcheck",), "cpu", None, 0) for text in texts]
    checking = Workers(tasks, 1, lambda op, check, result: told.append((check, result)))
    checking.run()
    found = checking.report().results

    assert ["error", "passed", "passed"] == [result.status for result in found]
    assert "nowhere.py: there is no such file" == found[0].message
    assert [("all checks", found[0]), ("gradcheck", None)] == told[:2]
    assert list(found) == [result for _, result in told if result is not None]


@pytest.mark.parametrize(
    ("kind", "said", "processes"),
    [
        ("SIGINT", "Ctrl-C", "2"),
        ("SIGTERM", "SIGTERM", "0"),
        pytest.param("SIGINT", "Ctrl-C", "0", marks=pytest.mark.slow),
        pytest.param("SIGTERM", "SIGTERM", "2", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_check_with_what_was_found(file, kind, said, processes):
    # With several processes the child that reaches the sample interrupts its parent, as the terminal would.
    stopped = "os.getpid()" if processes == "0" else "os.getppid()"
    (file / "worker_ops.py").write_text(OPS.format(interrupted=stopped, kind=kind))
    arguments = ["worker_ops.py:INTERRUPTED", *CHECKS, "-j", processes, "--junit", "r.xml"]
    program = [sys.executable, "-m", "custom_autograd", "check", *arguments]
    finished = subprocess.run(program, capture_output=True, text=True, check=False)

    cases = ElementTree.parse(file / "r.xml").getroot().findall(".//testcase")
    assert 128 + signal.Signals[kind] == finished.returncode
    lines = [line for line in finished.stderr.splitlines() if not line.startswith("checking: ")]
    assert [f"custom-autograd: stopped by {said}; this is what was found until then"] == lines
    assert "gradcheck: three" in [case.get("name") for case in cases]
    assert "gradcheck: seven" not in [case.get("name") for case in cases]


@pytest.mark.parametrize("number", ["-1", "two"])
def test_a_number_of_processes_is_a_number(capsys, number):
    with pytest.raises(SystemExit) as caught:
        main(["check", "worker_ops.py", f"-j{number}"])

    assert 2 == caught.value.code
    assert f"a number of processes is 0 or more, not '{number}'" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "said"), [("SIGINT", "Ctrl-C"), ("SIGTERM", "SIGTERM")], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_while_targets_load_ends_the_command(imports_of, capsys, kind, said):
    (imports_of / f"slow_{kind}.py").write_text(f"import signal\nsignal.raise_signal(signal.{kind})\n")

    assert 128 + signal.Signals[kind] == main(["list", f"slow_{kind}.py"])
    assert f"custom-autograd: stopped by {said}\n" == capsys.readouterr().err
    assert signal.SIG_DFL == signal.getsignal(signal.SIGTERM)


def test_a_crash_is_an_error_by_default_and_the_stack_is_kept(file, capsys):
    code = main(["check", "worker_ops.py:KILLED", *CHECKS, "-q", "--json", "r.json"])

    (crash,) = (row for row in json.loads((file / "r.json").read_text())["results"] if row["status"] == "error")
    assert 1 == code
    assert "seven" == crash["sample"]
    assert "Fatal Python error: Segmentation fault" in crash["message"]
    assert re.search(r"worker_ops.py:\d+ killed_on_seven", crash["message"])


def test_a_crash_without_another_process_prints_the_stack(file):
    program = [sys.executable, "-m", "custom_autograd", "check", "worker_ops.py:KILLED", *CHECKS, "-q", "-j", "0"]
    finished = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)

    assert -signal.SIGSEGV == finished.returncode
    assert "Fatal Python error: Segmentation fault" in finished.stderr
    assert "in killed_on_seven" in finished.stderr


SEVERAL = """
import os

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("several::leave", reference=True)
def leave(x: Tensor) -> Tensor:
    if x.shape[0] == 7:
        os._exit(3)
    return x * 2


@custom_op("several::stay", reference=True)
def stay(x: Tensor) -> Tensor:
    return x * 2


@leave.register_samples
@stay.register_samples
def samples(make):
    yield Sample(make(7))
"""


def test_the_command_that_reproduces_a_crash_names_one_op_of_a_file_with_several(imports_of, capsys):
    (imports_of / "several_ops.py").write_text(SEVERAL)
    main(["check", "several_ops.py", "--checks", "determinism"])

    out = capsys.readouterr().out
    assert "to reproduce: custom-autograd check several_ops.py:leave\n" in out


def test_the_command_that_reproduces_a_crash_has_its_options():
    task = Task("ops.py:op", 0, "ns::op", ("vmap", "fake"), "cuda", "float64", 7)

    assert "custom-autograd check ops.py:op --checks vmap --dtype float64 --device cuda --seed 7" == _command(
        task, Progress("vmap", "T01", "transforms", "three")
    )
