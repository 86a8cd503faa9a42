"""The public names, their parameters and their members, as docs/explanation/versions-and-deprecation.md promises them.

A line that disappears here is an API that is removed: it needs a DeprecationWarning first, for two minor versions.
`CustomOp` is held by tests/test_public_api.py.
"""

import importlib
import inspect
import textwrap

from expecttest import assert_expected_inline
from tables import each

NO_ANNOTATION = inspect.Parameter.empty


def described(module):
    """Return a line for each public name of a module: its parameters, and the public members of a class."""
    names = importlib.import_module(module).__all__
    lines = [line_of(name, getattr(importlib.import_module(module), name)) for name in sorted(names)]
    return "\n".join(textwrap.fill(line, 100, subsequent_indent="    ") for line in lines)


def line_of(name, value):
    if inspect.isclass(value) and name != "CustomOp":
        members = sorted(one for one in dir(value) if not one.startswith("_") and one not in dir(Exception))
        return f"{name}{names_of_parameters(value)}{': ' if members else ''}{', '.join(members)}"
    return f"{name}{parameters_of(value)}" if inspect.isfunction(value) else name


def names_of_parameters(kind):
    """Return what makes an object; errors are made by the package, and Triton's language is its own."""
    is_made_by_users = kind.__module__.startswith("custom_autograd") and not issubclass(kind, Exception)
    return f"({', '.join([*inspect.signature(kind.__init__).parameters][1:])})" if is_made_by_users else ""


def parameters_of(function):
    signature = inspect.signature(function)
    parameters = [one.replace(annotation=NO_ANNOTATION) for one in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=NO_ANNOTATION)


def test_the_names_of_custom_autograd():
    assert_expected_inline(
        described("custom_autograd"),
        """\
CheckError: declared, do, expected, found, op, problem, rule
CustomAutogradError: declared, do, expected, found, op, problem, rule
CustomOp
DeclarationError: declared, do, expected, found, op, problem, rule
FakeUnavailable: declared, do, expected, found, op, problem, rule
GradientError: declared, do, expected, found, op, problem, rule
GradientUnavailable: declared, do, expected, found, op, problem, rule
KernelError: declared, do, expected, found, op, problem, rule
RegistrationError: declared, do, expected, found, op, problem, rule
Report(results, sources, run): from_json, ok, raise_for_failures, results, run, sources, to_html,
    to_json, to_junit, to_markdown
Result(op, check, sample, status, message, seconds, code, cause, seed, script, accepted, measures,
    group, advice): accepted, advice, cause, check, code, group, is_finding, measures, message, op,
    sample, script, seconds, seed, status
Sample(args, kwargs): accepted, error, keeping, kept, kwargs, leaves, map, name, named, raises,
    tensors, with_arguments, with_tensors, xfail
VmapUnavailable: declared, do, expected, found, op, problem, rule
check(target, samples=None, *, checks=None, device=None, dtype=None, seed=0, raise_on_failure=False,
    isolated=True, surrogate=None, seconds=None)
checkpointing(save=(), recompute=())
custom_op(name, fn=None, /, *, mutates_args=(), device_types=None, schema=None, tags=None,
    outputs=None, hidden=(), non_differentiable=(), aliases=None, reference=False, static=(),
    inline=None, checkpoint=None, shapes=None, along=None, dtypes=None, flops=None, numbers=None,
    replace=False)
from_custom_op_def(definition, /)
from_function(function, name, /, *, samples=None)
inspect(recorded)
load_program(file)
on_backward_end(fn, when='success')
save_program(program, file, *, extra_files=None)
saving(policies)
through_dispatcher()
triton_op(name, fn=None, /, *, mutates_args=(), schema=None)
validation(level)
wrap_triton(triton_kernel, /)""",
    )


def test_the_names_of_graph():
    assert_expected_inline(
        described("custom_autograd.graph"),
        """\
GraphInspection(nodes): bytes_by_op, held_bytes, nodes, to_dot, to_html, to_json, to_svg, unread
InspectedNode(index, name, op, declared, next, tensors, values): declared, held_bytes, index, name,
    next, op, tensors, title, values
InspectedTensor(name, role, state, shape, dtype, device, bytes, held_bytes, is_leaf, same_as):
    bytes, device, dtype, held_bytes, is_leaf, name, role, same_as, shape, state
InspectedValue(name, text): name, text
SavedTensor(shape, dtype, device, nbytes): device, dtype, nbytes, shape
cast(dtype)
compressed(pack, unpack)
forbidden(why)
offload(*, pin=True)
op_of(node)
recorded(into)""",
    )


def test_the_names_of_kernels():
    assert_expected_inline(
        described("custom_autograd.kernels"),
        """\
CppKernel(source, function, fallback, flags, host): build, is_replaced, load, written_in
CudaKernel(source, function, fallback, flags, host): build, is_replaced, load, written_in
KernelUnavailable: declared, do, expected, found, is_late, op, problem, rule
KernelWarning
NumbaKernel(function, fallback, options): is_replaced, load
NumpyKernel(function): of_op
TritonKernel(function): compiled, function
cpp_kernel(source, function, *, fallback=None, flags=(), host=())
cuda_kernel(source, function, *, fallback=None, flags=(), host=())
numba_kernel(function=None, *, fallback=None, **options)
numpy_kernel(function)
tl
triton_kernel(function)""",
    )


def test_the_names_of_packaging():
    assert_expected_inline(described("custom_autograd.packaging"), """namespace(name, file)""")


def test_the_names_of_testing():
    assert_expected_inline(
        described("custom_autograd.testing"),
        """\
CheckCase(op, check, device, dtype, seed, part, label): check, device, dtype, label, narrowed, op,
    part, report, seed
Test
cases_of(*ops, checks=None, device=None)
parametrize_checks(*ops, checks=None, device=None)
record_calls(target)""",
    )


def test_the_names_of_extend():
    assert_expected_inline(
        described("custom_autograd.extend"),
        """\
Case(target, samples, seconds): samples, seconds, target
Check(args, kwargs): after, among, applies_to, asked, ends_others, further, group, is_for_errors,
    is_quick, most_samples, needs, parts, run, source, within
Finding(status, message, cause, measures, advice, shown): advice, cause, measures, message, shown,
    status
KernelSource(name, fallback): is_replaced, load
NothingToCheckError
PASSED
Sample(args, kwargs): accepted, error, keeping, kept, kwargs, leaves, map, name, named, raises,
    tensors, with_arguments, with_tensors, xfail
Target(name, call, full, arguments, overload, to_dispatcher, reference, reference_name, kernels,
    samples, location, may_alias, hidden, subject, source, fields_in_containers, surrogates,
    reference_surrogate, tangent_surrogate): argument_of, arguments, call, complete,
    fields_in_containers, full, hidden, is_composed, is_mutating, kernels, location, may_alias,
    name, name_of, overload, reference, reference_name, reference_surrogate, samples, source,
    subject, surrogates, tangent_surrogate, to_dispatcher, visible_reference, written_positions
call_on(function, sample)
copy(sample)
failed(message, *, cause='')
measured(**measures)
run(cases, checks, *, before=None, seed=0, on_result=None, on_start=None, is_explained=True)
skipped(reason, *, advice='')
target_of(value)""",
    )


@each("module", ["custom_autograd", "custom_autograd.graph"])
def test_a_name_that_is_removed_is_noticed(module, monkeypatch):
    before = described(module)
    names = importlib.import_module(module).__all__
    monkeypatch.setattr(importlib.import_module(module), "__all__", names[:-1])

    assert described(module) != before
