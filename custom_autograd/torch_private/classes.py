"""Classes of users that the dispatcher passes on as they are (found in torch 2.11 to 2.15).

_library.opaque_object._resolve_opaque_type_info
                        under which name a class, or a base of it, is registered: with `register_opaque_type`, which is
                        `register_custom_class` from torch 2.15 on; `torch.library` exports neither
_library.opaque_object._OPAQUE_TYPES
                        the same in torch 2.11, by class
"""

from __future__ import annotations

from torch._library import opaque_object


def class_name_of(annotation: object) -> str | None:
    """Return the dispatcher's name of a registered class, or None. Every Enum counts as registered."""
    if not isinstance(annotation, type):
        return None
    find = getattr(opaque_object, "_resolve_opaque_type_info", opaque_object._OPAQUE_TYPES.get)
    found = find(annotation)
    return None if found is None else str(found.class_name)
