"""The commands of setuptools that build a project's kernels into its wheel.

[tool.setuptools.cmdclass]
build_py = "custom_autograd.packaging.setuptools.BuildKernels"
bdist_wheel = "custom_autograd.packaging.setuptools.KernelWheel"
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

from custom_autograd.packaging.project import build_project, files_of, read_project


class BuildKernels(build_py):
    """Copies the package, and the libraries of its kernels; an editable install builds at the first call."""

    def run(self) -> None:
        """Build the package."""
        super().run()
        if self.editable_mode:
            return
        project = read_project(Path.cwd())
        for path in files_of(build_project(project)):
            target = Path(self.build_lib, path.relative_to(project.root / project.folder))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


class KernelWheel(bdist_wheel):
    """A wheel for one platform and every Python."""

    def finalize_options(self) -> None:
        """Set that the wheel holds libraries: auditwheel refuses them among what is pure."""
        vars(self.distribution)["has_ext_modules"] = lambda: True
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag: a library of the stable ABI uses nothing of Python's."""
        return "py3", "none", super().get_tag()[2]
