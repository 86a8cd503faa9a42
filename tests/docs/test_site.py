"""The site as it is built: no warning, no dead link, nothing from elsewhere, readable in a browser everywhere."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest
from filelock import FileLock

from browser import open_page, show, wait_for

pytestmark = pytest.mark.slow  # builds the site; tests/test_documents.py runs and follows what its pages are made of

ROOT = Path(__file__).parents[2]
CHECKS = ROOT / "build" / "gallery-checks.json"
PAGES = (
    "index.html",
    "first-op.html",
    "gallery/index.html",
    "gallery/rms_norm.html",
    "how-to/write-a-backward.html",
    "explanation/what-catches-what.html",
    "reference/api.html",
    "reference/errors.html",
    "reference/checks.html",
)
ELSEWHERE = re.compile(r"(url\(|@import)\s*[\"']?(https?:)?//")
REPORT = {
    "format": 1,
    "sources": {},
    "results": [
        {"op": "gallery::rms_norm", "check": "gradcheck", "sample": "small", "status": "passed", "measures": {}},
        {
            "op": "gallery::rms_norm",
            "check": "streams",
            "sample": "small",
            "status": "skipped",
            "message": "there is no <CUDA> device | here",
            "measures": {},
        },
    ],
}
"""A report for where the real one has not been written: `.ci/run` and `make docs` write it."""


class Page(HTMLParser):
    """What a page links to, what it loads, and the names of its places."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := values.get(name)))
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe", "source") and values.get("src"):
            self.loaded.append(values["src"])
        if tag == "link" and values.get("rel") not in ("index", "search", "next", "prev", "canonical"):
            self.loaded.append(values.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built once for all workers, with warnings as errors."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with FileLock(folder / "site.lock"):
        if not (folder / "site" / "index.html").is_file():
            build(folder)
    return folder / "site"


def build(folder: Path) -> None:
    checks = CHECKS
    if not checks.is_file():
        checks = folder / "checks.json"
        checks.write_text(json.dumps(REPORT), encoding="utf-8")
    command = [sys.executable, str(ROOT / "docs" / "build.py"), str(folder / "site"), "--checks", str(checks)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert finished.returncode == 0, finished.stderr


@cache
def parsed(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def pages_of(site: Path) -> list[Path]:
    return sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)


def is_elsewhere(address: str) -> bool:
    """Whether an address is on the web; `file:` is not: what looks like it in a text is not a link."""
    return urlsplit(address).scheme in ("http", "https", "mailto") or bool(urlsplit(address).netloc)


def dead_links(site: Path, path: Path) -> list[str]:
    """The links of a page to files and places that are not there."""
    found = []
    for link in parsed(path).links:
        parts = urlsplit(link)
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if is_elsewhere(link):
            continue
        place = unquote(parts.fragment)
        if not target.is_file() or (place and target.suffix == ".html" and place not in parsed(target).anchors):
            found.append(f"{path.relative_to(site)} -> {link}")
    return found


def test_no_link_is_dead(site):
    assert [] == [link for path in pages_of(site) for link in dead_links(site, path)]


def test_a_dead_link_and_a_dead_place_are_noticed(tmp_path):
    page = tmp_path / "page.html"
    links = ("gone.html", "#nowhere", "#here", "file:line", "https://example.org")
    page.write_text("".join(f'<a href="{link}">a</a>' for link in links) + '<p id="here"></p>', encoding="utf-8")

    assert ["page.html -> gone.html", "page.html -> #nowhere", "page.html -> file:line"] == dead_links(tmp_path, page)


def test_llms_txt_leads_to_every_page(site):
    text = (site / "llms.txt").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[.+\]\((.+\.html)\): .+$", text, re.M)
    pages = {path.relative_to(site).as_posix() for path in pages_of(site)}

    assert text.startswith("# custom_autograd\n\n> Custom operators for PyTorch that are correct in every mode.\n\n## ")
    assert sorted(pages - {"index.html", "search.html", "genindex.html", "py-modindex.html"}) == sorted(listed)


@pytest.mark.parametrize("word", ["gradient", "wrong", "shape", "gradienterror", "contigu", "dispatch"])
def test_the_index_of_the_search_has_the_words_of_errors(site, word):
    """Without a browser. The index has the stems of words; those of headings are in a table of their own."""
    index = json.loads((site / "searchindex.js").read_text(encoding="utf-8").removeprefix("Search.setIndex(")[:-1])
    found = [index[table].get(word, []) for table in ("terms", "titleterms")]
    pages = [page for each in found for page in (each if isinstance(each, list) else [each])]

    assert index["docnames"].index("reference/errors") in pages


def test_nothing_is_loaded_from_elsewhere(site):
    loaded = [address for path in pages_of(site) for address in parsed(path).loaded if is_elsewhere(address)]
    styles = [file for file in site.rglob("*.css") if ELSEWHERE.search(file.read_text(encoding="utf-8"))]

    assert ([], []) == (loaded, styles)


def test_the_place_of_each_message_of_the_index_is_there_once(site):
    text = (site / "reference" / "errors.html").read_text(encoding="utf-8")
    places = re.findall(r'id="(message-[^"]+)"', text)

    assert (True, len(places)) == (len(places) > 200, len(set(places)))


def test_no_sentence_about_a_result_is_read_as_its_type(site):
    """Napoleon takes what is before a colon in the first line of "Returns" for the type."""
    assert [] == [page.name for page in (site / "reference").glob("*.html") if "Return type" in page.read_text()]


def test_every_file_of_the_gallery_with_ops_has_a_page(site):
    files = [file for file in (ROOT / "examples" / "gallery").glob("*.py") if "custom_op(" in file.read_text()]

    assert {file.stem for file in files} == {path.stem for path in (site / "gallery").glob("*.html")} - {"index"}


@pytest.mark.parametrize("part", ["What it teaches", "The code", "Where each capability comes from", "What it costs"])
def test_a_page_of_the_gallery_has_each_part(site, part):
    assert part in (site / "gallery" / "rms_norm.html").read_text(encoding="utf-8")


def test_pages_load_without_errors_in_the_console(chromium, site):
    chromium.get_log("browser")
    for page in PAGES:
        show(chromium, (site / page).as_uri())

    assert [] == chromium.get_log("browser")


def test_the_navigation_leads_from_the_front_page_to_an_op_of_the_gallery(chromium, site):
    show(chromium, (site / "index.html").as_uri())
    wait_for(chromium, "[...document.querySelectorAll('.sidebar-tree a')].find(a => a.textContent == 'The gallery')")
    chromium.execute_script(
        "[...document.querySelectorAll('.sidebar-tree a')].find(a => a.textContent == 'The gallery').click()"
    )
    wait_for(chromium, "document.querySelector('a.card')")
    chromium.execute_script("[...document.querySelectorAll('a.card')].find(a => a.href.includes('rms_norm')).click()")

    assert wait_for(chromium, "document.querySelector('h1') && document.querySelector('h1').textContent").startswith(
        "rms_norm"
    )


def test_the_navigation_has_its_parts(chromium, site):
    show(chromium, (site / "index.html").as_uri())
    captions = wait_for(
        chromium, "[...document.querySelectorAll('.sidebar-tree .caption-text')].map(a => a.textContent).join(' | ')"
    )

    guides = "Describe an op | Write gradients | Compile and transform | Make it fast | Verify | Share and deploy"
    assert f"Start | Gallery | Migrate | {guides} | Extend | Reference | Explanation" == captions


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("rms_norm", "gallery/rms_norm.html"),
        ("the gradient of 'weight' has the wrong shape", "reference/errors.html"),
        ("no kernel for device type 'cpu' accepts these arguments", "reference/errors.html"),
    ],
)
def test_the_search_finds_ops_and_texts_of_errors(chromium, site, words, page):
    open_page(chromium, (site / "search.html").as_uri() + f"?q={quote(words)}")

    found = wait_for(chromium, "[...document.querySelectorAll('#search-results li a')].map(a => a.href).join(' ')")

    assert page in found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_a_phone(chromium, site, scheme):
    wide = []
    for page in PAGES:
        show(chromium, (site / page).as_uri(), width=390, scheme=scheme)
        if chromium.execute_script("return document.documentElement.scrollWidth > window.innerWidth"):
            wide.append(page)

    assert [] == wide


@pytest.mark.parametrize("page", ["index.html", "explanation/what-a-call-costs.html", "gallery/rms_norm.html"])
def test_what_is_wider_than_a_phone_can_be_scrolled(chromium, site, page):
    """Code, tables and plots: nothing is cut off, and the text of plots is not shrunk."""
    show(chromium, (site / page).as_uri(), width=390)
    stuck = """
        const wide = [...document.querySelectorAll("article :is(pre, table, img, .plot svg)")].filter(
            (one) => one.getBoundingClientRect().right > innerWidth || one.scrollWidth > one.clientWidth + 1);
        const overflow = (one) => getComputedStyle(one).overflowX;
        const scrolls = (one) => one && (["auto", "scroll"].includes(overflow(one)) || scrolls(one.parentElement));
        return [wide.length, wide.filter((one) => !scrolls(one)).map((one) => one.outerHTML.slice(0, 80))]"""
    count, cut = chromium.execute_script(stuck)

    assert (True, []) == (count > 0, cut)


def luminance(colour):
    """The relative luminance of WCAG 2."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


TEXTS = [("gallery/index.html", "body", text) for text in ("article p", "a.card span", "a.card small", "article h1")]
TEXTS += [("index.html", ".highlight", f".highlight .{token}") for token in ("c1", "kn", "mf", "mi", "nd", "nn")]


@pytest.mark.parametrize(("page", "ground", "selector"), TEXTS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(chromium, site, scheme, page, ground, selector):
    show(chromium, (site / page).as_uri(), scheme=scheme)
    ground = luminance(chromium.find_element("css selector", ground).value_of_css_property("background-color"))
    text = luminance(chromium.find_element("css selector", selector).value_of_css_property("color"))

    assert (scheme == "dark") == (ground < 0.5)
    assert (max(ground, text) + 0.05) / (min(ground, text) + 0.05) >= 4.5
