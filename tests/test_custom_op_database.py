"""PyTorch's own database of custom ops, with only `torch.library.custom_op` replaced by ours, holds in every mode."""

import pytest

from custom_autograd import custom_op
from custom_op_database import REFERENCES, cells, load, run

DATABASE = load(custom_op, "database")
CELLS = cells(DATABASE)
OFTEN = set(list(DATABASE)[::3])
"""The ops whose compiled cells `make test` looks at; `make test-core` looks at all."""


def test_the_database_is_whole():
    """So that no op and no capability vanishes unseen."""
    assert set(REFERENCES) == set(DATABASE)
    assert 3 == sum(not info.check_batched_grad and info.supports_autograd for info in DATABASE.values())
    assert 9 * 15 - 3 + 2 * 3 == len(CELLS)


def marked_cells():
    for name, capability in CELLS:
        is_slow = capability.startswith("compile") and name not in OFTEN
        yield pytest.param(name, capability, marks=[pytest.mark.slow] if is_slow else [])


@pytest.mark.filterwarnings("ignore:`create_unbacked_symint` is deprecated:FutureWarning")  # the database's own call
@pytest.mark.parametrize(("name", "capability"), list(marked_cells()), ids=lambda value: value.replace(" ", "_"))
def test_cell(name: str, capability: str):
    run(DATABASE[name], capability)
