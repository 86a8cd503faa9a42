"""What the package promises: its names, and the parameters of what it exports."""

import inspect
import subprocess
import sys

import pytest
import torch
from tables import each

import custom_autograd
from custom_autograd import CustomOp, check, custom_op, triton_op, wrap_triton
from python_server import run_python

NO_DEFAULT = inspect.Parameter.empty
MEMBERS = vars(CustomOp)


def shape(function):
    """The parameters of a function without their annotations."""
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def test_all_is_sorted_and_complete():
    public = {name for name in dir(custom_autograd) if not name.startswith("_")}
    modules = {name for name in public if inspect.ismodule(getattr(custom_autograd, name))}
    exported = set(custom_autograd.__all__)

    assert sorted(exported) == list(custom_autograd.__all__)
    assert exported <= public
    assert {name for name in public - exported - modules if not name.startswith("_")} <= {"TYPE_CHECKING", "importlib"}


@each("name", custom_autograd.__all__)
def test_every_exported_name_is_there_and_says_what_it_is(name):
    assert inspect.getdoc(getattr(custom_autograd, name))


def test_a_name_that_is_not_exported_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'custom_opp'"):
        custom_autograd.custom_opp  # noqa: B018 - reading it is the question


def test_a_star_import_brings_the_exported_names():
    scope = {}
    exec("from custom_autograd import *", scope)

    assert set(custom_autograd.__all__) == {name for name in scope if not name.startswith("__")}


SIGNATURES = {
    "register_kernel": (
        "(self, device_types, fn=None, /, *, name=None, when=None, priority=0, layouts=None, "
        "inline=False, replace=False)"
    ),
    "register_fake": "(self, fn=None, /, *, replace=False)",
    "register_reference": "(self, fn=None, /, *, surrogate=None, replace=False)",
    "register_backward": (
        "(self, fn=None, /, *, once_differentiable=False, materialize_grads=True, saving=None, clear_saved=False, "
        "surrogate=None, replace=False)"
    ),
    "register_grad": (
        "(self, *inputs, once_differentiable=False, materialize_grads=True, surrogate=None, replace=False)"
    ),
    "register_jvp": "(self, fn=None, /, *, surrogate=None, replace=False)",
    "register_autograd": "(self, backward, /, *, setup_context=None, surrogate=None, replace=False)",
    "register_vmap": "(self, func=None, *, replace=False)",
    "register_autocast": "(self, device_type, cast_inputs, *, output=None, replace=False)",
    "register_effect": "(self, effect)",
    "register_flops": "(self, fn=None, /, *, backward=None, replace=False)",
    "register_sharding": "(self, dim, fn=None, /, *, arguments=None, replace=False)",
    "register_shapes": "(self, fn=None, /, *, dtypes=None, flops=None, numbers=None, replace=False)",
    "register_torch_dispatch": "(self, torch_dispatch_class, fn=None, /, *, replace=False)",
    "register_samples": "(self, fn=None, /, *, replace=False)",
    "set_kernel_enabled": "(self, device_type, enabled=True)",
    "use_kernel": "(self, name)",
    "build_library": "(self, path, *, kernel=None)",
    "decompositions": "(self)",
    "capabilities": "(self)",
    "coverage": "(self)",
    "check": (
        "(self, samples=None, *, checks=None, device=None, dtype=None, seed=0, raise_on_failure=True, isolated=True, "
        "seconds=None)"
    ),
}
PROPERTIES = {
    *(
        "name",
        "schema",
        "overload",
        "function",
        "python_function",
        "source",
        "kernels",
        "reference",
        "validation",
        "inplace",
        "out",
    ),
}


def test_an_op_has_these_members_and_no_others():
    public = {name for name in MEMBERS if not name.startswith("_")}

    assert set(SIGNATURES) | PROPERTIES == public
    assert all(isinstance(MEMBERS[name], property) for name in PROPERTIES)


@each(("name", "expected"), SIGNATURES.items())
def test_a_method_takes(name, expected):
    assert expected == shape(MEMBERS[name])


@each("name", [*SIGNATURES, *sorted(PROPERTIES)])
def test_every_member_says_what_it_is(name):
    assert inspect.getdoc(MEMBERS[name])


def test_custom_op_takes():
    expected = (
        "(name, fn=None, /, *, mutates_args=(), device_types=None, schema=None, tags=None, outputs=None, hidden=(), "
        "non_differentiable=(), aliases=None, reference=False, static=(), inline=None, checkpoint=None, "
        "shapes=None, along=None, dtypes=None, flops=None, numbers=None, replace=False)"
    )

    assert expected == shape(custom_op)


def test_triton_op_takes_what_torchs_does():
    assert "(name, fn=None, /, *, mutates_args=(), schema=None)" == shape(triton_op)
    assert list(inspect.signature(torch.library.triton_op).parameters) == list(inspect.signature(triton_op).parameters)
    assert wrap_triton is torch.library.wrap_triton


def test_check_takes():
    options = "checks=None, device=None, dtype=None, seed=0, raise_on_failure=False, isolated=True, surrogate=None"
    expected = f"(target, samples=None, *, {options}, seconds=None)"

    assert expected == shape(check)


# ------------------------------------------------------------------------ what torch.library.custom_op has, we have


THEIRS = {name for name in vars(torch.library.CustomOpDef) if not name.startswith("_")}


def test_every_method_of_torchs_object_is_there():
    assert THEIRS <= {name for name in MEMBERS if not name.startswith("_")}


def test_every_parameter_of_torchs_custom_op_is_there():
    assert set(inspect.signature(torch.library.custom_op).parameters) <= set(inspect.signature(custom_op).parameters)


@each("name", sorted(THEIRS))
def test_a_call_that_torchs_method_takes_is_taken(name):
    theirs = list(inspect.signature(getattr(torch.library.CustomOpDef, name)).parameters.values())
    ours = inspect.signature(MEMBERS[name])
    positional = [p for p in theirs if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keywords = [p for p in theirs if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]

    ours.bind(*positional, **{p.name: p for p in keywords if p not in positional})
    required = [p for p in positional if p.default is NO_DEFAULT]
    ours.bind(*required, **{p.name: p for p in keywords if p.default is not NO_DEFAULT})


def test_importing_the_package_imports_no_torch():
    program = "import sys, custom_autograd; sys.exit('torch' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", program], check=False).returncode


def test_importing_the_decorator_loads_what_a_declaration_needs():
    program = """
import sys, torch
before = set(sys.modules)
from custom_autograd import custom_op
loaded = set(sys.modules) - before
rooms = ["verification", "cli", "native.native_calls", "kernels.cpp", "kernels.cuda", "kernels.numpy", "kernels.triton"]
rooms += ["kernels.compilers", "kernels.shared_library", "variants", "shapes.described", "sharding.local_calls"]
rooms += ["shapes.notation", "shapes.requirements", "shapes.size_checks", "sharding.combining"]
rooms += ["capabilities.derived_flops", "capabilities.vmap_loop"]
rooms += ["containers.argument_tree", "containers.adapters", "execution.drop_in", "execution.jvp", "execution.tangents"]
print([name for name in loaded if name.startswith(tuple(f"custom_autograd.{room}" for room in rooms))])
theirs = ("torch._dynamo", "torch._inductor", "torch.testing", "sympy", "numpy")
print([name for name in loaded if name.startswith(theirs)])
"""
    finished = run_python("-c", program)

    assert "[]\n[]\n" == finished.stdout, finished.stderr


@each("is_enabled", [True, False])
def test_an_import_is_not_interrupted_by_the_collector_and_leaves_it_as_it_was(is_enabled):
    program = f"""
import gc
import torch

gc.{"enable" if is_enabled else "disable"}()
collected = []
gc.callbacks.append(lambda phase, facts: collected.append(facts["generation"]))
from custom_autograd import custom_op

print(gc.isenabled(), 2 in collected)
"""
    finished = run_python("-c", program)

    assert f"{is_enabled} False\n" == finished.stdout
