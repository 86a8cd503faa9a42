"""The build hook of hatchling: `[tool.hatch.build.hooks.custom-autograd]` in a project's pyproject.toml."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilderConfig
from hatchling.plugin import hookimpl

from custom_autograd.packaging.project import build_project, files_of, read_project


class KernelHook(BuildHookInterface[WheelBuilderConfig]):
    """Builds the kernels of a project into its wheel."""

    PLUGIN_NAME = "custom-autograd"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # Any: hatchling's
        """Build the libraries, and have the wheel contain them; an editable install builds at the first call."""
        if self.target_name != "wheel" or version == "editable":
            return
        root = Path(self.root)
        files = list(files_of(build_project(read_project(root))))
        build_data["artifacts"].extend(f"/{path.relative_to(root).as_posix()}" for path in files)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"


def platform_tag() -> str:
    """Return the platform as the name of a wheel has it; auditwheel makes it a manylinux tag."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


@hookimpl
def hatch_register_build_hook() -> type[KernelHook]:
    """Return the hook."""
    return KernelHook
