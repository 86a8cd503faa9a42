"""The run on a GPU: its plan, its budgets, and what it keeps when a stage crashes or hangs."""

import argparse
import importlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from python_server import run_python
from slow_cases import nightly_but

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.py"


@pytest.fixture
def stage_modules(monkeypatch):
    """Import the modules of the stages for one test, under their names there."""
    folders = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "gpu_stages"), str(ROOT / "examples" / "gallery")]
    monkeypatch.setattr(sys, "path", [*folders, *sys.path])
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(tuple(folders)):
            del sys.modules[name]


def job(modules, name, code, seconds=60.0):
    return modules("processes").Job(name, [sys.executable, "-S", "-c", code], seconds, {})


def run(modules, jobs, *, at_once=1, seconds=60.0):
    found = modules("processes").run_all(jobs, at_once=at_once, until=time.time() + seconds)
    return {ended.job.name: ended for ended in found}


def test_a_crash_is_recorded_and_the_next_job_runs(stage_modules):
    crash = "import os, signal; print('here', flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
    ended = run(stage_modules, [job(stage_modules, "crash", crash), job(stage_modules, "next", "print(1)")])

    assert "ended by SIGSEGV" == ended["crash"].how
    assert ["here"] == ended["crash"].last_lines()
    assert "ok" == ended["next"].how


def test_a_job_that_hangs_is_stopped_with_its_children(stage_modules, tmp_path):
    child = f"import time; time.sleep(2); open({str(tmp_path / 'late')!r}, 'w')"
    hang = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {child!r}])"
    ended = run(stage_modules, [job(stage_modules, "hang", hang, 0.5)])
    time.sleep(2)  # as long as the child would have taken

    assert ended["hang"].how.startswith("stopped after")
    assert not (tmp_path / "late").exists()


def test_no_job_begins_after_the_deadline(stage_modules):
    jobs = [job(stage_modules, name, "import time; time.sleep(30)") for name in ("first", "second")]
    ended = run(stage_modules, jobs, seconds=0.5)

    assert {"first"} == ended.keys()
    assert ended["first"].seconds < 20


def test_a_stage_that_is_stopped_ends_its_own_jobs(stage_modules, tmp_path):
    """They are in other process groups."""
    slow = f"import time; time.sleep(3); open({str(tmp_path / 'late')!r}, 'w')"
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOT / "benchmarks" / "gpu_stages")!r})
from processes import Job, end_jobs_on_sigterm, run_all
end_jobs_on_sigterm()
print("begun", flush=True)
for _ in run_all([Job("slow", [sys.executable, "-S", "-c", {slow!r}], 60, {{}})], at_once=1, until=time.time() + 60):
    pass
"""
    ended = run(stage_modules, [job(stage_modules, "stage", code, 1.5)])
    time.sleep(3)

    assert ["begun"] == ended["stage"].last_lines()
    assert 128 + signal.SIGTERM == ended["stage"].status or ended["stage"].status is None
    assert not (tmp_path / "late").exists()


def test_what_was_planned_and_has_no_result_is_reported(stage_modules):
    lines = [
        {"stage": "gallery", "planned": ["a: op: forward", "b: op: forward", "c: op: forward", "d: op: forward"]},
        {"stage": "gallery", "name": "a: op: forward", "case": "a", "mode": "forward", "microseconds": 1.0},
        {"stage": "gallery", "name": "b: op: first call", "problem": "it raised"},
        {"stage": "gallery", "name": "c: measuring", "problem": "out of memory"},
    ]
    assert {"gallery": ["d: op: forward"]} == stage_modules("report").unreached(lines)


def test_the_report_says_which_figures_reach_their_targets(stage_modules):
    norm = {"stage": "gallery", "family": "norm", "mode": "forward", "callable": "op", "case": "x"}
    lines = [
        {**norm, "name": "1", "microseconds": 1.0, "of a copy": 0.9},
        {**norm, "name": "2", "microseconds": 1.0, "of a copy": 0.5},
        {"stage": "calls", "name": "cuda: by name | forward", "/ torch.mul": 1.05, "microseconds": 1.0},
    ]
    text = stage_modules("report").report(lines)

    assert "| norm, forward, of a copy | >= 0.85 | 0.5 .. 0.9 | MISSED by 1 of 2 |" in text
    assert "| by name / torch.mul, forward | <= 1.1 | 1.05 .. 1.05 | holds |" in text
    assert "| drop-in / torch.mul, forward | <= 1.1 |  | not measured |" in text


def test_the_report_of_a_rehearsal_of_some_stages(stage_modules):
    text = stage_modules("report").report([{"stage": "run", "device": "cpu", "stages": ["calls"]}])

    assert text.startswith("# What a rehearsal on cpu found\n")
    assert "| drop-in / torch.mul, forward | <= 1.1 |  | not measured |" in text
    assert "of a copy" not in text
    assert stage_modules("report").report([]).startswith("# What a run on a GPU found\n")


def test_results_that_are_cut_off_are_read(stage_modules, tmp_path):
    stage = stage_modules("stage")
    stage.append(tmp_path, {"stage": "s", "name": "whole"})
    with (tmp_path / stage.RESULTS).open("a") as file:
        file.write('{"stage": "s", "na')

    assert [{"stage": "s", "name": "whole"}] == stage.read(tmp_path)


def test_shares_of_the_plan_are_the_whole_time(stage_modules):
    plan = stage_modules("plan")
    assert pytest.approx(1) == sum(wave.share for wave in plan.PLAN)
    assert [("calls",)] == [tuple(stage.name for stage in wave.stages) for wave in plan.chosen(["calls"])]


def test_an_unknown_stage_is_refused(stage_modules):
    with pytest.raises(ValueError, match="there is no stage speed; there are trial, exported, tests, checks, calls"):
        stage_modules("plan").chosen(["speed"])


def test_files_of_tests_that_cannot_be_imported_are_named(stage_modules):
    suite = stage_modules("suite")
    found = suite.imported_by("import torch\nfrom expecttest import x\nfrom .near import y\ndef f(): import late")

    assert {"torch", "expecttest"} == found
    assert not suite.is_there("no_such_package")
    assert suite.is_there("gallery_values")


def doubling(modules):
    """Return an op whose kernel has four candidates: the second is right too, the third wrong, and the fourth fails."""
    launch = modules("launch_choices").Launch
    candidates = [launch((size,), 4, 1) for size in (2, 2, 3, 4)]

    def double(x):
        (factor,), _, _ = modules("launch_choices").launch_of("doubling", candidates)
        if factor == 4:
            raise RuntimeError("out of resources")
        return factor * x

    return double


def case_of(modules, op, reference):
    case = modules("gpu_case").GpuCase
    return case("doubled", op, reference, lambda device: (torch.ones(4, device=device, requires_grad=True),))


def test_candidates_that_are_wrong_or_fail_are_no_choice(stage_modules, tmp_path):
    tuning, stage = stage_modules("tuning"), stage_modules("stage")
    case = case_of(stage_modules, doubling(stage_modules), lambda x: x + x)
    this = stage.Stage("tune", "cpu", tmp_path, time.time() + 60, True)
    kernels = tuning.build_candidates(case, "cpu", ())
    tuning.tune(case, kernels, this)
    lines = stage.read(tmp_path)

    assert ["doubling"] == list(kernels)
    assert [True, False, False, False] == [line["is default"] for line in lines]
    assert [True, True, False, False] == ["forward" in line and "backward" in line for line in lines]
    assert "ValueError: relative error 0.5, where 0.0001 is allowed" == lines[2]["problem"]
    assert "RuntimeError: out of resources" == lines[3]["problem"]
    assert {} == stage_modules("launch_choices").FORCED
    assert {} == tuning.build_candidates(case, "cpu", {"doubling"})


def test_values_are_compared_in_higher_precision(stage_modules):
    gpu_case = stage_modules("gpu_case")
    case = case_of(stage_modules, torch.sin, torch.sin)
    exact = gpu_case.exact_values(case, "cpu")

    torch.manual_seed(1)
    cotangent = torch.randn(4).bfloat16().double()
    assert torch.equal(torch.ones(4).double().cos() * cotangent, exact[1][0])
    assert [torch.float64, torch.float64] == [tensor.dtype for part in exact for tensor in part]
    assert all(error < 1e-6 for error in gpu_case.errors(case, torch.sin, "cpu", exact))
    with pytest.raises(ValueError, match=r"relative error nan, where 0.0001 is allowed"):
        gpu_case.errors(case, lambda x: x.sin() / 0 * 0, "cpu", exact)


def test_the_plan_is_listed_without_torch(tmp_path):
    found = subprocess.run([sys.executable, "-S", SCRIPT, "--list", "--minutes", "4"], capture_output=True, text=True)

    assert (0, "") == (found.returncode, found.stderr)
    assert "  4  gallery     79 s  how fast the gallery is on layers of real models\n" in found.stdout


@pytest.mark.parametrize(("minutes", "limit"), [(4.0, "4 minutes"), (1.0, "1 minute"), (0.5, "0.5 minutes")])
def test_the_plan_names_its_limit(stage_modules, minutes, limit):
    assert stage_modules("gpu").listed((), minutes).startswith(f"{limit} at most; ")


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_in_which_nothing_can_run_is_refused(minutes, tmp_path):
    command = [sys.executable, SCRIPT, "--device", "cpu", "--minutes", minutes, "--out", tmp_path]
    found = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 2 == found.returncode
    assert f"a time is more than 0 minutes, such as 8 or 0.5, not '{minutes}'" in found.stderr
    assert [] == list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    found = run_python(SCRIPT, "--device", "cpu", "--out", tmp_path / "file")

    assert 2 == found.returncode
    assert "the results cannot be written, choose another --out: " in found.stderr


def test_stages_for_which_no_time_is_left_are_reported(tmp_path):
    found = run_python(SCRIPT, "--device", "cpu", "--minutes", "1e-9", "--stages", "calls", "--out", tmp_path)

    assert 1 == found.returncode
    assert "- calls: 1: what a call costs on tensors of the device, and on the CPU\n" in found.stdout
    assert "Everything that was planned has a result." not in found.stdout


def test_a_run_that_is_stopped_has_a_report(stage_modules, tmp_path, monkeypatch, capsys):
    gpu = stage_modules("gpu")

    def stopped(jobs, *, at_once, until):
        gpu.append(tmp_path, {"stage": "calls", "planned": ["a call"]})
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "run_all", stopped)
    options = argparse.Namespace(device="cpu", minutes=1.0)

    assert 1 == gpu.run(stage_modules("plan").chosen(["calls"]), options, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# What a rehearsal on cpu found\n")
    assert "- calls: 1: a call\n" in text
    assert "of a copy" not in text
    assert capsys.readouterr().out.startswith("stopped by Ctrl-C: the report has what was there\n")


def test_a_run_without_a_gpu_says_so():
    found = run_python(SCRIPT)

    assert 2 == found.returncode
    assert "torch sees no GPU; --device cpu rehearses the run without one" in found.stderr


STAGES = ["trial", "tests", "checks", "exported", "calls", "gallery", "tune"]


@pytest.mark.parametrize("name", nightly_but({"trial", "tests", "calls", "tune"}.__contains__, STAGES))
def test_each_stage_is_rehearsed_on_a_cpu(name, tmp_path):
    command = [sys.executable, SCRIPT, "--device", "cpu", "--minutes", "9", "--stages", name, "--out", tmp_path]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    folder = tmp_path / "gpu-cpu"
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    bad = [line for line in lines if "problem" in line and not is_expected(line["problem"])]
    bad += [line for line in lines if line.get("how", "ok") not in ("ok", "left out")]
    left_out = {line["name"] for line in lines if line.get("how") == "left out"}

    assert left_out == LEFT_OUT.get(name, set())
    assert (0, []) == (found.returncode, bad), found.stdout
    assert [name] == [line["stage"] for line in lines if "ended" in line]
    assert "Everything that was planned has a result." in (folder / "report.md").read_text()


LEFT_OUT = {
    "trial": {"Triton kernel", "CUDA C++ kernel", "exception of a CUDA C++ kernel"},
    "exported": {"CUDA C++ kernel"},
}
"""What a rehearsal on the CPU cannot do, by stage."""


def is_expected(problem):
    """Return True if a CPU or an absent package explains it."""
    return any(text in problem for text in ("No module named", "No viable backend"))
