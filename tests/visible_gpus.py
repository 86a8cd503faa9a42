"""Which GPUs the processes of a test session see: all in `pytest -m cuda`, none in any other.

Other tests fork, count the threads of autograd and look at devices that are not there. They do all this as on a machine
without a GPU, in processes that never touch one; where CUDA has been initialised, a forked child cannot use torch.
"""

from collections.abc import MutableMapping, Sequence
from itertools import pairwise

VARIABLE = "CUSTOM_AUTOGRAD_TESTS_SEE_GPUS"
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def hide_gpus(arguments: Sequence[str], variables: MutableMapping[str, str]) -> None:
    """Hide all GPUs from this process and those that it starts, unless the session is of tests that need one.

    Args:
        arguments: of the command. Workers of pytest-xdist have others, and do as the process that started them.
        variables: the environment.
    """
    if variables.setdefault(VARIABLE, str(int(is_of_gpus(arguments)))) == "0":
        variables.update(dict.fromkeys(HIDING, ""))


def is_of_gpus(arguments: Sequence[str]) -> bool:
    """Return True if the option -m of pytest selects tests that need a GPU, and no others."""
    selections = [two for one, two in pairwise(arguments) if one == "-m"]
    selections += [one.removeprefix("-m").removeprefix("=") for one in arguments if one.startswith("-m")]
    return any(selection.split()[:1] == ["cuda"] and " or " not in selection for selection in selections)
