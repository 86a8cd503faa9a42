"""Every Python block of README.md and docs/ runs on the CPU, and prints what the document says it prints.

The blocks of one file run in order in one process, forked for it, and share their names, as a reader would run them.
A block followed by the line "It prints:" and a text block has exactly that output. A second text block may follow
the line "From PyTorch 2.15 on it prints:".
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tables import each
from torch.torch_version import TorchVersion

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OUTPUT = r"\n\n```text\n(?P<{}>.*?)^```\n"
BLOCK = re.compile(
    rf"^```python\n(?P<code>.*?)^```\n(?:\nIt prints:{OUTPUT.format('output')}"
    rf"(?:\nFrom PyTorch (?P<version>[\d.]+) on it prints:{OUTPUT.format('newer')})?)?",
    re.M | re.S,
)
GENERATED = re.compile(r"(.*/)?(gallery/\w+|reference/(api(-\w+)*|errors|command-line))\.md")
"""Pages that docs/build.py makes; that links to them are alive is tested on the site, in tests/docs/test_site.py."""
SLOW = {
    "README",
    "kernel-sources",
    "describe-shapes",
    "verify-an-op",
    "kernel-header",
    "getting-started",
    "support-other-devices",
    "compile-and-export",
    "what-torch-gets-wrong",
    "write-a-backward",
    "pass-containers",
    "index",
    "when-the-gradient-is-not-the-derivative",
    "package-kernels",
}
CODE = re.compile(r"^```.*?^```", re.M | re.S)  # C++ in it may look like a link: [&](auto element)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")


def blocks_of(text: str) -> list[tuple[int, str, str | None]]:
    """The Python blocks of a document: the line before the code, the code, and the output if one is given."""
    return [(text.count("\n", 0, match.start("code")), match["code"], output(match)) for match in BLOCK.finditer(text)]


def output(match: re.Match[str]) -> str | None:
    """What a block prints with the installed torch; None if the document does not say."""
    is_newer = match["version"] is not None and TorchVersion(torch.__version__) >= match["version"]
    return match["newer"] if is_newer else match["output"]


@pytest.fixture(scope="module")
def runner():
    """A process that forks one for each document."""
    command = [sys.executable, str(ROOT / "tests" / "document_runner.py")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    with process:
        yield process
        process.stdin.close()


def disagreements(runner: subprocess.Popen[str], path: Path, text: str) -> list[str]:
    """What is wrong with a document's blocks; empty if they run and print what the document says."""
    runner.stdin.write(json.dumps([str(path), [(line, code) for line, code, _ in blocks_of(text)]]) + "\n")
    runner.stdin.flush()
    answer = json.loads(runner.stdout.readline())
    if "error" in answer:
        return [answer["error"]]
    return [
        f"{path.name}:{line}: the document says\n{expected}and the block prints\n{found}"
        for (line, _, expected), found in zip(blocks_of(text), answer["printed"], strict=True)
        if expected is not None and expected != found
    ]


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def with_blocks() -> list[Path]:
    """Return the documents that have Python blocks; those that compile C++ or graphs, or run every check, are slow."""
    found = [path for path in DOCUMENTS if blocks_of(path.read_text(encoding="utf-8"))]
    return [pytest.param(path, marks=pytest.mark.slow) if path.stem in SLOW else path for path in found]


@pytest.mark.parametrize("path", with_blocks(), ids=shown)
def test_the_blocks_of_a_document_run_and_print_what_it_says(runner, path):
    problems = disagreements(runner, path, path.read_text(encoding="utf-8"))

    assert problems == [], "\n".join(problems)


@each("path", DOCUMENTS)
def test_the_files_that_a_document_links_to_exist(path):
    links = LINK.findall(CODE.sub("", path.read_text(encoding="utf-8")))
    targets = [link for link in links if not GENERATED.fullmatch(link)]

    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_a_block_that_fails_is_noticed(runner):
    assert "ZeroDivisionError" in disagreements(runner, Path("planted.md"), "```python\n1 / 0\n```\n")[0]


def test_a_block_that_ends_its_process_is_noticed(runner):
    text = "```python\nimport os\n\nos.kill(os.getpid(), 11)\n```\n"

    assert ["the process ended with status 11"] == disagreements(runner, Path("planted.md"), text)


def test_documents_share_no_names(runner):
    disagreements(runner, Path("first.md"), "```python\nkept = 1\n```\n")

    assert "NameError" in disagreements(runner, Path("second.md"), "```python\nkept\n```\n")[0]


def test_an_output_that_differs_is_noticed(runner):
    text = "```python\nprint(1)\n```\n\nIt prints:\n\n```text\n2\n```\n"

    assert "planted.md:1" in disagreements(runner, Path("planted.md"), text)[0]


@each(("version", "expected"), [("2.2", "new\n"), ("99.0", "old\n")])
def test_an_output_may_depend_on_the_version_of_torch(version, expected):
    texts = f"It prints:\n\n```text\nold\n```\n\nFrom PyTorch {version} on it prints:\n\n```text\nnew\n```\n"

    assert expected == blocks_of(f"```python\nprint(1)\n```\n\n{texts}")[0][2]
