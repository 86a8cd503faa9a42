"""DTensors between real processes: collectives of gloo, in eager mode and compiled."""

import json
from pathlib import Path

import pytest
from serialisation.processes import start
from torch import distributed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.multi_rank,
    pytest.mark.skipif(not distributed.is_available(), reason="torch is built without distributed"),
]

RANKS = """
import json, os, sys, warnings
import torch
from torch import distributed

def tensors(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.rand(*shape, generator=generator, dtype=torch.float64)

def calls(ops):
    labels = torch.tensor([0, 1, 6, 2, 3, 5])
    return {
        "rows": (ops.rms_norm, (tensors(7, 4), tensors(4))),
        "lists": (ops.products, ([tensors(8, 4), tensors(5, 4)], tensors(4))),
        "written": (ops.add_, (tensors(8, 4), tensors(8, 4))),
        "keys": (ops.attention, (tensors(2, 3, 4), tensors(2, 7, 4), tensors(2, 7, 3))),
        "classes": (ops.cross_entropy, (tensors(6, 7), labels)),
        "offsets": (ops.dropout, (tensors(7, 3), 3)),
        "halos": (ops.smooth, (tensors(7, 3),)),
    }

def compiled(ops, mesh, backend):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    keys = [(tensors(2, 8, 4), Shard(1)), (tensors(2, 8, 3), Shard(1))]
    cases = [(ops.rms_norm, [(tensors(8, 4), Shard(0)), (tensors(4), Replicate())]),
             (ops.attention, [(tensors(2, 3, 4), Replicate()), *keys])]
    for op, arguments in cases:
        whole = [tensor.clone().requires_grad_() for tensor, _ in arguments]
        expected = op(*whole)
        expected.cos().sum().backward()
        placed = [distribute_tensor(tensor, mesh, [placement]).requires_grad_() for tensor, placement in arguments]
        found = torch.compile(lambda *given: op(*given).cos(), backend=backend, fullgraph=True)(*placed)
        found.sum().backward()
        torch.testing.assert_close(found.full_tensor(), expected.cos())
        for one, other in zip(placed, whole):
            torch.testing.assert_close(one.grad.full_tensor(), other.grad)
    return "right"

def work(rank, folder, tests, backends):
    sys.path.insert(0, tests)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = distributed.FileStore(folder + "/store", 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    from torch.distributed.device_mesh import init_device_mesh
    from custom_autograd import Sample
    from custom_autograd.verification.checks.sharding import PlacedCalls
    from custom_autograd.verification.harness.targets import target_of
    from sharding import sharded_ops as ops
    mesh, found = init_device_mesh("cpu", (2,)), {}
    for name, (op, arguments) in calls(ops).items():
        findings = PlacedCalls(target_of(op), Sample(*arguments), mesh, limit=24).findings()
        found[name] = [[finding.status, finding.message] for finding in findings]
    for backend in backends.split(","):
        try:
            found[backend] = compiled(ops, mesh, backend)
        except Exception as error:
            found[backend] = f"{type(error).__name__}: {error}"
    with open(f"{folder}/rank{rank}.json", "w") as stream:
        json.dump(found, stream)
    # NOTE: a thread of Gloo that drops a tensor while Python ends aborts the process, so Python does not end it
    os._exit(0)

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, sys.argv[1:], nprocs=2)
"""

CALLS = ("rows", "lists", "written", "keys", "classes", "offsets", "halos")
BACKENDS = ("aot_eager", "inductor")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each rank found; a process of gloo may abort at its end, when everything is written."""
    folder = tmp_path_factory.mktemp("ranks")
    start(RANKS, folder, Path(__file__).parents[1], ",".join(BACKENDS), folder=folder, is_script=True)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_do_not_depend_on_placements(name, found):
    for of_rank in found:
        assert [] == [message for status, message in of_rank[name] if status == "failed"]
        assert any(status == "passed" for status, _ in of_rank[name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_calls_are_those_of_eager_mode(backend, found):
    assert ["right", "right"] == [of_rank[backend] for of_rank in found]
