"""The variants of an op: `op.inplace` writes into its first argument, `op.out` into tensors that the caller gives."""

from custom_autograd.variants.variant import InplaceVariant, OutVariant, Variant

__all__ = ["InplaceVariant", "OutVariant", "Variant"]
