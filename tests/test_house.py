"""The house rules hold: imports go down, files are short, every file says what it answers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "custom_autograd"
FILES = sorted(PACKAGE.rglob("*.py"))
GALLERY = sorted((ROOT / "examples" / "gallery").rglob("*.py"))

LONGEST_FILE = 400
LONGEST_EXAMPLE = 150
LONGEST_FUNCTION = 40
EXEMPT_FROM_LENGTH = {
    "op.py": "one typed signature and one docstring for each method of the public face, no logic",
}


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function's body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno - body[0].lineno + 1) if body else 0


def test_the_package_has_files():
    assert FILES


def test_import_linter_keeps_every_contract():
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    finished = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.parametrize("path", FILES + GALLERY, ids=shown)
def test_a_file_begins_with_a_docstring(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_a_file_is_short(path):
    if path.relative_to(PACKAGE).as_posix() in EXEMPT_FROM_LENGTH:
        return

    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("path", GALLERY, ids=shown)
def test_an_example_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_EXAMPLE


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_a_function_is_short(path):
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]

    assert [] == [f"{f.name}: {lines_of(f)} lines" for f in functions if lines_of(f) > LONGEST_FUNCTION]


def test_one_file_reads_and_sets_the_state_of_random_numbers():
    """The state of torch's generator is the CPU's alone: see custom_autograd/values/random_state.py."""
    owner = PACKAGE / "values" / "random_state.py"
    calls = ("get_rng_state", "set_rng_state", "fork_rng", "torch.manual_seed(", "default_generator", "manual_seed_all")
    texts = {path: path.read_text(encoding="utf-8") for path in FILES if path != owner}
    lines = [(shown(path), line.strip()) for path, text in texts.items() for line in text.splitlines()]

    assert [] == [row for row in lines if any(call in row[1] for call in calls)]
