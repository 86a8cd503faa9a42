"""The browser in which tests open pages, and how it is started; tests that need it are skipped where there is none."""

import json
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

PATIENCE = 600
"""Seconds that a page may take on a busy machine."""

needs_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and its driver are not installed")


def open_page(driver, address):
    """Shows the page at an address, complete: a navigation that an earlier page began cannot take its place."""
    driver.get(address)
    wait_for(driver, f"location.href == {json.dumps(address)} && document.readyState == 'complete'")


def show(driver, address, width=1280, scheme="light"):
    """Loads a page, `width` pixels wide, where the reader prefers light or dark."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    open_page(driver, address)


def wait_for(driver, script):
    """What a script returns as soon as it is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, PATIENCE).until(lambda found: found.execute_script(f"return {script}"))
