"""CAPABILITIES: the subsystems of PyTorch that learn about an op, in the order in which they attach."""

from custom_autograd.integrations.autocast import Autocast
from custom_autograd.integrations.autograd import Backward, ForwardMode, Kernels
from custom_autograd.integrations.checkpointing import Checkpointing
from custom_autograd.integrations.compile_cache import CompileCache
from custom_autograd.integrations.effects import Effect
from custom_autograd.integrations.fake import Fake
from custom_autograd.integrations.sharding import Sharding
from custom_autograd.integrations.subclasses import Subclasses
from custom_autograd.integrations.variants import VARIANTS
from custom_autograd.integrations.vmap import Vmap
from custom_autograd.registration.capability import Capability

CAPABILITIES: tuple[Capability, ...] = (
    Kernels(),
    Fake(),
    Backward(),
    ForwardMode(),
    Vmap(),
    Autocast(),
    Subclasses(),
    Sharding(),
    Checkpointing(),
    Effect(),
    CompileCache(),
    *VARIANTS,
)
