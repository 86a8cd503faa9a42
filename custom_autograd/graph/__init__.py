"""What users do with a recorded graph: inspect it, choose what is saved, and act when a backward ends."""

from typing import TYPE_CHECKING

from custom_autograd.core.lazy import loader_of

if TYPE_CHECKING:
    from custom_autograd.graph.inspection import GraphInspection
    from custom_autograd.graph.policies import SavedTensor, cast, compressed, forbidden, offload, recorded
    from custom_autograd.graph.rows import InspectedNode, InspectedTensor, InspectedValue
    from custom_autograd.graph.walk import op_of

__all__ = [
    "GraphInspection",
    "InspectedNode",
    "InspectedTensor",
    "InspectedValue",
    "SavedTensor",
    "cast",
    "compressed",
    "forbidden",
    "offload",
    "op_of",
    "recorded",
]

_NAMES = {
    "inspection": "GraphInspection",
    "policies": "SavedTensor cast compressed forbidden offload recorded",
    "rows": "InspectedNode InspectedTensor InspectedValue",
    "walk": "op_of",
}
"""The public names by module, which is imported when one is first used."""

__getattr__ = loader_of(__name__, _NAMES)
