"""The result of a process that ended before its time: how, where, with which call, and what to run to see it again."""

import signal

from expecttest import assert_expected_inline

from custom_autograd.kernels.compilers import end_of
from custom_autograd.verification.processes.running import CHECKS, Crash, Progress, frames_of

PLACE = Progress("symbolic", "C02", "metadata", "sample 0: (float32[4])")


def test_the_signal_is_named():
    named = [end_of(code) for code in (-signal.SIGSEGV, -signal.SIGKILL, -63, 1, None)]

    assert [
        "was ended by SIGSEGV, a segmentation fault",
        "was ended by SIGKILL, which the system sends where memory runs out",
        "was ended by signal 63",
        "ended by itself, with exit code 1",
        "ended early; how is not known, since this program ignores SIGCHLD or waits for every child elsewhere",
    ] == named


def test_a_result_has_everything_that_is_known():
    frames = ('File "/home/a/ops.py", line 3 in f', f'File "{CHECKS}/fake.py", line 9 in run')
    trace = "\n".join(["Fatal Python error: Aborted", "", *frames])
    crash = Crash("ns::f", PLACE, -signal.SIGABRT, 7, trace, "Sample(float32[12])", "custom-autograd check ops.py:f")
    result = crash.result()

    assert ("ns::f", "symbolic", "sample 0: (float32[4])", "error", "C02", 7, "metadata") == (
        result.op, result.check, result.sample, result.status, result.code, result.seed, result.group
    )  # fmt: skip
    assert_expected_inline(
        result.message,
        """\
the process was ended by SIGABRT, which a failed assertion in native code raises; the checks that follow were not run
last call: Sample(float32[12])
to reproduce: custom-autograd check ops.py:f
Fatal Python error: Aborted
  ops.py:3 f
  fake.py:9 run""",
    )


def test_a_crash_that_does_not_happen_again_says_so():
    message = Crash("ns::f", PLACE, -signal.SIGSEGV, call=None).result().message

    assert "it does not end when this check runs alone: an earlier one may have damaged its memory" in message


def test_frames_end_at_the_check():
    lines = [f'  File "{CHECKS}/bounds.py", line 44 in run', '  File "/x/runner.py", line 1 in main']

    assert ["  bounds.py:44 run"] == frames_of("\n".join(lines))
