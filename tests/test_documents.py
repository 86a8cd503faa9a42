"""Every Python block of README.md and docs/ runs on the CPU, and prints what the document says it prints.

The blocks of one file run in order in one fresh process and share their names, as a reader would run them.
A block followed by the line "It prints:" and a text block has exactly that output.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\nIt prints:\n\n```text\n(?P<output>.*?)^```\n)?", re.M | re.S)
CODE = re.compile(r"^```.*?^```", re.M | re.S)  # C++ in it may look like a link: [&](auto element)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")

# Runs blocks given on standard input, and reports what each printed; line numbers are those of the document.
RUNNER = """
import contextlib, io, json, linecache, sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")  # torch's own, at the first use of forward mode
path, blocks = json.load(sys.stdin)
names, printed = {"__name__": "__main__"}, []
for line, code in blocks:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        exec(compile("\\n" * line + code, path, "exec"), names)
    printed.append(text.getvalue())
json.dump(printed, sys.stdout)
"""


def blocks_of(text: str) -> list[tuple[int, str, str | None]]:
    """The Python blocks of a document: the line before the code, the code, and the output if one is given."""
    return [
        (text.count("\n", 0, match.start("code")), match["code"], match["output"]) for match in BLOCK.finditer(text)
    ]


def run_blocks(path: Path, text: str) -> subprocess.CompletedProcess[str]:
    blocks = json.dumps([str(path), [(line, code) for line, code, _ in blocks_of(text)]])
    return subprocess.run([sys.executable, "-c", RUNNER], input=blocks, capture_output=True, text=True, check=False)


def disagreements(path: Path, text: str) -> list[str]:
    """What is wrong with a document's blocks; empty if they run and print what the document says."""
    finished = run_blocks(path, text)
    if finished.returncode != 0:
        return [finished.stderr]
    printed = json.loads(finished.stdout)
    return [
        f"{path.name}:{line}: the document says\n{expected}and the block prints\n{found}"
        for (line, _, expected), found in zip(blocks_of(text), printed, strict=True)
        if expected is not None and expected != found
    ]


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if blocks_of(path.read_text())], ids=shown)
def test_the_blocks_of_a_document_run_and_print_what_it_says(path):
    problems = disagreements(path, path.read_text(encoding="utf-8"))

    assert problems == [], "\n".join(problems)


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_the_files_that_a_document_links_to_exist(path):
    targets = LINK.findall(CODE.sub("", path.read_text(encoding="utf-8")))

    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_a_block_that_fails_is_noticed():
    assert "ZeroDivisionError" in disagreements(Path("planted.md"), "```python\n1 / 0\n```\n")[0]


def test_an_output_that_differs_is_noticed():
    text = "```python\nprint(1)\n```\n\nIt prints:\n\n```text\n2\n```\n"

    assert "planted.md:1" in disagreements(Path("planted.md"), text)[0]
