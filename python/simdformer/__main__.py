"""`python -m simdformer` is the command `simdformer`."""

import sys

from simdformer.cli import main

if __name__ == "__main__":
    sys.exit(main())
