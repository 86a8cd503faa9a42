"""Which tool notices which planted fault: python benchmarks/catches.py [--ours named|all|none] [--jobs N].

Runs torch.autograd.gradcheck, its fast mode, gradgradcheck, torch.library.opcheck and `check` over the corpus of
tests/corpus, records the outcomes of the installed torch in benchmarks/results/catches/, and writes
docs/explanation/what-catches-what.md from all that is recorded there.
Every target has a process of its own. "caught" means that the tool raised its own failure; anything else that it
raised is a crash, and is listed as one.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import json
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from torch.testing._internal.optests.generate_tests import OpCheckError  # noqa: PLC2701 - the class has no public name

sys.path.insert(0, str(Path(__file__).parent))  # recorded_runs, where this file is imported
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the corpus

from recorded_runs import read_recorded, version_of

from corpus import CORRECT, MUTANTS, Honest, Mutant
from custom_autograd.benchmarking.machine import describe_machine
from custom_autograd.schema.samples import Sample, TensorFactory
from custom_autograd.verification.check import all_checks, check
from custom_autograd.verification.harness.base import NothingToCheckError, first_line
from custom_autograd.verification.harness.differentiable import TensorFunction, function_of
from custom_autograd.verification.harness.targets import Target, target_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "catches"
DOCUMENT = ROOT / "docs" / "explanation" / "what-catches-what.md"
SECONDS = 60
LARGEST = 1000
Outcome = dict[str, str]  # "status" (caught, passed, crashed, not applicable) and "message"
Op = Mutant | Honest


def small_function_of(target: Target, sample: Sample) -> TensorFunction:
    """The function of a sample, unless its Jacobian takes minutes and gigabytes."""
    function = function_of(target, sample)
    size = sum(value.numel() for value in function.inputs)
    if size > LARGEST:
        raise NothingToCheckError(f"a full Jacobian of {size} inputs takes minutes")
    return function


def by_gradcheck(target: Target, sample: Sample) -> None:
    """Every input in float64, at torch's tolerances."""
    function = small_function_of(target, sample)
    gradcheck(function, function.inputs)


def by_fast_gradcheck(target: Target, sample: Sample) -> None:
    """One random projection of the Jacobian."""
    function = function_of(target, sample)
    gradcheck(function, function.inputs, fast_mode=True)


def by_gradgradcheck(target: Target, sample: Sample) -> None:
    """The gradient of the gradient; it also notices some wrong gradients."""
    function = small_function_of(target, sample)
    gradgradcheck(function, function.inputs)


def by_opcheck(target: Target, sample: Sample) -> None:
    """All five tests."""
    if target.overload is None:
        raise NothingToCheckError("opcheck needs an op of the dispatcher")
    call = target.to_dispatcher(sample)
    torch.library.opcheck(target.overload, call.args, call.kwargs)


PEERS: dict[str, tuple[Callable[[Target, Sample], None], type[Exception]]] = {
    "gradcheck": (by_gradcheck, GradcheckError),
    "gradcheck, fast": (by_fast_gradcheck, GradcheckError),
    "gradgradcheck": (by_gradgradcheck, GradcheckError),
    "opcheck": (by_opcheck, OpCheckError),
}
OURS = "check"


def run_peer(name: str, op: Op) -> Outcome:
    """The worst that a tool says over the samples of an op."""
    run, failure = PEERS[name]
    target = target_of(op.make())
    samples = [sample for sample in op.samples(TensorFactory()) if sample.error is None]
    return worst([outcome_of(run, failure, target, sample) for sample in samples])


def outcome_of(
    run: Callable[[Target, Sample], None], failure: type[Exception], target: Target, sample: Sample
) -> Outcome:
    """What a tool says of one sample."""
    torch.manual_seed(0)
    try:
        run(target, sample)
    except NothingToCheckError as reason:
        return {"status": "not applicable", "message": str(reason)}
    except failure as error:
        return {"status": "caught", "message": first_line(error)}
    except Exception as error:  # noqa: BLE001 - a crash is a result
        return {"status": "crashed", "message": first_line(error)}
    return {"status": "passed", "message": ""}


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Caught, else crashed, else passed, else not applicable."""
    order = ("caught", "crashed", "passed", "not applicable")
    nothing = {"status": "not applicable", "message": "there is no sample"}
    return min(outcomes, key=lambda outcome: order.index(outcome["status"]), default=nothing)


def run_ours(op: Op, extent: str) -> Outcome:
    """`check` with the named check, or with all of them."""
    named = op.check if isinstance(op, Mutant) and extent == "named" else None
    if named is not None and named not in {row.name for row in all_checks()}:
        return {"status": "not applicable", "message": f"there is no check '{named}'"}
    report = check(op.make(), op.samples, checks=None if named is None else [named])
    failures = [row for row in report.results if row.status == "failed"]
    errors = [row for row in report.results if row.status == "error"]
    if failures:
        return {"status": "caught", "message": f"{failures[0].check}: {failures[0].message.splitlines()[0]}"}
    if errors:
        return {"status": "crashed", "message": f"{errors[0].check}: {errors[0].message.splitlines()[0]}"}
    return {"status": "passed", "message": ""}


def work(name: str, columns: list[str], extent: str, sender: Connection) -> None:
    """One op in this process; each outcome is sent as it comes, so that a crash of the process loses no other."""
    torch.set_num_threads(1)
    (op,) = (row for row in (*MUTANTS, *CORRECT) if row.name == name)
    for column in columns:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                outcome = run_ours(op, extent) if column == OURS else run_peer(column, op)
            except Exception as error:  # noqa: BLE001 - samples or a declaration that raise are a crash as well
                outcome = {"status": "crashed", "message": first_line(error)}
        sender.send((column, outcome))
    sender.close()


def run_isolated(name: str, columns: list[str], extent: str) -> dict[str, Outcome]:
    """The outcomes of one op by column; what its process did not live to say is a crash."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(name, columns, extent, sender))
    process.start()
    sender.close()
    outcomes = dict(received(receiver))
    process.join(timeout=1)
    if process.is_alive():
        process.kill()
    for column in columns:
        outcomes.setdefault(column, {"status": "crashed", "message": f"the process ended, or took over {SECONDS} s"})
    return outcomes


def received(receiver: Connection) -> Iterator[tuple[str, Outcome]]:
    """What comes until the end, or until nothing comes for too long."""
    with contextlib.suppress(EOFError):
        while receiver.poll(SECONDS):
            yield receiver.recv()


def rows_of(columns: list[str], extent: str, jobs: int) -> list[dict[str, Any]]:
    """One row per op, mutants first."""
    ops: tuple[Op, ...] = (*MUTANTS, *CORRECT)
    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(lambda op: run_isolated(op.name, columns, extent), ops))
    return [
        {
            "name": op.name,
            "family": getattr(op, "family", "honest"),
            "purpose": op.purpose,
            "check": getattr(op, "check", ""),
            "outcomes": outcome,
        }
        for op, outcome in zip(ops, outcomes, strict=True)
    ]


def document_of(recorded: list[dict[str, Any]]) -> str:
    """Return the page: the counts with each torch, and every row with the newest."""
    newest = recorded[0]
    mutants = [row for row in newest["rows"] if row["family"] != "honest"]
    honest = [row for row in newest["rows"] if row["family"] == "honest"]
    columns = _columns(newest)
    lines = [
        "# What catches what",
        "",
        "This page is generated by `python benchmarks/catches.py`.",
        f"{len(mutants)} faults are planted into honest ops (`tests/corpus`).",
        "Every tool gets the samples of each, in float64 where it takes finite differences.",
        f"`check` runs {EXTENTS[newest['ours']]}.",
        "A tool catches a fault if it raises its own failure.",
        "A crash is any other exception: it stops, but it does not say that the op is wrong.",
    ]
    for result in recorded:
        lines += ["", f"PyTorch {version_of(result['torch'])}:", "", *counts_of(result)]
    lines += ["", "## Every fault", "", f"With PyTorch {version_of(newest['torch'])}."]
    lines += ["A tool that passes has missed the fault; – says that it does not apply.", ""]
    lines.append(f"| what is wrong, and the name of the fault | {' | '.join(columns)} |")
    lines.append("|---|" + "---|" * len(columns))
    for row in mutants:
        marks = " | ".join(MARKS[row["outcomes"][column]["status"]] for column in columns)
        lines.append(f"| {row['purpose']}<br>`{row['name']}` | {marks} |")
    lines += ["", "## Failures and crashes on honest ops", "", "| op | tool | what it says |", "|---|---|---|"]
    for row in honest:
        for column in columns:
            outcome = row["outcomes"][column]
            if outcome["status"] in ("caught", "crashed"):
                message = outcome["message"].replace("|", "\\|")[:160]
                lines.append(f"| `{row['name']}` | {column} | {message} |")
    return "\n".join(lines) + "\n"


def counts_of(result: dict[str, Any]) -> list[str]:
    """Return the lines of the table that counts, by tool, what was caught, and what was raised against honest ops."""
    mutants = [row for row in result["rows"] if row["family"] != "honest"]
    honest = [row for row in result["rows"] if row["family"] == "honest"]
    lines = [
        "| tool | caught | crashed | passed | not applicable | honest ops failed | honest ops crashed |",
        "|---|---|---|---|---|---|---|",
    ]
    for column in _columns(result):
        found = collections.Counter(row["outcomes"][column]["status"] for row in mutants)
        false = collections.Counter(row["outcomes"][column]["status"] for row in honest)
        numbers = [found[status] for status in ("caught", "crashed", "passed", "not applicable")]
        lines.append(f"| {column} | {' | '.join(map(str, numbers))} | {false['caught']} | {false['crashed']} |")
    return lines


def _columns(result: dict[str, Any]) -> list[str]:
    return [OURS, *(column for column in result["columns"] if column != OURS)]  # what the page is about comes first


MARKS = {"caught": "caught", "crashed": "crash", "passed": "missed", "not applicable": "–"}
EXTENTS = {"named": "the one check that each fault names, and all checks on honest ops", "all": "all checks"}


def main() -> None:
    """Run, record, write the page, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", choices=["named", "all"], default="all", help="which checks `check` runs")
    parser.add_argument("--jobs", type=int, default=1, help="how many targets at once")
    arguments = parser.parse_args()
    columns = [*PEERS, OURS]
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "torch": torch.__version__,
        "machine": describe_machine(),
        "ours": arguments.ours,
        "columns": columns,
        "rows": rows_of(columns, arguments.ours, arguments.jobs),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{version_of(torch.__version__)}.json").write_text(
        json.dumps(result, indent=1) + "\n", encoding="utf-8"
    )
    DOCUMENT.write_text(document_of(read_recorded(RESULTS)), encoding="utf-8")
    print("\n".join(counts_of(result)))


if __name__ == "__main__":
    main()
