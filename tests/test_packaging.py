"""The installed package: its entry points resolve, and importing it loads torch and the standard library only."""

import subprocess
import sys
from importlib.metadata import distribution, entry_points
from importlib.resources import files

from tables import each

GROUPS = ("console_scripts", "hatch", "pytest11")
OURS = [point for group in GROUPS for point in entry_points(group=group) if point.value.startswith("custom_autograd")]

# Prints the top-level modules that importing a module adds to those that torch alone loads.
REPORT_NEW_MODULES = """
import sys
import torch
before = {name.partition(".")[0] for name in sys.modules}
import {module}
after = {name.partition(".")[0] for name in sys.modules}
print(*sorted(after - before - sys.stdlib_module_names - {"custom_autograd"}))
"""


def modules_loaded_by(module: str) -> list[str]:
    """What importing `module` loads besides torch, what torch loads, and the standard library."""
    program = REPORT_NEW_MODULES.replace("{module}", module)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


def test_there_is_a_command():
    assert "custom-autograd" in {point.name for point in OURS}


@each("point", OURS)
def test_every_entry_point_resolves(point):
    assert point.load() is not None


def test_torch_is_the_only_dependency():
    required = [line for line in distribution("custom-autograd").requires or [] if "extra ==" not in line]

    assert [line.partition(">")[0] for line in required] == ["torch"]


def test_importing_loads_torch_and_the_standard_library_only():
    assert modules_loaded_by("custom_autograd") == []


def test_the_import_test_can_fail():
    """A library that torch does not load is seen: the test above is not empty."""
    assert "pytest" in modules_loaded_by("pytest")


def test_annotations_are_shipped():
    assert files("custom_autograd").joinpath("py.typed").is_file()


def test_the_templates_of_the_page_are_shipped():
    templates = files("custom_autograd.verification.report").joinpath("templates")

    assert all(templates.joinpath(name).is_file() for name in ("page.html", "page.js", "plot.svg"))
    assert files("custom_autograd.rendering").joinpath("templates", "style.css").is_file()
    assert files("custom_autograd.graph").joinpath("templates", "inspection_page.html").is_file()
