"""`check` over the Functions of GPyTorch 1.15, snnTorch 1.0 and TorchOpt 0.7: what it finds there is true."""

import importlib
from operator import attrgetter

import pytest
import torch

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.check import check

CHECKS = [
    "contract", "cotangents", "determinism", "directional", "gradcheck", "layouts", "process_state", "second_order",
]  # fmt: skip

SECOND = "the backward cannot be differentiated twice, and is not marked once_differentiable: zeros"
SPIKE = "the surrogate gradient of a spike"


def squared_distance(x, y):
    return (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1)


def of_kernel(make, *rest):
    x, y = make(4, 2, requires_grad=False), make(3, 2, requires_grad=False)
    return [Sample(x, y, make(1, 1, low=0.5, high=2.0), *rest)]


def of_matern(make):
    return [sample.keeping("nu") for nu in (0.5, 1.5, 2.5) for sample in of_kernel(make, nu, torch.cdist)]


def of_quadratic(make):
    x = make(3, 3, requires_grad=False)
    return [Sample((x + x.mT).requires_grad_(), make(3, 5))]


def of_adam(make):
    return [Sample(make(4), make(4, low=0.5, high=2.0), (0.9, 0.99, 1e-8, 1e-3, 3))]


def spike(*rest):
    return lambda make: [Sample(make(4, 3), *rest)]


SURROGATES = {
    "StraightThroughEstimator": spike(),
    "Triangular": spike(1.0),
    "FastSigmoid": spike(25),
    "ATan": spike(2.0),
    "Heaviside": spike(),
    "Sigmoid": spike(25),
    "SpikeRateEscape": spike(1, 25),
    "StochasticSpikeOperator": spike(0, 0.2),
    "LeakySpikeOperator": spike(0.1),
    "SparseFastSigmoid": spike(25, 1),
}
"""Function of snntorch.surrogate -> samples."""

FUNCTIONS = {
    "gpytorch.functions.rbf_covariance:RBFCovariance": lambda make: of_kernel(make, squared_distance),
    "gpytorch.functions.matern_covariance:MaternCovariance": of_matern,
    "gpytorch.functions._log_normal_cdf:LogNormalCDF": lambda make: [Sample(make(6, low=-1.9, high=-1.1))],
    "gpytorch.variational.large_batch_variational_strategy:QuadFormDiagonal": of_quadratic,
    "torchopt.accelerated_op.adam_op:AdamOp.UpdatesOp": of_adam,
    **{f"snntorch.surrogate:{name}": samples for name, samples in SURROGATES.items()},
}
"""Function -> samples."""

FOUND = {
    "RBFCovariance": {"second_order": SECOND},
    "MaternCovariance": {"second_order": SECOND},
    "LogNormalCDF": dict.fromkeys(("directional", "gradcheck"), "the backward is good to 0.1 %"),
    "QuadFormDiagonal": {"second_order": SECOND},
    "AdamOp.UpdatesOp": {
        "directional": "eps_root is added to the bias correction, and not under the root",
        "gradcheck": "the same",
    },
    "LeakySpikeOperator": dict.fromkeys(("contract", "gradcheck"), "the backward returns one gradient for two"),
}
"""Function -> check -> what is wrong there; docs/explanation/what-check-found.md shows it without check."""


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # at the import of packages that are older than this torch
@pytest.mark.parametrize("path", FUNCTIONS)
def test_every_finding_is_known(path):
    module, _, name = path.partition(":")
    pytest.importorskip(module.partition(".")[0], reason="the package is not installed")
    function = attrgetter(name)(importlib.import_module(module))
    surrogate = SPIKE if module == "snntorch.surrogate" else None

    report = check(function, FUNCTIONS[path], checks=CHECKS, dtype=torch.float64, surrogate=surrogate)

    found = {row.check for row in report.results if row.is_finding}
    assert FOUND.get(name, {}).keys() == found, str(report)
