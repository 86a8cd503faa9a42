"""Run PyTorch's database of custom ops and nested transforms: python benchmarks/torch_versions.py.

Each cell compares by value, with the installed torch: for `torch.library.custom_op`, for `torch.autograd.Function`
(nestings only) and for `custom_autograd.custom_op`. Writes benchmarks/results/torch-versions/<Python>/<torch>.json, and
the tables of docs/explanation/torch-versions.md from all such files. `make versions TORCH=2.12.1` takes another torch.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import custom_autograd

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from recorded_runs import put_between, read_recorded, table, version_of  # noqa: E402 - beside this file

import custom_op_database  # noqa: E402 - from tests/, found by the line above
import nestings  # noqa: E402 - as above

RESULTS = ROOT / "benchmarks" / "results" / "torch-versions"
DOCUMENT = ROOT / "docs" / "explanation" / "torch-versions.md"
BEGIN, END = "<!-- tables: benchmarks/torch_versions.py -->", "<!-- end of tables -->"
DECLARERS: dict[str, Callable[..., Any]] = {
    "torch.library": torch.library.custom_op,
    "custom_autograd": custom_autograd.custom_op,
}
Op = Callable[[Tensor], Tensor]
Outcome = dict[str, Any]  # Any: "held", "all" and "failed" of one declarer
ByPython = dict[str, dict[str, dict[str, Any]]]  # Any: what `measure` returns; by "3.11", then by "2.13.0"
PYTHON, OURS = "3.11", "custom_autograd"


class FunctionCube(torch.autograd.Function):
    """x^3 with every rule that a Function can have."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return x^3."""
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # Any: torch types no ctx
        """Save x for both directions."""
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return 3 x^2 times the gradient."""
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        """Return 3 x^2 times the tangent."""
        (x,) = ctx.saved_tensors
        return 3 * x**2 * tangent


def library_cube() -> Op:
    """Return x^3 declared with `torch.library.custom_op`, with every rule that it takes."""

    @torch.library.custom_op("versions::cube", mutates_args=())
    def cube(x: Tensor) -> Tensor:
        return x**3

    cube.register_fake(torch.empty_like)
    cube.register_autograd(
        lambda ctx, grad: 3 * ctx.saved_tensors[0] ** 2 * grad,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    cube.register_vmap(lambda info, in_dims, x: (cube(x), in_dims[0]))
    return cube


def our_cube() -> Op:
    """Return x^3 declared with `custom_autograd.custom_op`, with a backward and nothing else."""

    @custom_autograd.custom_op("versions_here::cube")
    def cube(x: Tensor) -> Tensor:
        return x**3

    cube.register_fake(torch.empty_like)

    @cube.register_backward
    def _(grad: Tensor, x: Tensor) -> Tensor:
        return 3 * x**2 * grad

    return cube


def holds(run: Callable[[], object]) -> bool:
    """Return whether a cell runs to its end; a wrong value raises as anything else does."""
    try:
        run()
    except Exception:  # noqa: BLE001 - whatever a cell raises, it does not hold
        return False
    return True


def database(custom_op: Callable[..., Any], namespace: str) -> Outcome:
    """Return which cells of the database hold."""
    ops = custom_op_database.load(custom_op, namespace)
    cells = custom_op_database.cells(ops)
    return outcome((f"{op}, {name}", partial(custom_op_database.run, ops[op], name)) for op, name in cells)


def nested(op: Op) -> Outcome:
    """Return which nestings hold."""
    return outcome((name, partial(compare, name, op)) for name in nestings.NESTINGS)


def compare(nesting: str, op: Op) -> None:
    """Raise if a nesting gives another second derivative than it should."""
    torch.testing.assert_close(nestings.second_derivative(nesting, op), nestings.EXPECTED)


def outcome(cells: Iterable[tuple[str, Callable[[], object]]]) -> Outcome:
    """Run cells, and return how many of them hold and the names of the others."""
    found = {name: holds(run) for name, run in cells}
    failed = [name for name, held in found.items() if not held]
    return {"held": len(found) - len(failed), "all": len(found), "failed": failed}


def measure() -> dict[str, Any]:
    """Return what holds with the installed torch."""
    cubes: dict[str, Op] = {
        "plain operations": lambda x: x**3,
        "torch.library": library_cube(),
        "torch.autograd.Function": FunctionCube.apply,
        "custom_autograd": our_cube(),
    }
    return {
        "torch": version_of(torch.__version__),
        "python": platform.python_version(),
        "database": {name: database(declare, f"versions_{name[:5]}") for name, declare in DECLARERS.items()},
        "nestings": {name: nested(op) for name, op in cubes.items()},
    }


def write_tables() -> None:
    """Write the tables of the page from every recorded version."""
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(put_between(text, BEGIN, END, tables(by_python())), encoding="utf-8")


def by_python() -> ByPython:
    """Return the recorded runs by Python, and those by torch, the newest torch first."""
    folders = sorted(RESULTS.iterdir(), key=lambda folder: [int(part) for part in folder.name.split(".")])
    return {folder.name: {run["torch"]: run for run in read_recorded(folder)} for folder in folders}


def tables(recorded: ByPython) -> str:
    """Return both tables in Markdown, with a row per torch."""
    return "\n\n".join([
        titled_table("The database of custom ops", "database", recorded),
        titled_table("Nested transforms", "nestings", recorded),
    ])  # fmt: skip


def titled_table(title: str, key: str, recorded: ByPython) -> str:
    """Return one table in Markdown: others on `PYTHON`, and ops of this package with a column per Python."""
    runs = recorded[PYTHON]
    others = [name for name in next(iter(runs.values()))[key] if name != OURS]
    heads = [f"`{name}`" if "." in name or "_" in name else name for name in others]
    heads += [f"`{OURS}`, Python {python}" for python in recorded]
    rows = []
    for version, run in runs.items():
        ours = [its[version][key][OURS] if version in its else None for its in recorded.values()]
        rows.append([version, *(_counted(found) for found in [*(run[key][name] for name in others), *ours])])
    return f"**{title}**\n\n{table(['torch', *heads], rows)}"


def _counted(found: Outcome | None) -> str:
    return "not measured" if found is None else f"{found['held']} of {found['all']}"


def main() -> None:
    """Measure, record, and write the page."""
    parser = argparse.ArgumentParser(description="What holds with the installed torch.")
    parser.add_argument("--tables", action="store_true", help="only write the tables, from what was recorded")
    if not parser.parse_args().tables:
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)  # Dynamo reports what it cannot trace, which is counted here
        found = measure()
        path = RESULTS / found["python"].rpartition(".")[0] / f"{found['torch']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{path.relative_to(ROOT)} written")
    write_tables()


if __name__ == "__main__":
    main()
