"""Build kernels into a wheel with hatchling: `[tool.hatch.build.hooks.custom-autograd]` in pyproject.toml."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilderConfig
from hatchling.plugin import hookimpl

from custom_autograd.packaging.project import build_project, files_of, read_project


class KernelHook(BuildHookInterface[WheelBuilderConfig]):
    """Build hook that adds the libraries of a project's kernels to its wheel."""

    PLUGIN_NAME = "custom-autograd"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # Any: hatchling's
        """Build the libraries and add them to the wheel; an editable install builds them at the first call."""
        if self.target_name != "wheel" or version == "editable":
            return
        root = Path(self.root)
        files = list(files_of(build_project(read_project(root))))
        build_data["artifacts"].extend(f"/{path.relative_to(root).as_posix()}" for path in files)
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"  # auditwheel replaces it with a manylinux tag


@hookimpl
def hatch_register_build_hook() -> type[KernelHook]:
    """Register the hook with hatchling."""
    return KernelHook
