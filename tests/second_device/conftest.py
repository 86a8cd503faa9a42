"""Each file of this folder runs in a process of its own, which has the second device; elsewhere it is one test.

One test of a file: python tests/second_device/with_device.py -m pytest FILE -k NAME
"""

import pytest
import torch

from python_server import OF_CHECKS, run_python
from second_device.building import environment, variables


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path, parent):
    """Collect a file as a single test, unless this process has the device."""
    return None if hasattr(torch, "second") else FileOnDevice.from_parent(parent, path=module_path)


class FileOnDevice(pytest.File):
    def collect(self):
        item = RunOnDevice.from_parent(self, name="in a process with the second device")
        if "pytestmark = pytest.mark.slow" in self.path.read_text(encoding="utf-8"):
            item.add_marker("slow")  # the file is not imported here
        yield item


class RunOnDevice(pytest.Item):
    def runtest(self):
        selected = ["-m", self.config.option.markexpr] if self.config.option.markexpr else []
        command = ("-m", "pytest", "-q", *selected, self.path)
        finished = run_python(
            *command, cwd=self.config.rootpath, env=environment(), modules=OF_CHECKS, variables=variables()
        )
        if finished.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
            pytest.skip("every test of the file is deselected")
        if finished.returncode:
            pytest.fail(finished.stdout + finished.stderr, pytrace=False)
