"""custom-autograd check|list|show: what they print, what they write, and with which exit code they end."""

import io
import json
import re
import subprocess
import sys

import pytest

import custom_autograd
from custom_autograd.cli import main
from custom_autograd.cli.terminal import print_report, print_results
from custom_autograd.verification.report import Result

OPS = """
import torch
from torch import Tensor

from custom_autograd.verification.harness.targets import Target, TargetArgument
from custom_autograd.schema.samples import Sample


@torch.library.custom_op("{namespace}::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


def samples(make):
    yield Sample(make(3)).named("three")


def right(x):
    return x * 2


def wrong(x):
    return x.detach() * 2


def broken_samples(make):
    raise ValueError("no luck")


RIGHT = Target("cli::right", right, right, (TargetArgument("x"),), samples=samples)
WRONG = Target("cli::wrong", wrong, wrong, (TargetArgument("x"),), samples=samples)
BROKEN = Target("cli::broken", right, right, (TargetArgument("x"),), samples=broken_samples)
"""


@pytest.fixture
def file(imports_of):
    namespace = f"cli_{abs(hash(str(imports_of)))}"
    (imports_of / "cli_ops.py").write_text(OPS.format(namespace=namespace))
    return imports_of / "cli_ops.py"


def test_check_of_a_right_op_ends_with_0_and_prints_a_line(file, capsys):
    code = main(["check", "cli_ops.py:RIGHT", "--checks", "schema,gradcheck"])

    out = capsys.readouterr().out
    assert 0 == code
    assert "cli::right: 2 passed\n" == out


def test_check_of_a_wrong_op_ends_with_1_and_says_why(file, capsys):
    code = main(["check", "cli_ops:WRONG", "--checks", "gradcheck", "-q"])

    out = capsys.readouterr().out
    assert 1 == code
    assert "FAILED cli::wrong: gradcheck, on three" in out
    assert "it is silently zero" in out


def test_quiet_check_of_a_right_op_prints_nothing(file, capsys):
    assert 0 == main(["check", "cli_ops:RIGHT", "--checks", "gradcheck", "--quiet"])
    assert ("", "") == tuple(capsys.readouterr())


def test_check_writes_every_document(file, capsys):
    arguments = ["--json", "r.json", "--html", "r.html", "--markdown", "r.md", "--junit", "r.xml"]
    main(["check", "cli_ops.py:RIGHT", "--checks", "gradcheck", "--dtype", "float64", "--seed", "7", *arguments])
    capsys.readouterr()

    assert json.loads((file.parent / "r.json").read_text())["ok"]
    assert "cli::right" in (file.parent / "r.html").read_text()
    assert "| cli::right | gradcheck | passed |" in (file.parent / "r.md").read_text()
    assert 'classname="cli::right" name="gradcheck: three"' in (file.parent / "r.xml").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["check", "nowhere"], "nowhere: there is no module, file or folder of that name"),
        (["check", "no.where"], "no.where: there is no module, file or folder of that name"),
        (["check", "./nowhere"], "./nowhere: there is no module, file or folder of that name"),
        (["check", "no:where/cli_ops.py"], "no:where/cli_ops.py: there is no such file"),
        (["check", "nowhere.py"], "nowhere.py: there is no such file"),
        (["check", "cli_ops:RIHGT"], "cli_ops has no attribute 'RIHGT'; did you mean 'RIGHT'?"),
        (["check", "cli_ops:torhc"], "cli_ops has no attribute 'torhc'\n"),
        (["check", "cli_ops.py"], "::doubled: record calls with --record SCRIPT, or give some in Python"),
        (["check", "cli_ops:RIGHT", "--checks", "gradient"], "there is no check called 'gradient'"),
        (["check", "cli_ops:RIGHT", "--checks", ""], "no check is named"),
        (["check", "cli_ops:RIGHT", "--dtype", "float31"], "float31: there is no dtype of that name"),
        (["check", "cli_ops:RIGHT", "--device", "toaster"], "toaster: there is no device type of that name"),
        (["check", "cli_ops:RIGHT", "--device", "xla"], "xla: there is no such device here"),
        (["check", "cli_ops:RIGHT", "--device", "cpu:9"], "cpu:9: there is no such device here"),
        (["check", "cli_ops:BROKEN"], "cli::broken: its samples cannot be made: ValueError: no luck"),
        (["check", "cli_ops:RIGHT", "--checks", "schema", "--json", "no/where.json"], "No such file or directory"),
        (["check", "json"], "json: no ops and no Functions are defined there"),
        (["list", "empty"], "empty: no ops are declared there"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_ends_with_2_and_one_sentence(file, capsys, arguments, sentence):
    (file.parent / "empty").mkdir()
    code = main(arguments)

    err = capsys.readouterr().err
    assert 2 == code
    assert err.startswith("custom-autograd: ")
    assert sentence in err
    assert "Traceback" not in err


def test_target_that_raises_when_imported_is_named_with_its_last_frames(file, capsys):
    (file.parent / "broken_ops.py").write_text("import torch\n\ndef fail():\n    raise KeyError('k')\n\nfail()\n")
    code = main(["check", "broken_ops.py"])

    err = capsys.readouterr().err
    assert 2 == code
    assert "broken_ops.py: importing it raises KeyError: 'k'" in err
    assert "broken_ops.py:4 fail: raise KeyError('k')" in err


def test_module_that_imports_something_missing_is_told_from_a_missing_module(file, capsys):
    (file.parent / "needy_ops.py").write_text("import something_that_is_not_there\n")
    code = main(["check", "needy_ops"])

    assert 2 == code
    assert "needy_ops: importing it raises ModuleNotFoundError" in capsys.readouterr().err


def test_list_shows_each_op_with_its_place(file, capsys):
    code = main(["list", "cli_ops.py"])

    assert 0 == code
    assert any(line.endswith("::doubled, cli_ops.py:9") for line in capsys.readouterr().out.splitlines())


def test_list_names_the_kernels_in_the_order_in_which_they_are_tried(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels_ops.py").write_text(
        "from custom_autograd import custom_op\n"
        "op = custom_op('cli::kernels', lambda x: x + 1, schema='(Tensor x) -> Tensor')\n"
        "op.register_kernel('cpu', lambda x: x + 1, name='slow')\n"
        "op.register_kernel('cpu', lambda x: x + 1, name='fast', priority=1)\n"
    )
    code = main(["list", "kernels_ops.py"])

    assert 0 == code
    assert "  kernels     cpu 'fast', cpu 'slow', default\n" in capsys.readouterr().out


def test_list_of_a_folder_finds_the_files_directly_in_it(file, capsys):
    (file.parent / "deeper").mkdir()
    (file.parent / "deeper" / "bad.py").write_text("raise ValueError  # custom_op")
    (file.parent / "test_bad.py").write_text("raise ValueError  # custom_op")
    (file.parent / "other.py").write_text("raise ValueError")
    code = main(["list", str(file.parent)])

    assert 0 == code
    assert "::doubled" in capsys.readouterr().out


def test_show_prints_what_is_known(file, capsys):
    code = main(["show", "cli_ops:doubled"])

    out = capsys.readouterr().out
    assert 0 == code
    assert "  schema\n" in out
    assert "::doubled(Tensor x) -> Tensor" in out
    assert "  samples\n    none are registered (register_samples)" in out


def test_one_file_is_imported_once_whatever_it_is_called(file, capsys):
    assert 0 == main(["list", "cli_ops", "cli_ops.py", str(file)])
    assert 3 == capsys.readouterr().out.count("::doubled")


def test_no_command_ends_with_2_and_the_usage(capsys):
    assert 2 == main([])
    assert "usage: custom-autograd" in capsys.readouterr().err


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])

    out = capsys.readouterr().out
    assert 0 == caught.value.code
    assert all(f"    {name} " in out for name in ("check", "list", "show"))


@pytest.mark.parametrize("arguments", [["--version"], ["list", "--help"]], ids=["version", "help"])
def test_the_package_runs_as_the_command(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    command = [sys.executable, "-m", "custom_autograd", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (caught.value.code, capsys.readouterr().out) == (process.returncode, process.stdout)


def test_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])

    assert f"custom-autograd {custom_autograd.__version__}\n" == capsys.readouterr().out


def test_help_does_not_import_torch():
    code = "import sys; from custom_autograd.cli import main\ntry: main(['check', '--help'])\nexcept SystemExit: pass\n"
    code += "print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "False" == out.splitlines()[-1]


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


TABLE_AND_DETAILS = """\
┏━━━━━━━┳━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━━┓
┃ op    ┃ check ┃ status  ┃ samples   ┃
┡━━━━━━━╇━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━┩
│ ns::f │ fake  │ passed  │ 1 passed  │
│       │ vmap  │ skipped │ 1 skipped │
├───────┼───────┼─────────┼───────────┤
│ ns::g │ fake  │ failed  │ 1 failed  │
└───────┴───────┴─────────┴───────────┘

FAILED ns::g: fake, on [small]
  says [3]

not looked at
  vmap: no [rule] (ns::f)

ns::f: 1 passed, 1 not looked at
ns::g: 1 failed
2 ops: 1 passed, 1 failed, 1 not looked at
"""


def test_on_a_terminal_the_table_of_a_verbose_run_is_followed_by_the_rest(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    results = [
        Result("ns::f", "fake", "[small]", "passed"),
        Result("ns::f", "vmap", "[small]", "skipped", "no [rule]"),
        Result("ns::g", "fake", "[small]", "failed", "says [3]"),
    ]
    print_results(results, terminal, is_verbose=True)

    assert TABLE_AND_DETAILS == re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())


@pytest.mark.parametrize(
    ("variables", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_on_a_terminal_only_and_never_with_no_color(monkeypatch, variables, is_coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    terminal, file = Terminal(), io.StringIO()
    print_report("f  gradcheck  failed", terminal)
    print_report("f  gradcheck  failed", file)

    assert is_coloured == ("\x1b[" in terminal.getvalue())
    assert "f  gradcheck  failed\n" == file.getvalue()
