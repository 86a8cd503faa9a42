"""python -m custom_autograd.cli: the same as the command custom-autograd."""

import sys

from custom_autograd.cli.main import main

sys.exit(main())
