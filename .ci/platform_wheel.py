"""Gives the wheel the tag of its platform if it holds libraries: see `.ci/prebuilt.py`."""

import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlatformWheel(BuildHookInterface):
    """A wheel for one platform, every Python and every torch, or for all platforms."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Set the tag."""
        del version
        if list(Path(self.root, "custom_autograd/native/source/_prebuilt").glob("*.so")):
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
