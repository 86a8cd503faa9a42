"""The site of several versions: docs/publish.py, the menu of versions and the banners, with stubs as pages."""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from tables import each

from browser import show, wait_for

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "index.md": "# Home\n\n```{toctree}\nhow-to/old\nhow-to/page\n```\n",
    "how-to/page.md": "# Page\n\nText.\n",
    "how-to/old.md": "# Old\n\nText.\n",
    "llms.txt": "",
}
BANNER = "This is the documentation of the development version, which can differ from the releases."


def build_pages(folder, published, left_out=()):
    """Build stubs of pages as docs/build.py builds the pages, and return where they are."""
    source, output = folder / f"{published}-source", folder / f"{published}-built"
    shutil.copytree(DOCS / "_static", source / "_static")
    shutil.copytree(DOCS / "_templates", source / "_templates")
    shutil.copy(DOCS / "conf.py", source)
    for name, text in PAGES.items():
        if name not in left_out:
            (source / name).parent.mkdir(exist_ok=True)
            (source / name).write_text(text.replace("how-to/old\n", "") if left_out else text, encoding="utf-8")
    program = f"from pathlib import Path; import build; build.build(Path({str(source)!r}), Path({str(output)!r}), "
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(DOCS)!r}); {program}{published!r})"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "WARNING" not in finished.stderr
    return output


def run_publish(*arguments):
    command = [sys.executable, DOCS / "publish.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def publish(built, site, version):
    assert "" == run_publish(built, site, version).stderr


def listed(site):
    rows = json.loads((site / "versions.json").read_text(encoding="utf-8"))
    return [row["version"] + "*" * row.get("preferred", False) for row in rows]


def first_page(site):
    return re.search(r"url=([^\"]+)", (site / "index.html").read_text(encoding="utf-8"))[1]


@pytest.fixture
def built(tmp_path):
    """A built site of one page."""
    folder = tmp_path / "built"
    folder.mkdir()
    (folder / "index.html").write_text("new", encoding="utf-8")
    return folder


def test_before_the_first_release_the_site_leads_to_the_development_version(built, tmp_path):
    publish(built, tmp_path / "site", "dev")

    assert ["dev"] == listed(tmp_path / "site")
    assert "dev/index.html" == first_page(tmp_path / "site")


def test_the_newest_release_is_preferred_in_whatever_order_they_are_published(built, tmp_path):
    site = tmp_path / "site"
    for version in ("v0.9.0", "v0.10.0", "dev", "v0.2.4"):
        publish(built, site, version)

    assert ["dev", "0.10*", "0.9", "0.2"] == listed(site)
    assert "0.10/index.html" == first_page(site)


def test_a_patch_replaces_the_pages_of_its_minor_version_and_no_others(built, tmp_path):
    site = tmp_path / "site"
    for folder in ("0.1", "0.2"):
        (site / folder).mkdir(parents=True)
        (site / folder / "index.html").write_text("old", encoding="utf-8")
        (site / folder / "gone.html").touch()

    publish(built, site, "v0.2.1")

    assert ["index.html"] == [path.name for path in (site / "0.2").iterdir()]
    assert "new" == (site / "0.2" / "index.html").read_text(encoding="utf-8")
    assert "old" == (site / "0.1" / "index.html").read_text(encoding="utf-8")


@each("version", ["0.2", "v0.3.0rc1", "../0.2.1", "main"])
def test_what_is_not_a_release_is_not_published(built, tmp_path, version):
    finished = run_publish(built, tmp_path / "site", version)

    assert f"expected 'dev' or a release such as 'v0.2.1', found {version!r}" in finished.stderr
    assert not (tmp_path / "site").exists()


# ---------------------------------------------------------------------------------------------- the branch gh-pages


def git(folder, *arguments):
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


def push(built, remote, version):
    command = [DOCS.parent / ".ci" / "push-docs", built, version]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # some systems have no `python3`
    environment = {**os.environ, "PATH": path, "PAGES_REMOTE": str(remote)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_version_is_pushed_to_the_branch_of_all_versions(built, tmp_path):
    remote = tmp_path / "remote.git"
    git(tmp_path, "init", "--quiet", "--bare", str(remote))

    assert "published the pages of dev\n" == push(built, remote, "dev")
    assert "published the pages of v0.2.0\n" == push(built, remote, "v0.2.0")
    assert "the pages of v0.2.0 are as they were\n" == push(built, remote, "v0.2.0")

    files = git(remote, "ls-tree", "-r", "--name-only", "gh-pages").split()
    assert [".nojekyll", "0.2/index.html", "dev/index.html", "index.html", "versions.json"] == files
    assert ["Publish the documentation of v0.2.0", "Publish the documentation of dev"] == git(
        remote, "log", "--format=%s", "gh-pages"
    ).splitlines()


# ------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A development version, which has one page less, and two releases."""
    folder = tmp_path_factory.mktemp("versions")
    release = build_pages(folder, "0.2")
    older = build_pages(folder, "0.1")
    development = build_pages(folder, "dev", left_out=["how-to/old.md"])
    for version, built in (("dev", development), ("v0.1.0", older), ("v0.2.0", release)):
        publish(built, folder / "site", version)
    return folder / "site"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that does not print its requests."""

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture(scope="module")
def address(site):
    """The site as a server of files shows it."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def choices(driver):
    return wait_for(driver, "[...document.querySelectorAll('.versions option')].map(one => one.text).join(' | ')")


def banner(driver):
    return wait_for(driver, "document.querySelector('.announcement')?.textContent.trim()")


def choose(driver, name):
    driver.execute_script(
        "const menu = document.querySelector('.versions select');"
        "menu.value = arguments[0]; menu.dispatchEvent(new Event('change'))",
        name,
    )


slow = pytest.mark.slow


@slow
def test_without_javascript_a_page_names_its_version(site):
    texts = {name: (site / name / "how-to" / "page.html").read_text(encoding="utf-8") for name in ("0.2", "0.1", "dev")}
    shown = {name: re.search(r'class="versions"[^>]*>\s*(.*?)\s*</div>', text, re.S)[1] for name, text in texts.items()}

    assert {"0.2": "Version 0.2", "0.1": "Version 0.1", "dev": "Development version"} == shown
    assert [False, False, True] == [BANNER in text for text in texts.values()]


@slow
@each("page", ["index.html", "how-to/page.html"])
def test_the_menu_lists_what_versions_json_lists(chromium, address, page):
    show(chromium, f"{address}/0.2/{page}")

    assert "development | 0.2 | 0.1" == choices(chromium)
    assert "0.2" == chromium.execute_script("return document.querySelector('.versions select').value")
    assert chromium.execute_script("return document.querySelector('.announcement')") is None


@slow
def test_the_menu_leads_to_the_same_page_of_another_version(chromium, address):
    show(chromium, f"{address}/0.2/how-to/old.html")
    choices(chromium)
    choose(chromium, "0.1")

    assert wait_for(chromium, f"location.href == '{address}/0.1/how-to/old.html'")


@slow
def test_the_menu_leads_to_the_first_page_of_a_version_that_lacks_the_page(chromium, address):
    show(chromium, f"{address}/0.2/how-to/old.html")
    choices(chromium)
    choose(chromium, "dev")

    assert wait_for(chromium, f"location.href == '{address}/dev/'")


@slow
@each(("version", "text"), [("0.1", "This is the documentation of version 0.1."), ("dev", BANNER)])
def test_the_banner_of_another_version_leads_to_the_newest_release(chromium, address, version, text):
    show(chromium, f"{address}/{version}/how-to/page.html", width=390)
    choices(chromium)

    assert f"{text} See version 0.2." == re.sub(r"\s+", " ", banner(chromium))
    assert f"{address}/0.2/" == chromium.execute_script("return document.querySelector('.announcement a').href")
    assert not chromium.execute_script("return document.documentElement.scrollWidth > window.innerWidth")


@slow
def test_from_a_file_the_version_stays_text_without_an_error(chromium, site):
    chromium.get_log("browser")
    show(chromium, (site / "0.2" / "how-to" / "page.html").as_uri())

    assert "Version 0.2" == wait_for(chromium, "document.querySelector('.versions').textContent.trim()")
    assert [] == chromium.get_log("browser")


@slow
def test_the_front_page_of_the_site_leads_to_the_newest_release(chromium, address):
    chromium.get(f"{address}/")

    assert wait_for(chromium, f"location.href == '{address}/0.2/index.html'")
