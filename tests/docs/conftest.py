"""The browser of these tests; the tools that make pages are imported from docs/, where they live."""

import sys
from pathlib import Path

import pytest

from browser import CHROMIUM, DRIVER, OPTIONS

sys.path.append(str(Path(__file__).parents[2] / "docs"))


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and its driver are not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in (*OPTIONS, "--allow-file-access-from-files", f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()
