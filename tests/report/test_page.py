"""The HTML page in a real browser: it loads alone, its cells lead to their details, and it is readable everywhere."""

import dataclasses
import re

import pytest

from browser import CHROMIUM, DRIVER, OPTIONS, needs_browser, open_page
from custom_autograd.verification.report import Report, Result

pytestmark = needs_browser

GROUPS = ("values", "values", "layouts", "derivatives", "derivatives", "fake", "transforms", "compiler", "saving")
MEASURES = {"error, float32": 1e-7, "error, bfloat16": 3e-3, "error, size 7": 1e-7, "error, size 4099": 2e-6}
PASSES = tuple(
    Result(f"ns::op_with_a_long_name_{op}", f"check_{place}", "small", "passed", "", 0.1, f"X{place}", group=group)
    for op in range(3)
    for place, group in enumerate(GROUPS)
)
FAILURE = dataclasses.replace(
    PASSES[4],
    status="failed",
    message="gradient of 'x'[0] = 4, expected 2" + ", and so on" * 30,
    cause="the factor is 2.0",
    script="check(op)  # a " + "long " * 60 + "line",
)
ACCEPTED = dataclasses.replace(PASSES[5], status="skipped", message="accepted, because", accepted="a kink")
REPORT = Report(
    (
        dataclasses.replace(PASSES[0], measures=MEASURES),
        *PASSES[1:4],
        FAILURE,
        ACCEPTED,
        *PASSES[6:],
        Result("ns::unsampled", "all checks", "no sample", "skipped", "no samples are registered"),
    ),
    {PASSES[0].op: "def generated(x):\n    return x\n"},
)
OPS = [*dict.fromkeys(result.op for result in REPORT.results)]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(chromium, tmp_path):
    """The page, freshly loaded, light and wide."""
    file = tmp_path / "report.html"
    file.write_text(REPORT.to_html(), encoding="utf-8")
    resize(chromium, 1280)
    prefer(chromium, "light")
    chromium.get_log("performance")
    chromium.get_log("browser")
    open_page(chromium, file.as_uri())
    return chromium


def resize(driver, width):
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer(driver, scheme):
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def find(driver, selector):
    return driver.find_element("css selector", selector)


def find_all(driver, selector):
    return driver.find_elements("css selector", selector)


def cell(driver, result):
    return find(driver, f'.cell[title^="{result.op}, {result.check}:"]')


def colour(element, name):
    """The red, green and blue of a computed colour, 0 to 1."""
    return [int(part) / 255 for part in re.findall(r"\d+", element.value_of_css_property(name))[:3]]


def contrast(element):
    """The contrast between text and ground by the formula of WCAG 2; 4.5 is readable."""
    lights = []
    for name in ("color", "background-color"):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour(element, name)]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_the_page_loads_without_errors_in_the_console(page):
    assert [] == page.get_log("browser")


def test_the_page_asks_the_network_for_nothing(page):
    events = "".join(row["message"] for row in page.get_log("performance"))

    assert "report.html" in events
    assert [] == re.findall(r'"url":"((?:https?|wss?)://[^"]*)"', events)


def test_the_matrix_has_a_row_per_op_and_a_column_per_check(page):
    assert OPS == [row.text for row in find_all(page, ".matrix tbody th")]
    assert len(GROUPS) == len(find_all(page, ".matrix th.check"))
    assert len(GROUPS) * len(OPS) == len(find_all(page, ".matrix .cell"))


def test_a_click_on_a_failing_cell_shows_its_details(page):
    cell(page, FAILURE).click()

    shown = find(page, ":target")
    top = page.execute_script("return arguments[0].getBoundingClientRect().top", shown)
    assert "FAIL" == cell(page, FAILURE).text
    assert FAILURE.message in shown.text
    assert "Why, probably: the factor is 2.0" in shown.text
    assert 0 <= top < 800


def test_a_click_on_a_passing_cell_opens_the_table_of_its_op(page):
    cell(page, PASSES[-1]).click()

    shown = find(page, ":target")
    assert shown.is_displayed()
    assert shown.text.startswith("check_8 X8 small passed 100")


def test_every_link_leads_to_a_place_in_the_page(page):
    links = {link.get_dom_attribute("href").removeprefix("#") for link in find_all(page, "a")}

    assert links <= {place.get_dom_attribute("id") for place in find_all(page, "[id]")}


def test_cells_are_reached_and_followed_by_the_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    find(page, ".scroll").send_keys(Keys.TAB)
    focused = page.switch_to.active_element
    focused.send_keys(Keys.ENTER)

    assert cell(page, PASSES[0]) == focused
    assert find(page, ":target").text.startswith("check_0")


def test_details_open_and_hold_the_script(page):
    details = find(page, ".finding details")
    script = details.find_element("css selector", "pre")
    was_shown = script.is_displayed()
    details.find_element("css selector", "summary").click()

    assert (False, True) == (was_shown, script.is_displayed())
    assert FAILURE.script == script.text


def test_a_script_is_copied_by_its_button(page):
    permission = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    page.execute_cdp_cmd("Browser.grantPermissions", permission)
    find(page, ".finding summary").click()
    find(page, ".finding .copy").click()

    copied = page.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert FAILURE.script == copied


def test_the_generated_source_is_in_the_page(page):
    assert "def generated(x):" in find(page, ".source pre").get_property("textContent")


def test_accepted_and_skipped_stand_with_their_reasons(page):
    assert "Because a kink" in find(page, "#accepted").text
    assert "ns::unsampled all checks no samples are registered 1" in find(page, "#skipped").text


def test_plots_have_a_mark_per_error(page):
    assert len(MEASURES) == len(find_all(page, ".plot > svg .mark"))


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_overflows_sideways(page, width):
    resize(page, width)
    page.execute_script("document.querySelectorAll('details').forEach(row => { row.open = true })")

    assert width >= page.execute_script("return document.documentElement.scrollWidth")


def test_dark_and_light_differ_and_both_are_readable(page):
    grounds = []
    for scheme in ("light", "dark"):
        prefer(page, scheme)
        body = find(page, "body")
        grounds.append(colour(body, "background-color"))

        assert contrast(body) > 7
        assert all(contrast(element) > 4.5 for element in find_all(page, ".cell:not(.absent), .badge"))
    assert grounds[0] > [0.9, 0.9, 0.9]
    assert grounds[1] < [0.2, 0.2, 0.2]


JUPYTER = """\
<!doctype html><meta charset="utf-8">
<style>
.jp-RenderedHTMLCommon table { color: #ff0000; }
.jp-RenderedHTMLCommon tbody tr:nth-child(odd) { background: #ff0000; }
</style>
<body data-jp-theme-light="THEME"><div class="jp-RenderedHTMLCommon">
"""
"""What a notebook has around an output: a theme, and colors for tables."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_fragment_follows_the_theme_of_the_notebook(chromium, tmp_path, theme, scheme):
    """Whatever the system prefers, and whatever colors the notebook gives to tables."""
    file = tmp_path / "notebook.html"
    file.write_text(JUPYTER.replace("THEME", "true" if theme == "light" else "false") + REPORT._repr_html_())
    prefer(chromium, scheme)
    open_page(chromium, file.as_uri())
    fragment = find(chromium, ".custom-autograd")

    assert contrast(fragment) > 7
    assert (theme == "light") == (colour(fragment, "background-color") > [0.5, 0.5, 0.5])
    for table in find_all(chromium, "table"):
        assert colour(table, "color") == colour(fragment, "color")
    for row in find_all(chromium, "tbody tr"):
        assert row.value_of_css_property("background-color") == "rgba(0, 0, 0, 0)"


@pytest.mark.slow
def test_print_is_light_and_shows_the_scripts(page):
    feature = {"name": "prefers-color-scheme", "value": "dark"}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [feature]})

    try:
        assert colour(find(page, "body"), "background-color") == [1, 1, 1]
        assert page.execute_script("return arguments[0].checkVisibility()", find(page, ".finding details pre"))
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
