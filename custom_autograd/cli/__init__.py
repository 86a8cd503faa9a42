"""custom-autograd: verifies, lists and shows ops. One command per file, each with `configure` and `run`.

Nothing here imports torch before a command runs, so `--help` answers at once.
"""

from custom_autograd.cli.main import main

__all__ = ["main"]
