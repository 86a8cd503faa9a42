"""Sixty operators of PyTorch, drawn from its database with a fixed seed, each declared as a custom op of its own.

Run as a script, it checks those that are named, or all, and prints what was found.
"""

import json
import random
import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db

from custom_autograd import CustomOp, Report, Sample, check, custom_op

SEED = 13
COUNT = 60
SMALL = 300  # elements in a sample: a full Jacobian of more takes a minute
MOST_SAMPLES = 2
DTYPES = (torch.float32, torch.float64)


NAMES = [
    "log",
    "unsqueeze",
    "diagonal_scatter",
    "alias_copy",
    "dstack",
    "qr",
    "masked_fill",
    "square",
    "_segment_reduce.lengths",
    "fft.ihfftn",
    "round.decimals_0",
    "frexp",
    "real",
    "fft.rfft2",
    "fft.fftshift",
    "nn.functional.rms_norm",
    "quantile",
    "exp",
    "scatter_add",
    "round.decimals_3",
    "nn.functional.avg_pool1d",
    "nn.functional.hardsigmoid",
    "cumprod",
    "mm",
    "nn.functional.binary_cross_entropy_with_logits",
    "trapz",
    "nn.functional.selu",
    "resolve_neg",
    "scatter_reduce.mean",
    "nn.functional.glu",
    "linalg.cross",
    "nn.functional.normalize",
    "pow",
    "lerp",
    "scatter_reduce.amin",
    "erfc",
    "min.reduction_with_dim",
    "nn.functional.embedding",
    "conj",
    "nn.functional.pad.replicate",
    "softmax",
    "take",
    "nn.functional.layer_norm",
    "__rdiv__",
    "prod",
    "nn.functional.tanhshrink",
    "log_softmax.with_dtype",
    "cdist",
    "log10",
    "dsplit",
    "nn.functional.group_norm",
    "polar",
    "nn.functional.multilabel_margin_loss",
    "maximum",
    "nn.functional.pairwise_distance",
    "diagflat",
    "linalg.qr",
    "masked_scatter",
    "cartesian_prod",
    "cholesky_inverse",
]
"""What `draw` gives with torch 2.13: other versions have other operators in their database."""


def drawn() -> dict[str, object]:
    """Return the OpInfos of the operators, by name: all with torch 2.13, and those that a later torch still has."""
    able = {row.full_name: row for row in op_db}
    return {name: able[name] for name in NAMES if name in able}


def draw() -> dict[str, object]:
    """Draw operators from the installed torch: differentiable, small, and without side effects."""
    able = {row.full_name: row for row in op_db if row.supports_autograd and _takes(row)}
    names = sorted(able)
    random.Random(SEED).shuffle(names)
    chosen: dict[str, object] = {}
    for name in names:
        if len(chosen) == COUNT:
            break
        if _is_suitable(able[name]):
            chosen[name] = able[name]
    return chosen


def wrapped(name: str, info: object) -> CustomOp:
    """Declare an operator as a custom op with the arguments of its samples, and register these."""
    samples = samples_of(info)
    first, results = samples[0], _call(info, samples[0])
    parameters = [f"a{place}: {_annotation(value)}" for place, value in enumerate(first.args)]
    parameters += ["*"] * bool(first.kwargs) + [f"{key}: {_annotation(value)}" for key, value in first.kwargs.items()]
    given = [f"a{place}" for place in range(len(first.args))] + [f"{key}={key}" for key in first.kwargs]
    returned = "Tensor" if len(results) == 1 else f"tuple[{', '.join(['Tensor'] * len(results))}]"
    source = f"def function({', '.join(parameters)}) -> {returned}:\n    return call({', '.join(given)})\n"

    function, copied = info.op, _shared_places(info, first)

    def call(*args: object, **kwargs: object) -> object:
        result = function(*args, **kwargs)
        outputs = [result] if isinstance(result, Tensor) else result
        outputs = [output.clone() if place in copied else output for place, output in enumerate(outputs)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    scope = {"Tensor": Tensor, "torch": torch, "call": call}
    exec(source, scope)
    tags = (torch.Tag.nondeterministic_seeded,) if _draws(info, first) else ()
    op = custom_op(f"operators::{name.replace('.', '_')}", scope["function"], reference=True, tags=tags)
    op.register_samples(lambda make: samples)
    return op


def samples_of(info: object) -> list[Sample]:
    """Return the first calls of an operator that have the arguments of the first call, as PyTorch makes them."""
    made = [
        Sample(row.input, *row.args, **row.kwargs)
        for row in info.sample_inputs("cpu", torch.float32, requires_grad=True)
    ]
    alike = [row for row in made if _kind(row) == _kind(made[0])]
    return alike[:MOST_SAMPLES]


def _kind(sample: Sample) -> object:
    """Return what two calls of one op have in common."""
    kinds = [_annotation(value) for value in sample.args]
    return kinds, {key: _annotation(value) for key, value in sample.kwargs.items()}


def _annotation(value: object) -> str:
    """Return the annotation of an argument with this value.

    Raises:
        LookupError: if an op has no such argument.
    """
    if isinstance(value, (list, tuple)):
        inner = {_annotation(item) for item in value}
        if len(inner) == 1 and inner <= {"Tensor", "int", "float", "bool"}:
            return f"list[{inner.pop()}]"
        raise LookupError(value)
    for kind, text in ANNOTATIONS:
        if isinstance(value, kind):
            return text
    raise LookupError(value)


ANNOTATIONS = (
    (Tensor, "Tensor"),
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (str, "str"),
    (torch.dtype, "torch.dtype"),
)


def _call(info: object, sample: Sample) -> tuple[Tensor, ...]:
    """Return the results of an operator as a tuple."""
    return Sample(info.op(*sample.args, **sample.kwargs)).tensors()


def _shared_places(info: object, sample: Sample) -> frozenset[int]:
    """Return the places of the results that share memory with an argument or an earlier result."""
    seen = {tensor.untyped_storage().data_ptr() for tensor in sample.tensors()}
    places = set()
    for place, tensor in enumerate(_call(info, sample)):
        address = tensor.untyped_storage().data_ptr()
        places |= {place} if address in seen else set()
        seen.add(address)
    return frozenset(places)


def _draws(info: object, sample: Sample) -> bool:
    before = torch.get_rng_state()
    _call(info, sample)
    return not torch.equal(before, torch.get_rng_state())


def _takes(info: object) -> bool:
    return all(info.supports_dtype(dtype, "cpu") for dtype in DTYPES)


def _is_suitable(info: object) -> bool:
    """Return True if an op can be made of the operator: small dense tensors in and out, none written to."""
    try:
        samples = samples_of(info)
        tensors = [tensor for sample in samples for tensor in sample.tensors()]
        before = [tensor._version for tensor in tensors]
        results = [tensor for sample in samples for tensor in _call(info, sample)]
    except (LookupError, RuntimeError):
        return False
    is_written = before != [tensor._version for tensor in tensors]
    is_dense = all(tensor.layout == torch.strided for tensor in (*tensors, *results))
    is_small = all(sum(x.numel() for x in (*sample.tensors(), *_call(info, sample))) <= SMALL for sample in samples)
    return is_dense and is_small and not is_written and any(tensor.requires_grad for tensor in results)


def main(names: list[str]) -> None:
    """Check operators and print the findings; write one JSON line for each to the file in the first argument."""
    out = Path(names[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        infos = drawn()
        for name in names[1:] or infos:
            report: Report = check(wrapped(name, infos[name]))
            found = {row.check: row.message for row in report.results if row.is_finding}
            with out.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"name": name, "found": found}) + "\n")
            print(name, sum(row.seconds for row in report.results), found, flush=True)
            torch.compiler.reset()


if __name__ == "__main__":
    main(sys.argv[1:])
