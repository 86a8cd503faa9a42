"""custom-autograd migrate leaves encodings, line endings and other files as they are, and no file half written."""

import os
from pathlib import Path

import pytest

from custom_autograd.cli.main import main

pytest.importorskip("libcst", reason="libcst is not installed")

SOURCE = """\
# größe
from torch import Tensor
from torch.autograd import Function


class Square(Function):
    @staticmethod
    def forward(ctx, x: Tensor):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


square = Square.apply
"""

FILES = {
    "UTF-8": SOURCE.encode(),
    "CRLF": SOURCE.replace("\n", "\r\n").encode(),
    "byte-order mark": SOURCE.encode("utf-8-sig"),
    "latin-1": b"# -*- coding: latin-1 -*-\n" + SOURCE.encode("latin-1"),
}


@pytest.mark.parametrize("contents", FILES.values(), ids=FILES)
def test_a_file_that_is_changed_keeps_its_encoding_and_line_endings(contents, tmp_path):
    path = tmp_path / "square.py"
    path.write_bytes(contents)
    path.chmod(0o640)
    code = main(["migrate", str(path), "--write"])
    lines, before = path.read_bytes().splitlines(keepends=True), contents.splitlines(keepends=True)

    assert code == 0
    assert b"custom_op" in path.read_bytes()
    assert before[:2] == lines[:2]
    assert {line.endswith(b"\r\n") for line in before} == {line.endswith(b"\r\n") for line in lines}
    assert path.stat().st_mode & 0o777 == 0o640
    assert ["square.py"] == os.listdir(tmp_path)


OTHERS = {
    "mixed line endings": (b'x = 1\r\ny = 2\nz = """\r"""\n', 0, "0 converted, 0 not\n"),
    "no Python": (b"x = 1\ndef Function(\n", 1, "other.py:2: other: not converted: the file is not Python"),
    "another encoding": (
        SOURCE.encode("latin-1"),
        1,
        "other.py:1: other: not converted: the file is not in the encoding that it declares",
    ),
    "unknown encoding": (b"# -*- coding: nosuch -*-\n", 0, "0 converted, 0 not\n"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_that_is_not_changed_keeps_every_byte(name, tmp_path, capsys):
    contents, expected, printed = OTHERS[name]
    path = tmp_path / "other.py"
    path.write_bytes(contents)
    code = main(["migrate", str(tmp_path), "--write"])

    assert contents == path.read_bytes()
    assert expected == code
    assert printed in capsys.readouterr().out


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, capsys):
    path = tmp_path / "square.py"
    path.write_text(SOURCE, encoding="utf-8")

    def fail(self, contents):
        with self.open("wb") as file:
            file.write(contents[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    code = main(["migrate", str(path), "--write"])

    assert code == 2
    assert path.read_text(encoding="utf-8") == SOURCE
    assert ["square.py"] == os.listdir(tmp_path)
    assert capsys.readouterr().err == f"custom-autograd: {path}: No space left on device\n"
