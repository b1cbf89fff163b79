"""``python -m ngram_store`` is the command ``ngram-store``."""

import sys

from .cli import main

__all__ = []

if __name__ == "__main__":
    sys.exit(main())
