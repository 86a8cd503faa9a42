"""custom-autograd new: the files pass check, pytest and ruff as they are, and nothing is overwritten."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from custom_autograd.cli import main
from custom_autograd.cli.new import KERNELS

ROOT = Path(__file__).parents[2]
RULES = "E,W,F,I,B,C4,UP,SIM"


@pytest.mark.parametrize("kernel", [k if k == "none" else pytest.param(k, marks=pytest.mark.slow) for k in KERNELS])
def test_new_file_passes_check(imports_of, capsys, kernel):
    main(["new", f"new_{kernel}::fresh_{kernel}", "--kernel", kernel])
    code = main(["check", f"fresh_{kernel}.py", "--checks", "quick"])

    out = capsys.readouterr().out
    assert 0 == code, out
    assert "failed" not in out


@pytest.mark.nightly
def test_new_files_pass_every_check_in_pytest(imports_of):
    """All kinds in one process: most of what a process takes is its start."""
    (imports_of / "pytest.ini").write_text("[pytest]\n")
    for kernel in KERNELS:
        main(["new", f"fresh_{kernel}", "--kernel", kernel])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(imports_of)])}
    command = [sys.executable, "-m", "pytest", "-q"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert len(KERNELS) == len(list(imports_of.glob("test_fresh_*.py")))


@pytest.mark.parametrize("kernel", KERNELS)
def test_new_files_are_clean(imports_of, kernel):
    ruff = shutil.which("ruff", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if ruff is None:
        pytest.skip("ruff is not installed")
    main(["new", "clean", "--kernel", kernel])
    check = [ruff, "check", "--isolated", "--no-cache", "--select", RULES, "--line-length", "120", "."]
    layout = [ruff, "format", "--isolated", "--no-cache", "--line-length", "120", "--check", "."]
    found = [subprocess.run(command, capture_output=True, text=True, check=False) for command in (check, layout)]

    assert [0, 0] == [done.returncode for done in found], found[0].stdout + found[1].stdout


def test_files_are_named_after_the_op_and_lie_beside_each_other(imports_of):
    main(["new", "mine::swish", "--kernel", "cpp"])

    assert ["swish.cpp", "swish.py", "test_swish.py"] == sorted(path.name for path in imports_of.iterdir())
    assert '@custom_op("mine::swish", reference=True)' in (imports_of / "swish.py").read_text()


def test_a_cpp_kernel_is_registered_without_a_function_around_it(imports_of):
    main(["new", "mine::swish", "--kernel", "cpp"])

    source = (imports_of / "swish.py").read_text()
    assert 'swish.register_kernel("cpu", layouts="contiguous")(cpp_kernel(' in source
    assert "allocate_like(x)" in (imports_of / "swish.cpp").read_text()


def test_namespace_that_is_not_given_is_shown(imports_of, capsys):
    main(["new", "swish"])
    main(["new", "mine::gate"])

    out = capsys.readouterr().out
    assert "the op is mylib::swish, because no namespace is given; namespace::swish chooses one\n" in out
    assert "the op is mine" not in out


def test_output_names_the_file_and_makes_its_folder(imports_of):
    assert 0 == main(["new", "swish", "--output", "ops/gates.py"])

    assert ["gates.py", "test_gates.py"] == sorted(path.name for path in (imports_of / "ops").iterdir())
    assert "from gates import swish" in (imports_of / "ops" / "test_gates.py").read_text()


@pytest.mark.parametrize(
    ("source", "folder", "expected"),
    [(".", "tests", "tests"), (".", None, "."), ("src", "tests", "tests"), ("src", None, ".")],
    ids=["tests", "no tests", "src and tests", "src"],
)
def test_the_test_of_a_module_in_a_package_imports_it_by_its_name(imports_of, capsys, source, folder, expected):
    """And is not written into the package."""
    package = imports_of / source / "pkg" / "ops"
    package.mkdir(parents=True)
    for path in (package, package.parent):
        (path / "__init__.py").touch()
    if folder is not None:
        (imports_of / folder).mkdir()
    main(["new", "swish", "--output", os.path.join(source, "pkg", "ops", "gates.py")])

    assert ["__init__.py", "gates.py"] == sorted(path.name for path in package.iterdir())
    assert "from pkg.ops.gates import swish" in (imports_of / expected / "test_gates.py").read_text()
    assert f"pytest {os.path.normpath(os.path.join(expected, 'test_gates.py'))}" in capsys.readouterr().out


def test_file_that_is_there_is_not_overwritten(imports_of, capsys):
    (imports_of / "test_swish.py").write_text("mine")
    code = main(["new", "swish"])

    assert 2 == code
    assert "test_swish.py: the file is there already, and nothing was written" in capsys.readouterr().err
    assert ["test_swish.py"] == [path.name for path in imports_of.iterdir()]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aten::swish", "the namespace 'aten' is reserved for PyTorch"),
        ("my-lib::swish", "namespace and name must be Python identifiers"),
        ("lambda", "'lambda' is a keyword of Python"),
        ("a::b.out", "the name contains a '.', which marks an overload"),
    ],
)
def test_name_that_cannot_be_that_of_an_op_is_refused(imports_of, capsys, name, message):
    assert 2 == main(["new", name])
    assert message in capsys.readouterr().err


def test_file_that_cannot_be_imported_is_refused(imports_of, capsys):
    assert 2 == main(["new", "swish", "--output", "my-op.py"])
    assert "my-op.py: a test cannot import a file of that name" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["select", "torch"])
def test_file_that_would_be_imported_in_place_of_another_module_is_refused(imports_of, capsys, name):
    """`python -m pytest` puts the folder first on the path, so that the standard library would import select.py."""
    assert 2 == main(["new", f"mylib::{name}"])
    assert f"{name}.py: another module has that name, and this one would be imported" in capsys.readouterr().err
    assert [] == list(imports_of.iterdir())

    assert 0 == main(["new", f"mylib::{name}", "--output", f"{name}_op.py"])
    assert f"mylib::{name}" in (imports_of / f"{name}_op.py").read_text()
