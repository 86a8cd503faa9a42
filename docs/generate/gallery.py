"""Generate the pages of the gallery: one for each file of examples/gallery that declares ops, and a card for each."""

from __future__ import annotations

import ast
import html
import re
from dataclasses import dataclass
from pathlib import Path

from custom_autograd import CustomOp, Report
from custom_autograd.verification.harness.op_files import load
from generate import measurements, verification
from generate.markup import block, cell, escape, folded, paragraphs, prose, table, without_links

LANGUAGES = {".py": "python", ".cpp": "cpp", ".cu": "cuda", ".h": "cpp", ".cuh": "cuda"}
NAMES = {".cpp": "C++", ".cu": "CUDA C++", ".h": "C++ header", ".cuh": "CUDA C++ header"}
FILE = re.compile(r"\w+\.(cpp|cu|h|cuh)")


@dataclass(frozen=True, slots=True)
class Example:
    """One file of the gallery: its ops, and its row in the table of examples/README.md."""

    path: Path
    ops: tuple[CustomOp, ...]
    teaches: str
    kernels: str

    @property
    def name(self) -> str:
        """Return the name of the page."""
        return self.path.stem

    @property
    def docstring(self) -> str:
        """Return the docstring of the file: its purpose, formula, shapes and sources."""
        return ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or ""

    @property
    def sources(self) -> list[Path]:
        """Return the files that are needed to copy the example, its own first."""
        found = [self.path]
        for file in found:  # it grows while it is read
            found += [other for other in _needed(file) if other not in found]
        return sorted(found, key=lambda file: (file != self.path, file.stem != self.name, file.suffix, file.name))


def examples(root: Path) -> list[Example]:
    """Return every file of the gallery that declares ops, in the order of the table, then by name."""
    rows = _rows(root / "examples" / "README.md")
    files = [file for file in sorted((root / "examples" / "gallery").glob("*.py")) if "custom_op(" in file.read_text()]
    order = list(rows)
    files.sort(key=lambda file: (order.index(file.stem) if file.stem in rows else len(order), file.stem))
    return [Example(file, _ops(file), *rows.get(file.stem, ("", ""))) for file in files]


def pages(root: Path, report: Report | None) -> dict[str, str]:
    """Return the Markdown of each page by its path below docs/."""
    found = examples(root)
    written = {f"gallery/{example.name}.md": _page(root, example, report) for example in found}
    return {"gallery/index.md": _index(found, report), **written}


def _rows(readme: Path) -> dict[str, tuple[str, str]]:
    """Return the columns of the table of examples for each file: what it teaches, and its kernels."""
    rows = {}
    for line in readme.read_text(encoding="utf-8").splitlines():
        columns = [column.strip() for column in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        linked = re.search(r"\]\(gallery/([\w/]+)\.py\)", columns[0])
        if linked and len(columns) >= 3:
            rows[linked[1]] = (without_links(columns[1]), without_links(columns[2]))
    return rows


def _needed(file: Path) -> list[Path]:
    """Return the files of the same folder that a Python file imports or names, and its sources in other languages."""
    if file.suffix != ".py":
        return []
    named = [file.with_suffix(suffix).name for suffix in NAMES]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named += [f"{alias.name}.py" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            named.append(f"{node.module}.py")
        elif isinstance(node, ast.Constant) and FILE.fullmatch(str(node.value)):
            named.append(node.value)
    beside = [file.with_name(name) for name in dict.fromkeys(named)]
    return [path for path in beside if path.is_file()]


def _ops(file: Path) -> tuple[CustomOp, ...]:
    """Return the ops that a file declares, without those that it imports; the op with the file's name is first."""
    found = [loaded.value for loaded in load(str(file)) if isinstance(loaded.value, CustomOp)]
    own = [op for op in found if file.stem in (op.__wrapped__.__module__ or "").split(".")] or found
    return tuple(sorted(own, key=lambda op: op.name.partition("::")[2] != file.stem))


def _page(root: Path, example: Example, report: Report | None) -> str:
    first, *rest = paragraphs(example.docstring)
    parts = [f"# {example.name}", first, *rest]
    if example.teaches:
        parts += ["## What it teaches", f"{example.teaches[:1].upper()}{example.teaches[1:]}."]
    names = ", ".join(f"`{file.name}`" for file in example.sources)
    parts += ["## The code", f"Files to copy: {names}.", *_code(root, example)]
    for op in example.ops:
        parts += _op(op, verification.results_of(report, op.name))
    folder = root / "benchmarks" / "results" / "gallery"
    parts.append(measurements.section(folder, example.name))
    return "\n\n".join(part for part in parts if part) + "\n"


def _code(root: Path, example: Example) -> list[str]:
    """Return every source file, with the Python file open and the others folded."""
    parts = []
    for file in example.sources:
        text = file.read_text(encoding="utf-8")
        shown = file.relative_to(root).as_posix()
        if file.suffix == ".py" and file == example.path:
            parts += [f"`{shown}`:", block(text, "python")]
        else:
            number = len(text.splitlines())
            title = f"{NAMES.get(file.suffix, 'Python')}: {shown}, {number} lines"
            parts.append(folded(title, block(text, LANGUAGES[file.suffix])))
    return parts


def _op(op: CustomOp, results: list[verification.Result]) -> list[str]:
    coverage = [[f"`{name}`", cell(escape(text))] for name, text in op.capabilities().items()]
    kernels = [[f"`{device}`", cell(escape(_kernel(text)))] for device, text in op.kernels.items()]
    return [
        f"## {escape(op.name)}",
        block(f"{op.name}{op.schema.text}"),
        prose((op.__doc__ or "").strip().split("\n\n")[0]),
        "**Where each capability comes from**",
        table(("capability", "source"), coverage),
        "**Kernels**" if kernels else "",
        table(("device", "kernel"), kernels) if kernels else "",
        f"**Verified by `custom-autograd check`**: {verification.verdict(results)}.",
        verification.findings(results),
        folded("Every check, with the reason if it was skipped", verification.matrix(results)),
        folded("The generated Python code", block(op.source, "python")),
    ]


def _kernel(value: object) -> str:
    """Return the locations of the kernels of a device type."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_kernel(place)}" for name, place in value.items())
    return ", ".join(map(_kernel, value)) if isinstance(value, list | tuple) else str(value)


def _index(found: list[Example], report: Report | None) -> str:
    number = sum(len(example.ops) for example in found)
    names = "\n".join(example.name for example in found)
    return (
        "\n\n".join(
            [
                "# The gallery",
                f"Complete ops to copy: {len(found)} files with {number} ops, each with rules and samples, "
                "and with kernels if PyTorch's own operations are not fast enough.\n"
                "Each page is generated from the code: the formula, the sources, the registered and derived rules, "
                "the results of every check, and the benchmarks, if there are any.",
                '<div class="cards">\n' + "\n".join(_card(example, report) for example in found) + "\n</div>",
                "Each file runs as a script from any folder, and verifies its ops at the end:",
                block("$ python examples/gallery/rms_norm.py\n$ custom-autograd check examples/gallery", "console"),
                f"```{{toctree}}\n:hidden:\n\n{names}\n```",
            ]
        )
        + "\n"
    )


def _card(example: Example, report: Report | None) -> str:
    results = [result for op in example.ops for result in verification.results_of(report, op.name)]
    title = example.docstring.strip().split("\n\n")[0]
    is_bad = any(result.is_finding for result in results)
    status = "skipped" if not results else "failed" if is_bad else "passed"
    ops = ", ".join(op.name.partition("::")[2] for op in example.ops)
    return (
        f'<a class="card" href="{example.name}.html"><strong>{html.escape(example.name)}</strong>'
        f"<span>{html.escape(' '.join(title.split()))}</span>"
        f"<small>Ops: {html.escape(ops)}</small>"
        f"<small>Kernels: {html.escape(example.kernels.replace('`', '') or _devices(example))}</small>"
        f'<small><span class="badge {status}">{html.escape(verification.verdict(results))}</span></small></a>'
    )


def _devices(example: Example) -> str:
    """Return the device types that have kernels, for files without a row in the table of examples."""
    found = dict.fromkeys(device for op in example.ops for device in op.kernels if device != "default")
    return ", ".join(found) or "PyTorch operations"
