"""``python -m loaderx`` is the command ``loaderx``."""

import sys

from .cli import main

__all__ = []

if __name__ == "__main__":
    sys.exit(main())
