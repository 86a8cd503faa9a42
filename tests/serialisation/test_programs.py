"""Exported programs: loaded where the module of an op is imported, refused with its name where it is not."""

import io
import re
import sys
import zipfile

import pytest
import torch
from arguments import functions
from expecttest import assert_expected_inline
from messages.shown import message
from serialisation.processes import run
from torch import Tensor

from custom_autograd import custom_op, load_program, save_program
from custom_autograd.programs import modules_of

pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.11, when it loads


@custom_op("program::cube", reference=True)
def cube(x: Tensor) -> Tensor:
    return x * x * x


class Cubes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        return torch.cond(x.sum() > 0, cube, torch.sin, (self.linear(x),))


@pytest.fixture(scope="module")
def program():
    return torch.export.export(Cubes(), (torch.ones(3, 2),))


def saved(save, program):
    save(program, file := io.BytesIO())
    file.seek(0)
    return file


@pytest.mark.parametrize("save", [save_program, torch.export.save])
def test_a_program_comes_back(save, program):
    x = torch.rand(3, 2)

    assert torch.equal(program.module()(x), load_program(saved(save, program)).module()(x))


def test_torch_loads_what_was_saved_with_modules(program, tmp_path):
    save_program(program, tmp_path / "program.pt2", extra_files={"more.txt": "text"})
    extra = {"more.txt": ""}

    assert torch.export.load(tmp_path / "program.pt2", extra_files=extra) is not None
    assert "text" == extra["more.txt"]


def test_ops_within_branches_are_noted(program):
    assert {"program::cube": [__name__]} == modules_of(program)


@custom_op("program::doubled", reference=True)
def doubled(x: Tensor) -> Tensor:
    return x * 2


@doubled.inplace.register_kernel("cpu")
def _(x):
    x.mul_(2)


class Doubled(torch.nn.Module):
    def forward(self, x):
        return doubled.inplace.overload(x * 1)


@custom_op("program::tripled_", mutates_args=("x",))
def tripled_(x: Tensor) -> None:
    x.mul_(3)


class Tripled(torch.nn.Module):
    def forward(self, x):
        x = x * 1
        tripled_(x)
        return x


def decomposed():
    """A program in which the op is an argument of auto_functionalized."""
    return torch.export.export(Tripled(), (torch.ones(3),)).run_decompositions()


WRITING = {
    "doubled_": lambda: torch.export.export(Doubled(), (torch.ones(3),)),
    "tripled_": decomposed,
}
writing = pytest.mark.parametrize("name", WRITING)
quiet = pytest.mark.filterwarnings("ignore:.isinstance:FutureWarning")  # torch itself, in run_decompositions


@quiet
@writing
def test_an_op_that_writes_is_noted_with_the_module_that_declares_it(name):
    assert {f"program::{name}": [__name__]} == modules_of(WRITING[name]())


@quiet
@writing
def test_an_op_that_writes_is_missed_before_the_program_is_loaded(name):
    file = io.BytesIO()
    with zipfile.ZipFile(saved(save_program, WRITING[name]())) as old, zipfile.ZipFile(file, "w") as new:
        for part in old.namelist():
            content = old.read(part).replace(f"program.{name}".encode(), b"program.missing_")
            new.writestr(part, content.replace(f"m::{name}".encode(), b"m::missing_"))
    file.seek(0)

    assert_expected_inline(
        message(lambda: load_program(file)).replace(__name__, "MODULE"),
        """\
DeclarationError: program::missing_: the exported program in the file calls ops that are not declared in this process
  do         import MODULE before loading""",
    )


def edited(file, words):
    """The same archive with other words in it."""
    changed = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            for word, other in words.items():
                content = content.replace(word.encode(), other.encode())
            new.writestr(name, content)
    changed.seek(0)
    return changed


def absent(file):
    """The same archive, which calls an op that is declared nowhere."""
    return edited(file, {"program.cube": "absent.cube", "m::cube": "m::cubf"})


def test_without_a_note_the_op_is_named(program):
    assert_expected_inline(
        message(lambda: load_program(absent(saved(torch.export.save, program)))),
        """\
DeclarationError: absent::cube: the exported program in the file calls ops that are not declared in this process
  found      no note of the modules that declare 'absent::cube': save_program writes one
  do         import the module that declares it before loading""",
    )


# ------------------------------------------------------------------------------------------------------ bad arguments


def archive(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as new:
        new.writestr("p/models/model.json", content)
    file.seek(0)
    return file


UNREADABLE = {"no archive": lambda: io.BytesIO(b"no archive"), "no JSON": lambda: archive("{")}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_without_a_program_is_refused(name):
    with pytest.raises(ValueError, match=r"There is no exported program in the file, or it is damaged: .*\. load"):
        load_program(UNREADABLE[name]())


def test_a_path_without_a_program_is_named(tmp_path):
    (tmp_path / "program.pt2").write_text("no archive")
    with pytest.raises(ValueError, match=r"There is no exported program in '.*program\.pt2'"):
        load_program(tmp_path / "program.pt2")


@pytest.mark.parametrize("file", [None, 3, io.StringIO()], ids=["None", "number", "text"])
def test_what_is_no_binary_file_is_refused(file, program):
    with pytest.raises(TypeError, match="load_program takes a path, or a binary file to read, and not"):
        load_program(file)
    with pytest.raises(TypeError, match="save_program takes a path, or a binary file to write, and not"):
        save_program(program, file)


def test_what_is_no_program_is_refused():
    with pytest.raises(TypeError, match=r"save_program takes what torch\.export\.export returns, and not Linear"):
        save_program(torch.nn.Linear(1, 1), io.BytesIO())


@pytest.mark.parametrize("extra_files", [["more.txt"], {"more.txt": b"bytes"}, {1: "text"}])
def test_extra_files_that_are_no_text_are_refused(extra_files, program):
    with pytest.raises(TypeError, match="save_program takes extra_files= as text by name, and not"):
        save_program(program, io.BytesIO(), extra_files=extra_files)


def test_an_extra_file_of_the_name_that_is_taken_is_refused(program):
    with pytest.raises(ValueError, match=r"save_program writes 'custom_autograd\.json' itself"):
        save_program(program, io.BytesIO(), extra_files={"custom_autograd.json": "text"})


class Applied(torch.nn.Module):
    def forward(self, x):
        return functions.apply(x, torch.relu)


def test_a_program_runs_no_module_that_is_not_imported(imports_of):
    """The text of a program names functions: it could be edited to name any."""
    (imports_of / "evil.py").write_text("raise SystemExit('imported')")
    sys.path.insert(0, str(imports_of))
    file = saved(save_program, torch.export.export(Applied(), (torch.ones(2),)))
    program = load_program(edited(file, {"torch:relu": "evil:f"})).module()

    assert_expected_inline(
        re.sub("functions.py:[0-9]+", "FILE.py:LINE", message(lambda: program(torch.ones(2)))),
        """\
KernelError: statics::apply: the static argument 'function' names what cannot be found
  expected   'module:name' of a function or class in a module that is imported in this process
  found      'evil:f': its module is not imported in this process
  declared   FILE.py:LINE
  do         import evil first, if you trust what holds the name: a text does not decide what is imported""",
    )
    assert "evil" not in sys.modules


# ---------------------------------------------------------------------------------------------------- other processes


DECLARING = """
import torch
from torch import Tensor
from custom_autograd import custom_op

@custom_op("far::twice", reference=True)
def twice(x: Tensor) -> Tensor:
    return x * 2

class Twice(torch.nn.Module):
    def forward(self, x):
        return twice(x)
"""
SAVING = """
import torch, declares_far
from custom_autograd import save_program
save_program(torch.export.export(declares_far.Twice(), (torch.ones(2),)), "program.pt2")
"""
LOADING = "import torch\nfrom custom_autograd import load_program\n"
CATCHING = """
try:
    load_program("program.pt2")
except RuntimeError as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a program that another process has saved, and the module that declares its op."""
    found = tmp_path_factory.mktemp("program")
    (found / "declares_far.py").write_text(DECLARING)
    run(SAVING, folder=found)
    return found


@pytest.mark.slow
def test_a_process_that_imports_the_module_runs_the_program(folder):
    program = f"import declares_far\n{LOADING}print(load_program('program.pt2').module()(torch.ones(1, 2)[0]).tolist())"

    assert "[2.0, 2.0]\n" == run(program, folder=folder)


def test_a_process_that_does_not_import_it_is_told_what_to_import(folder):
    assert_expected_inline(
        run(LOADING + CATCHING, folder=folder),
        """\
DeclarationError: far::twice: the exported program in 'program.pt2' calls ops that are not declared in this process
  do         import declares_far before loading
""",
    )
