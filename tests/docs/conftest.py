"""The tools that make pages are imported from docs/, where they live."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs"))
