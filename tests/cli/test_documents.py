"""What commands print and write while disks are full, folders are missing, and streams are closed."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from custom_autograd.cli import main

OPS = """
import torch
from custom_autograd import Sample, custom_op

@custom_op("documents{number}::doubled", reference=True)
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@doubled.register_backward
def _(grad):
    return grad * 3

@doubled.register_samples
def _(make):
    yield Sample(make(3))
"""


@pytest.fixture
def file(imports_of):
    path = imports_of / "documents.py"
    path.write_text(OPS.format(number=abs(hash(str(imports_of)))))
    return path


COMMANDS = {
    "check": ["check", "documents.py", "--checks", "directional", "--json"],
    "mutate": ["mutate", "documents.py", "--checks", "directional", "--json"],
    "bench": ["bench", "documents.py", "--seconds", "0", "--json"],
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize(
    ("name", "reason"), [("no/such.json", "No such file or directory"), (".", "Is a directory")], ids=["none", "folder"]
)
def test_a_document_that_cannot_be_written_ends_a_command_before_its_work(arguments, name, reason, imports_of, capsys):
    """The module is not even looked for: it is not there."""
    code = main([*arguments, name])

    assert (2, ("", f"custom-autograd: {name}: {reason}\n")) == (code, capsys.readouterr())


@pytest.mark.parametrize("command", ["check", "bench"])
def test_findings_are_printed_although_the_disk_is_full(command, file, monkeypatch, capsys):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")  # Python names no file

    monkeypatch.setattr(Path, "write_text", fail)
    code = main([*COMMANDS[command], "found.json"])
    printed = capsys.readouterr()

    assert code == 2
    assert "doubled" in printed.out
    assert printed.err.endswith("custom-autograd: found.json: No space left on device\n")


def run(file, *arguments, stdout):
    command = [sys.executable, "-m", "custom_autograd", *arguments]
    return subprocess.run(command, cwd=file.parent, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


def test_a_document_is_written_although_the_reader_of_the_output_is_gone(file):
    """`custom-autograd check ... | head` is not a success: findings may be among what was not read."""
    reader, writer = os.pipe()
    os.close(reader)
    ended = run(file, *COMMANDS["check"], "found.json", stdout=writer)
    os.close(writer)

    assert ended.returncode == 141
    assert "BrokenPipeError" not in ended.stderr
    assert "failed" in {result["status"] for result in json.loads((file.parent / "found.json").read_text())["results"]}


@pytest.mark.slow
def test_closed_streams_do_not_end_a_command(file):
    script = 'exec "$@" >&- 2>&-'
    command = ["/bin/sh", "-c", script, "sh", sys.executable, "-m", "custom_autograd", *COMMANDS["check"], "found.json"]
    code = subprocess.run(command, cwd=file.parent, check=False).returncode

    assert code == 1
    assert json.loads((file.parent / "found.json").read_text())["results"]


@pytest.mark.slow
def test_output_in_ascii_escapes_what_it_cannot_write(file):
    """In a process whose locale or PYTHONIOENCODING is ASCII; the µ of µs is in every table of bench."""
    text = file.read_text(encoding="utf-8").replace("yield Sample(make(3))", "yield Sample(make(3)).named('größe')")
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "custom_autograd", "bench", "documents.py", "--seconds", "0"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, cwd=file.parent, env=environment, capture_output=True, check=False)

    assert ended.returncode == 0
    assert b"gr\\xf6\\xdfe" in ended.stdout


def test_output_is_escaped_where_python_chose_surrogateescape(file, monkeypatch):
    """In the locale C it does, and that raises for a name that is not in ASCII too."""
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, "ascii", "surrogateescape", write_through=True))
    text = file.read_text(encoding="utf-8").replace("yield Sample(make(3))", "yield Sample(make(3)).named('größe')")
    file.write_text(text, encoding="utf-8")

    assert 1 == main(["check", str(file), "--checks", "directional"])
    assert b"gr\\xf6\\xdfe" in printed.getvalue()
