"""python -m custom_autograd: the same as the command custom-autograd."""

import sys

from custom_autograd.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
