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

_HOMES = {
    "GraphInspection": "inspection",
    "InspectedNode": "rows",
    "InspectedTensor": "rows",
    "InspectedValue": "rows",
    "SavedTensor": "policies",
    "cast": "policies",
    "compressed": "policies",
    "forbidden": "policies",
    "offload": "policies",
    "op_of": "walk",
    "recorded": "policies",
}
"""The module of each public name, which is imported when the name is first used."""

__getattr__ = loader_of(__name__, _HOMES)
