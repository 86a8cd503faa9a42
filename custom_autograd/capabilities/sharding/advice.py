"""Advice to the author of an op that has no rule for sharded tensors."""

from custom_autograd.registration.registry import OpRecord


def advice(record: OpRecord) -> str:
    """Return what the author of an op can do."""
    namespace, name = str(record.dispatcher_name).split("::")
    return (
        "its placements follow from a line of shapes: custom_op(..., shapes=...) or register_shapes; or write them by "
        f"hand with torch.distributed.tensor.experimental.register_sharding(torch.ops.{namespace}.{name}.default)"
    )
