"""PyTorch's own database of custom ops, with only `torch.library.custom_op` replaced by ours, holds in every mode."""

import pytest

from custom_autograd import custom_op
from custom_op_database import REFERENCES, cells, load, run

DATABASE = load(custom_op, "database")
CELLS = cells(DATABASE)
OFTEN = set(list(DATABASE)[::6])
"""The ops whose compiled cells `make test` looks at; `make test-core` looks at all."""


def test_the_database_is_whole():
    """So that no op and no capability vanishes unseen."""
    assert set(REFERENCES) == set(DATABASE)
    assert 3 == sum(not info.check_batched_grad and info.supports_autograd for info in DATABASE.values())
    assert 9 * 15 - 3 + 2 * 3 == len(CELLS)


def rows():
    """Each op with its capabilities; those that compile it are a row of their own."""
    for name in DATABASE:
        capabilities = [capability for op, capability in CELLS if op == name]
        compiled = [capability for capability in capabilities if capability.startswith("compile")]
        yield pytest.param(name, [one for one in capabilities if one not in compiled], id=name)
        if compiled:
            marks = [] if name in OFTEN else [pytest.mark.slow]
            yield pytest.param(name, compiled, marks=marks, id=f"{name}-compiled")


@pytest.mark.filterwarnings("ignore:`create_unbacked_symint` is deprecated:FutureWarning")  # the database's own call
@pytest.mark.parametrize(("name", "capabilities"), list(rows()))
def test_an_op_holds(name: str, capabilities: list[str]):
    failed = {capability: error for capability in capabilities if (error := error_of(name, capability))}

    assert {} == failed


def error_of(name: str, capability: str) -> str:
    """Return what a cell raises; the empty string if it holds."""
    try:
        run(DATABASE[name], capability)
    except Exception as error:  # noqa: BLE001 - named with its cell
        return f"{type(error).__name__}: {error}"
    return ""
