"""INTEGRATIONS: the subsystems of PyTorch that learn about an op, in the order in which they attach."""

from custom_autograd.integrations.autocast import Autocast
from custom_autograd.integrations.autograd import Backward, ForwardMode, Kernels
from custom_autograd.integrations.base import Integration
from custom_autograd.integrations.compiler import CompileCache
from custom_autograd.integrations.effects import Effect
from custom_autograd.integrations.fake import Fake
from custom_autograd.integrations.subclasses import Subclasses
from custom_autograd.integrations.variants import VARIANTS
from custom_autograd.integrations.vmap import Vmap

INTEGRATIONS: tuple[Integration, ...] = (
    Kernels(),
    Fake(),
    Backward(),
    ForwardMode(),
    Vmap(),
    Autocast(),
    Subclasses(),
    Effect(),
    CompileCache(),
    *VARIANTS,
)
