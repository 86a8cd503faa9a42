"""CHECKS, in the order in which they run: cheap first; a new check is one file and one line here."""

from custom_autograd.checks.base import Check
from custom_autograd.checks.cache import Cache
from custom_autograd.checks.compile import Compile
from custom_autograd.checks.compiled_autograd import CompiledAutograd
from custom_autograd.checks.compiled_transforms import CompiledTransforms
from custom_autograd.checks.cotangents import Cotangents
from custom_autograd.checks.export import Export
from custom_autograd.checks.fake import Fake
from custom_autograd.checks.forward_mode import ForwardMode
from custom_autograd.checks.gradcheck import Gradcheck
from custom_autograd.checks.kernels import Kernels
from custom_autograd.checks.linearity import Linearity
from custom_autograd.checks.nesting import Nesting
from custom_autograd.checks.opcheck import Opcheck
from custom_autograd.checks.recompilation import Recompilation
from custom_autograd.checks.reference import Reference
from custom_autograd.checks.reference_gradients import ReferenceGradients
from custom_autograd.checks.schema import Schema
from custom_autograd.checks.second_order import SecondOrder
from custom_autograd.checks.symbolic import Symbolic
from custom_autograd.checks.vmap import Vmap

__all__ = ["CHECKS"]

CHECKS: tuple[Check, ...] = (
    Schema(),
    Reference(),
    Kernels(),
    Fake(),
    Symbolic(),
    Cache(),
    Gradcheck(),
    ReferenceGradients(),
    Linearity(),
    Cotangents(),
    SecondOrder(),
    ForwardMode(),
    Vmap(),
    Nesting(),
    Opcheck(),
    Compile(),
    Export(),
    Recompilation(),
    CompiledAutograd(),
    CompiledTransforms(),
)
