"""Ops, the modules that hold them, reports, samples and errors survive pickle, copy, torch.save and JSON."""

# ruff: noqa: E501 - a message is as long as it is

import copy
import functools
import io
import pickle

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from serialisation.processes import run
from tables import each
from torch import Tensor

from custom_autograd import (
    CheckError,
    DeclarationError,
    GradientUnavailable,
    KernelError,
    Report,
    Result,
    Sample,
    custom_op,
)


@custom_op("stored::cube", reference=True)
def cube(x: Tensor) -> Tensor:
    return x * x * x


@custom_op("stored::silent")
def silent(x: Tensor) -> Tensor:
    return x * 1


class Cubes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.op = cube

    def forward(self, x):
        return self.op(self.linear(x))


def again(value):
    return pickle.loads(pickle.dumps(value))


# ------------------------------------------------------------------------------------------------------------ ops


@each("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_op_pickles_with_every_protocol(protocol):
    assert pickle.loads(pickle.dumps(cube, protocol)) is cube


def test_an_op_that_nobody_holds_is_made_again():
    data = pickle.dumps(custom_op("stored::dropped", lambda x: x * 1, schema="(Tensor x) -> Tensor"))

    assert "stored::dropped" == pickle.loads(data).name


def test_an_op_within_a_partial_pickles():
    assert 8.0 == again(functools.partial(cube, torch.tensor(2.0)))().item()


def test_the_call_of_an_op_pickles_once_it_was_called():
    cube(torch.ones(1))

    assert [8] == pickle.loads(pickle.dumps(cube.__call__))(torch.tensor([2])).tolist()


def test_the_generated_function_pickles():
    assert again(cube.function) is cube.function
    assert copy.deepcopy(cube.function) is cube.function


def test_an_op_whose_function_has_another_module_pickles_with_both():
    op = custom_op("stored::relu", torch.nn.functional.relu, schema="(Tensor x) -> Tensor", replace=True)

    assert ("torch.nn.functional", __name__) == op._record.declaration.modules
    assert again(op)._record is op._record


def test_an_op_that_was_replaced_does_not_pickle_as_its_successor():
    old = custom_op("stored::replaced", lambda x: x * 1, schema="(Tensor x) -> Tensor", replace=True)
    custom_op("stored::replaced", lambda x: x * 2, schema="(Tensor x) -> Tensor", replace=True)

    assert copy.deepcopy(old) is old
    assert_expected_inline(
        message(lambda: pickle.dumps(old)),
        """\
DeclarationError: stored::replaced: the op was replaced by another one of its name, and so it cannot be pickled: ops pickle by name
  declared   FILE.py:LINE
  do         pickle the op that has the name now, or declare this one under another""",
    )


def restored(name, *modules):
    function, _ = cube.__reduce__()
    return message(lambda: function(name, modules), DeclarationError)


def test_an_op_of_another_main_program():
    assert_expected_inline(
        restored("stored::absent", "__main__"),
        """\
DeclarationError: stored::absent: the op is not declared in this process
  found      an op that was declared in the program that pickled it, in its '__main__'
  do         declare it in a module that both programs import; in a script, outside of `if __name__ == '__main__'`""",
    )


def test_an_op_of_a_module_that_is_not_here():
    assert_expected_inline(
        restored("stored::absent", "not_installed.ops", "neither.here"),
        """\
DeclarationError: stored::absent: the op is not declared in this process
  found      not_installed.ops: No module named 'not_installed'; neither.here: No module named 'neither'
  do         import the module that declares it before unpickling""",
    )


def test_an_op_of_a_module_that_no_longer_declares_it():
    assert_expected_inline(
        restored("stored::absent", "json"),
        """\
DeclarationError: stored::absent: the op is not declared in this process
  found      module 'json' without it
  do         import the module that declares it before unpickling""",
    )


# -------------------------------------------------------------------------------------------------- torch.save


def test_a_module_that_holds_an_op_is_saved_and_loaded():
    module, x = Cubes(), torch.ones(2, requires_grad=True)
    torch.save(module, file := io.BytesIO())
    file.seek(0)
    loaded = torch.load(file, weights_only=False)

    assert torch.equal(module(x), loaded(x))
    assert torch.equal(*(torch.autograd.grad(one(x).sum(), x)[0] for one in (module, loaded)))


def test_weights_only_takes_the_state_and_refuses_the_module():
    module = Cubes()
    torch.save(module.state_dict(), state := io.BytesIO())
    torch.save(cube, op := io.BytesIO())
    state.seek(0)
    op.seek(0)

    assert torch.equal(module.linear.weight, torch.load(state, weights_only=True)["linear.weight"])
    with pytest.raises(pickle.UnpicklingError, match=r"Unsupported global: GLOBAL custom_autograd\.op\._restore"):
        torch.load(op, weights_only=True)


DECLARING = """
import torch
from torch import Tensor
from custom_autograd import custom_op

@custom_op("elsewhere::twice", reference=True)
def twice(x: Tensor) -> Tensor:
    return x * 2

class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.op = twice

    def forward(self, x):
        return self.op(x)
"""


@pytest.mark.slow
def test_another_process_imports_what_a_saved_module_needs(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "declares_elsewhere.py").write_text(DECLARING)
    save = "import torch, declares_elsewhere as d; torch.save({'op': d.twice, 'module': d.Twice()}, 'saved.pt')"
    load = "import torch; s = torch.load('saved.pt', weights_only=False); x = torch.ones(1)\n"
    load += "print(s['op'](x).item(), s['module'](x).item())"
    missing = "import torch, pickle\ntry:\n    torch.load('saved.pt', weights_only=False)\nexcept Exception as error:\n"
    missing += "    print(f'{type(error).__name__}: {error}')"
    run(save, folder=tmp_path, paths=[tmp_path / "mine"])

    assert "2.0 2.0\n" == run(load, folder=tmp_path, paths=[tmp_path / "mine"])
    assert_expected_inline(
        run(missing, folder=tmp_path),
        """\
DeclarationError: elsewhere::twice: the op is not declared in this process
  found      declares_elsewhere: No module named 'declares_elsewhere'
  do         import the module that declares it before unpickling
""",
    )


# -------------------------------------------------------------------------------------- reports, samples, errors


REPORT = Report(
    (
        Result(
            "a::b", "gradcheck", "0", "failed", "wrong", 0.5, "G01", "why", 3, "print()", "", {"error, float32": 2.0}
        ),
        Result("a::b", "fake", "1", "passed", measures={"x": float("inf"), "y": float("-inf")}),
    ),
    {"a::b": "source"},
)


def test_a_report_comes_back_from_json():
    assert REPORT == Report.from_json(REPORT.to_json())
    assert Report(()) == Report.from_json(Report(()).to_json())


def test_the_report_of_an_op_pickles_and_comes_back_from_json():
    report = cube.check([Sample(torch.rand(2, dtype=torch.float64, requires_grad=True))], checks=["gradcheck"])

    assert report == again(report) == Report.from_json(report.to_json())


def test_a_later_report_may_have_more_keys():
    text = REPORT.to_json().replace('"seed": 3', '"seed": 3, "colour": "red"')

    assert REPORT == Report.from_json(text)


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 99}'])
def test_what_is_no_report_is_refused(text):
    with pytest.raises(ValueError, match="this is not a report of format 1"):
        Report.from_json(text)


def test_a_sample_pickles():
    sample = Sample(torch.ones(2, requires_grad=True), [torch.zeros(1)], s=2.0).named("small").raises(KernelError)
    found = again(sample.xfail("fake", reason="later"))

    assert repr(sample) == repr(found)
    assert {"fake": "later"} == found.accepted
    assert found.args[0].requires_grad


def backward_of_silent():
    silent(torch.ones(2, requires_grad=True)).sum().backward()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (backward_of_silent, GradientUnavailable),
        (lambda: silent(torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged)), KernelError),
        (lambda: cube.check([]), CheckError),
        (lambda: custom_op("x", silent), DeclarationError),
    ],
)
def test_errors_pickle_with_their_message_and_notes(call, error):
    with pytest.raises(error) as caught:
        call()
    found = again(caught.value)

    assert (error, str(caught.value)) == (type(found), str(found))
    assert getattr(caught.value, "__notes__", None) == getattr(found, "__notes__", None)
