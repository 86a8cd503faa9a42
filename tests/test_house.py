"""The house rules hold: imports go down, files and functions are short, every file says what it answers."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "custom_autograd"
GALLERY = ROOT / "examples" / "gallery"
TEXTS = {
    path: path.read_text(encoding="utf-8") for folder in (PACKAGE, GALLERY) for path in sorted(folder.rglob("*.py"))
}
FILES = [path for path in TEXTS if path.is_relative_to(PACKAGE)]

LONGEST_FILE, LONGEST_EXAMPLE, LONGEST_FUNCTION = 400, 150, 40
EXEMPT_FROM_LENGTH = {PACKAGE / "op.py"}
"""One typed signature and one docstring for each method of the public face, no logic."""


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(text) for path, text in TEXTS.items()}


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function's body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno - body[0].lineno + 1) if body else 0


def test_import_linter_keeps_every_contract():
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    finished = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_a_file_is_short_and_begins_with_a_docstring():
    assert FILES
    longest = {path: LONGEST_FILE if path in FILES else LONGEST_EXAMPLE for path in TEXTS.keys() - EXEMPT_FROM_LENGTH}

    assert [] == [shown(path) for path, lines in longest.items() if len(TEXTS[path].splitlines()) > lines]
    assert [] == [shown(path) for path, tree in trees().items() if not ast.get_docstring(tree)]


def test_a_function_is_short():
    functions = [
        (path, node)
        for path in FILES
        for node in ast.walk(trees()[path])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]

    assert [] == [(shown(path), f.name, lines_of(f)) for path, f in functions if lines_of(f) > LONGEST_FUNCTION]


def test_one_file_reads_and_sets_the_state_of_random_numbers():
    """The state of torch's generator is the CPU's alone: see custom_autograd/values/random_state.py."""
    owner = PACKAGE / "values" / "random_state.py"
    calls = ("get_rng_state", "set_rng_state", "fork_rng", "torch.manual_seed(", "default_generator", "manual_seed_all")
    lines = [(shown(path), line.strip()) for path in FILES if path != owner for line in TEXTS[path].splitlines()]

    assert [] == [row for row in lines if any(call in row[1] for call in calls)]
