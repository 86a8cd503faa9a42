"""Which sources a build finds: in nested folders, behind links, and none that a wheel would not hold."""

import pytest

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.packaging.sources import find_sources

MODULE = """
from pathlib import Path
from custom_autograd.kernels import cpp_kernel
kernel = cpp_kernel(SOURCE, "times")
"""


@pytest.fixture
def write(tmp_path):
    """What writes a module of the project, with a kernel of a source."""

    def written(module, source="Path(__file__).parent / 'times.cpp'"):
        path = tmp_path / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MODULE.replace("SOURCE", source))

    return written


def sources(root, package="ops"):
    return [str(source.path.relative_to(root)) for source in find_sources(package, root, root)]


@pytest.mark.parametrize("module", ["ops/deep/k.py", "ops/deep/k/__init__.py"])
def test_a_kernel_in_a_folder_without_an_init_is_found(module, write, tmp_path):
    write(module)
    (tmp_path / "ops" / "__init__.py").touch()

    assert [module.replace("k.py", "times.cpp").replace("__init__.py", "times.cpp")] == sources(tmp_path)


def test_a_namespace_package_with_a_dot_is_found(write, tmp_path):
    write("space/ops/__init__.py")

    assert ["space/ops/times.cpp"] == sources(tmp_path, "space.ops")


@pytest.mark.parametrize(
    "source", ["Path(__file__).resolve().parent / 'times.cpp'", "Path(__file__).parent / 'times.cpp'"]
)
def test_a_package_that_is_a_link_has_its_sources_by_its_name(source, write, tmp_path):
    write("real/__init__.py", source)
    (tmp_path / "ops").symlink_to("real")

    assert ["ops/times.cpp"] == sources(tmp_path)


def test_two_spellings_of_a_path_are_one_source(write, tmp_path):
    write("ops/__init__.py")
    write("ops/other.py", "Path(__file__).parent / '..' / 'ops' / 'times.cpp'")

    assert ["ops/times.cpp"] == sources(tmp_path)


@pytest.mark.slow
def test_a_source_outside_of_the_package_is_refused(write, tmp_path):
    write("ops/__init__.py", "Path(__file__).parents[1] / 'csrc' / 'times.cpp'")

    with pytest.raises(KernelUnavailable, match=r"outside of the package.*\n  expected .*\n  found .*csrc/times.cpp"):
        sources(tmp_path)


def test_a_package_that_is_not_there_is_not_taken_from_elsewhere(tmp_path):
    with pytest.raises(KernelUnavailable, match="there is no such package"):
        sources(tmp_path, "json")
