"""How long something may take, in words: "90", "30s", "2m" or "1h"."""

import re

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_in(text: str) -> float | None:
    """Return the seconds that a text names; None if it names none, or no time at all."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    return (float(found[1]) * UNITS[found[2]] or None) if found else None
