"""Run what a package does with the ops that it declares, and print the numbers; a program for subprocesses.

    python package_flows.py torchao           # with torch.library's ops
    python package_flows.py torchao replaced  # with this package's in their place

The last line of the output is JSON: whether each op is one of this package, and the value of each result.
It exits with NOT_IMPORTED if the package cannot be imported with this torch.
"""

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

NOT_IMPORTED = 77


def drawn(*shape, seed=0):
    """Return a float64 tensor of a fixed seed that requires a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def gradients(result, *tensors):
    """Return the gradients of the sum of squares of `result`."""
    return torch.autograd.grad(result.square().sum(), tensors)


def compiled(function):
    """Return `function` compiled as one graph, without code generation."""
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def torchao():
    """Log activations: an op that mutates its input, returns nothing, and is declared again to log to a file."""
    with importing():
        from torchao.prototype import quant_logger

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)).double()
    x = drawn(5, 4).detach()
    printed = io.StringIO()
    with torch.no_grad(), contextlib.redirect_stdout(printed), tempfile.TemporaryDirectory() as folder:
        quant_logger.add_activation_loggers(model)
        quant_logger.log_parameter_info(model)
        results = {"forward": model(x), "compiled": compiled(model)(x)}
        quant_logger.enable_log_stats_to_file(f"{folder}/log.csv")
        results["redefined"] = model(x)
        results["rows"] = Path(folder, "log.csv").read_text(encoding="utf-8")
    return ["quant_logger::log_tensor"], {**results, "version": x._version, "printed": printed.getvalue()}


def transformers():
    """Run a mixture of experts: an op whose backward is an op of its own, both registered by name."""
    with importing():
        from transformers.integrations import moe

    x, weight, offsets = drawn(6, 4), drawn(3, 4, 5, seed=1), torch.tensor([2, 2, 6], dtype=torch.int32)
    grouped = torch.ops.transformers.grouped_mm_fallback
    forward, by_dynamo = grouped(x, weight, offsets), compiled(grouped)(x, weight, offsets)
    experts = SimpleNamespace(
        num_experts=3,
        up_proj=drawn(3, 4, 5, seed=2),
        down_proj=drawn(3, 5, 4, seed=3),
        act_fn=torch.tanh,
        has_gate=False,
        has_bias=False,
        is_transposed=True,
        has_post_expert_norm=False,
        _is_expert_parallel=False,
    )
    chosen, weights = torch.tensor([[0, 2], [1, 0], [2, 1], [0, 1], [2, 0], [1, 2]]), drawn(6, 2, seed=4)
    layer = compiled(lambda x: moe.grouped_mm_experts_forward(experts, x, chosen, weights))(x)
    return ["transformers::grouped_mm_fallback", "transformers::grouped_mm_fallback_backward"], {
        "forward": forward,
        "backward": gradients(forward, x, weight),
        "compiled": by_dynamo,
        "compiled_backward": gradients(by_dynamo, x, weight),
        "layer": layer,
        "layer_backward": gradients(layer, x, weights, experts.up_proj, experts.down_proj),
    }


def fms():
    """Run paged attention and a mixture of experts: ops with kernels for several device types, one with a gradient."""
    with importing():
        from fms.triton.pytorch_ops import moe_mm
        from fms.utils.spyre import paged

    query, caches = drawn(2, 3, 4, 8), (drawn(4, 4, 2, 8, seed=1), drawn(4, 4, 2, 8, seed=2))
    lengths, pads, blocks = torch.tensor([5, 3]), torch.tensor([1, 0]), torch.tensor([[2, 0], [1, 3]])
    slots = torch.tensor([[8, 9, 10], [4, 5, 6]])
    detached = [tensor.detach() for tensor in (drawn(2, 3, 2, 8, seed=3), drawn(2, 3, 2, 8, seed=4), query, *caches)]
    key, value, query, *caches = detached
    attended = (query, *caches, 0.5, lengths, pads, blocks)
    x, experts, chosen = drawn(3, 4, seed=5), drawn(2, 5, 4, seed=6), torch.tensor([[0, 1], [1, 0], [1, 1]])
    mixed = moe_mm(x, experts, chosen, chosen, chosen, chosen, 2, 16)
    return ["spyre::paged_attn_store", "spyre::paged_attn_compute", "moe::moe_mm"], {
        "stored": paged.paged_attn_store(key, value, *caches, slots),
        "attended": paged.paged_attn_compute(*attended),
        "compiled": compiled(paged.paged_attn_compute)(*attended),
        "mixed": mixed,
        "backward": gradients(mixed, x),
    }


def moe_training():
    """Quantize for a mixture of experts: ops with `Tensor = None` and kernels for GPUs only, so the fakes run."""
    with importing():
        from torchao.prototype import moe_training  # noqa: F401

    x, offsets = torch.empty(64, 64, device="meta"), torch.empty(2, dtype=torch.int32, device="meta")
    names = ["mxfp8_quantize_2d_1x32_cutedsl", "mxfp8_quantize_2d_32x1_cutedsl", "mxfp8_quantize_2d_1x32_flydsl"]
    ops = [getattr(torch.ops.torchao, name) for name in names]
    results = {
        "omitted": [op(x) for op in ops],
        "given": [op(x, offs=offsets) for op in ops],
        "compiled": [compiled(op)(x, offs=offsets) for op in ops],
    }
    return [f"torchao::{name}" for name in names], results


def nvalchemiops():
    """Compute energies of atoms: ops of generated schemas, whose kernels hide their parameters behind `wraps`."""
    with importing():
        from nvalchemiops.torch import neighbors, spline
        from nvalchemiops.torch.interactions.electrostatics import coulomb

    positions, charges = drawn(5, 3).detach().frac().abs().requires_grad_(), drawn(5, seed=1)
    cell = torch.eye(3, dtype=torch.float64).mul(2).requires_grad_()

    def spread(positions):
        return spline.spline_spread(positions, charges, cell, (4, 4, 4))

    mesh, by_dynamo = spread(positions), compiled(spread)(positions)
    forces, *_ = recorded = torch.autograd.grad(mesh.square().sum(), (positions, charges, cell), create_graph=True)
    periodic = torch.ones(1, 3, dtype=torch.bool)
    found = neighbors.neighbor_list(positions.detach(), 3.0, cell.detach()[None], periodic, max_neighbors=100)
    energies = coulomb.coulomb_energy(
        positions, charges, cell[None], 3.0, 0.3, neighbor_matrix=found[0], neighbor_matrix_shifts=found[2]
    )
    ops = ["spline_spread", "spline_gather_gradient", "_naive_neighbor_matrix_pbc", "_coulomb_energy_matrix"]
    return [f"nvalchemiops::{name}" for name in ops], {
        "mesh": mesh,
        "backward": recorded,
        "second_backward": gradients(forces, positions, charges),
        "compiled": by_dynamo,
        "compiled_backward": gradients(by_dynamo, positions),
        "neighbors": [*found],
        "energies": energies,
        "forces": gradients(energies, positions, charges),
    }


@contextlib.contextmanager
def importing():
    """Exit with NOT_IMPORTED if an import of the body raises."""
    try:
        yield
    except ImportError as error:
        print(error, file=sys.stderr)
        sys.exit(NOT_IMPORTED)


def plain(value):
    """Return `value` with a list of numbers for each tensor, and what it is known by for one without numbers."""
    if isinstance(value, torch.Tensor) and value.is_meta:
        return str(value.dtype), value.shape, value.stride()
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def replace_torchs():
    """Put this package's `custom_op` in the place of torch.library's."""
    import custom_autograd

    torch.library.custom_op = custom_autograd.custom_op


def is_ours(name):
    """Return True if the op of this name was declared with this package."""
    from custom_autograd.registration import registry

    return registry.find_record(name) is not None


FLOWS = {
    "torchao": torchao,
    "torchao.prototype.moe_training": moe_training,
    "transformers": transformers,
    "fms": fms,
    "nvalchemiops": nvalchemiops,
}

if __name__ == "__main__":
    if sys.argv[2:] == ["replaced"]:
        replace_torchs()
    ops, results = FLOWS[sys.argv[1]]()
    values = {name: plain(value) for name, value in results.items()}
    print(json.dumps({"ours": {name: is_ours(name) for name in ops}, "values": values}))
