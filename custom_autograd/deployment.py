"""Ops where there is no Python: a library that defines an op by itself, and decompositions of exported programs.

op.build_library("libswish.so")     dlopen it, and torch's dispatcher knows the op; AOTInductor's runtime finds it there
program.run_decompositions(op.decompositions())     the program calls PyTorch's ops in place of the op

A library holds the op's C++ kernel, the op's schema and its name. What Python does around a kernel it cannot hold.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from typing import Any

from custom_autograd.core.errors import KernelUnavailable, RegistrationError
from custom_autograd.core.messages import quote, show
from custom_autograd.kernels.compilers import CppCompiler
from custom_autograd.kernels.cpp import CppKernel, definitions_in
from custom_autograd.kernels.cuda import CudaKernel
from custom_autograd.kernels.shared_library import Build
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private.definitions import ParsedValue, parse_schema


def build_library(record: OpRecord, path: str | os.PathLike[str], kernel: CppKernel | None = None) -> Path:
    """Build a library that registers an op with its C++ kernel when it is loaded; see `CustomOp.build_library`."""
    _require_path(record, path)
    kernel, layouts = _kernel_of(record) if kernel is None else (kernel, {})
    prepared = _prepared(record, layouts)
    _require_cpp(record, kernel)
    _require_defaults(record)
    _require_same_schema(record, kernel)
    name = record.declaration.name
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, f"{name.name}.cpp")
        source.write_text(_text_of(record, kernel, prepared), encoding="utf-8")
        flags = (*kernel.flags, f"-I{kernel.source.parent}")
        try:
            build = Build(source, flags, CppCompiler(), Path(folder))
            library = build.folder / f"{build.made()}.so"
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(library, path)
        except OSError as error:
            problem, do = "the library of the op cannot be built", "check the paths"
            expected, found = "a file that can be written, such as 'libop.so'", str(error)
            raise KernelUnavailable(str(name), problem, expected=expected, found=found, do=do) from error
    return Path(path)


def _text_of(record: OpRecord, kernel: CppKernel, prepared: dict[int, str]) -> str:
    """Return the source of the library."""
    name = record.declaration.name
    return WRAPPER.substitute(
        source=json.dumps(str(kernel.source), ensure_ascii=False),
        space=name.namespace,
        op=name.qualifier,
        definition=json.dumps(f"{name.qualifier}{record.declaration.schema}", ensure_ascii=False),
        function=kernel.function,
        prepared=" ".join(f"stack[{i}] = contiguous<{its}>(stack[{i}]);" for i, its in prepared.items()),
    )


def _prepared(record: OpRecord, layouts: Mapping[str, str]) -> dict[int, str]:
    """Return the C++ type of each argument that is made contiguous, by position, as Python does with layouts=."""
    prepared = {}
    for number, argument in enumerate(parse_schema(f"f{record.declaration.schema}")[0]):
        layout = layouts.get(argument.name)
        if layout is None:
            continue
        if layout not in CONTIGUOUS or argument.type not in TYPES or argument.is_written:
            raise record.declaration.error(
                RegistrationError,
                f"the layout of '{argument.name}' cannot be made without Python",
                expected=f"layouts= with {quote(CONTIGUOUS)}, of a tensor that is not written",
                found=f"{layout!r}, for {argument.type}" + (", which is written" if argument.is_written else ""),
                do="name a C++ function that takes any layout: kernel=cpp_kernel(...)",
            )
        prepared[number] = TYPES[argument.type]
    return prepared


def require_reference(record: OpRecord) -> Callable[..., Any]:  # Any: takes and returns what the schema declares
    """Return the op's reference, or raise if it has none; see `CustomOp.decompositions`."""
    reference = record.reference()
    if reference is None:
        problem = "the op has no reference, by which a program could do without it"
        do = "register one: @op.register_reference, or declare the op with reference=True"
        raise record.declaration.error(RegistrationError, problem, do=do)
    return reference


def _kernel_of(record: OpRecord) -> tuple[CppKernel, Mapping[str, str]]:
    """Return the C++ kernel for the CPU that is tried first, and its layouts; no Python function around one."""
    tried = [one for one in record.kernels.all() if one.device_type in ("cpu", None)]
    first = tried[0]
    refuse = record.declaration.origin(first.location).error
    if isinstance(first.given, CppKernel):
        if first.when is not None:
            problem = "the op's first kernel for the CPU has a condition, and a library would call it without"
            do = "name the C++ function that serves every call: kernel=cpp_kernel(...)"
            raise refuse(RegistrationError, problem, found=f"{first.label} with when=", do=do)
        return first.given, dict(first.layouts)
    names = [one.given.function for one in tried if isinstance(one.given, CppKernel)]
    raise refuse(
        RegistrationError,
        "the op has no C++ kernel that could run without Python",
        expected="op.register_kernel('cpu')(cpp_kernel(...)), without a Python function around it",
        found=f"{first.label}, a Python function" + (f"; after it {quote(names)}" if names else ""),
        do="name a C++ function that computes it, kernel=cpp_kernel(...), or decompose the op: op.decompositions()",
    )


def _require_path(record: OpRecord, path: object) -> None:
    """Raise unless a path is one."""
    if not isinstance(path, (str, os.PathLike)):
        problem, do = "'path' is not a path", 'name the file to write: op.build_library("libop.so")'
        expected = "str or os.PathLike"
        raise record.declaration.error(RegistrationError, problem, expected=expected, found=show(path), do=do)


def _require_cpp(record: OpRecord, kernel: object) -> None:
    """Raise unless a kernel is a C++ function, whose source is there."""
    refuse = record.declaration.origin().error
    if not isinstance(kernel, CppKernel) or isinstance(kernel, CudaKernel):
        problem = "'kernel' is not a C++ function for the CPU"
        do = 'pass the function of a source: kernel=cpp_kernel("source.cpp", "function")'
        raise refuse(RegistrationError, problem, expected="cpp_kernel(...)", found=show(kernel), do=do)
    if not kernel.source.is_file():
        problem = f"the source of '{kernel.function}' cannot be read"
        do = "check the path; a wheel has the source if its build includes it"
        raise refuse(KernelUnavailable, problem, expected="a C++ file", found=str(kernel.source), do=do)


def _require_defaults(record: OpRecord) -> None:
    """Raise if only Python fills in a default, because schemas cannot say it: without Python it would be None."""
    schema = record.declaration.schema
    for own, its in zip(schema.arguments, parse_schema(f"f{schema}")[0], strict=True):
        if own.has_default and own.default is not None and its.default is None and not own.is_filled:
            raise record.declaration.error(
                RegistrationError,
                f"the default of '{own.name}' is not that of the library: no schema can say it",
                expected="a number, or a text of letters, digits, spaces and any of _.:/+-",
                found=show(own.default),
                do="change the default, or decompose the op: op.decompositions()",
            )


def _require_same_schema(record: OpRecord, kernel: CppKernel) -> None:
    """Raise unless a C++ function takes and returns what the op does, by position; names and defaults are the op's."""
    refuse = record.declaration.origin(str(kernel.source)).error
    definition = definitions_in(kernel.source).get(kernel.function)
    if definition is None:
        problem = f"{kernel.source.name} does not show the schema of '{kernel.function}'"
        raise refuse(RegistrationError, problem, do=f'write it as one literal: m.def("{kernel.function}(...) -> ...")')
    own, its = (parse_schema(f"f{one}") for one in (str(record.declaration.schema), definition))
    for kind, ours, theirs in zip(("argument", "result"), own, its, strict=True):
        for number in range(max(len(ours), len(theirs))):
            expected, found = _type_at(ours, number), _type_at(theirs, number)
            if expected != found:
                raise refuse(
                    RegistrationError,
                    f"the C++ function '{kernel.function}' is not the op: {kind} {number + 1} differs",
                    expected=f"{expected} {ours[number].name}".rstrip() if number < len(ours) else expected,
                    found=found,
                    do="give the function the op's schema, or decompose the op: op.decompositions()",
                )


def _type_at(values: tuple[ParsedValue, ...], number: int) -> str:
    """Return the type at a position as the stable ABI passes it: a SymInt is an int."""
    if number >= len(values):
        return f"no {number + 1}."
    value = values[number]
    return value.type.replace("SymInt", "int") + (", which is written" if value.is_written else "")


TYPES = {"Tensor": "Tensor", "Tensor?": "std::optional<Tensor>"}
"""Schema type -> the type in C++ of arguments that a library makes contiguous."""
CONTIGUOUS = ("contiguous", "contiguous_rows")

WRAPPER = Template("""\
#include $source
#include <optional>
#include <stdexcept>

namespace {

using torch::stable::Tensor;

Tensor laid_out(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

std::optional<Tensor> laid_out(const std::optional<Tensor>& tensor) {
  return tensor ? std::optional(laid_out(*tensor)) : tensor;
}

template <typename T>
[[maybe_unused]] StableIValue contiguous(StableIValue value) {
  return torch::stable::detail::from(laid_out(torch::stable::detail::to<T>(value)));
}

// The kernel that the source has registered in a namespace of its own, which is the op's kernel too.
void (*kernel_of_op(const char* key))(StableIValue*, uint64_t, uint64_t) {
  for (const auto& one : custom_autograd::addresses())
    if (one.name == "$function" && one.key == key) return one.kernel;
  throw std::runtime_error("'$function' has no kernel for the CPU");
}

void run(StableIValue* stack, uint64_t arguments, uint64_t results) {
  static const auto kernel = kernel_of_op("CPU");
  $prepared
  kernel(stack, arguments, results);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT($space, m) {
  m.def($definition);
}

STABLE_TORCH_LIBRARY_IMPL($space, CPU, m) {
  m.impl("$op", run);
}
""")
