"""Build kernels into a wheel with setuptools.

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
    """Command that copies the package and its kernels' libraries; an editable install builds at the first call."""

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
        """Mark the wheel as platform-specific: auditwheel rejects libraries in a pure one."""
        vars(self.distribution)["has_ext_modules"] = lambda: True
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        """Return a tag for every Python: libraries of the stable ABI do not use Python's C API."""
        return "py3", "none", super().get_tag()[2]
