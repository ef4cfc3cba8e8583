"""`python -m edgewright`."""

import sys

from edgewright.cli import main

if __name__ == "__main__":
    sys.exit(main())
