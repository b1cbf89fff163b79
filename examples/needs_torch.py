"""Ends a program with one line where torch is not installed. This is no program: the other examples import it."""

import sys

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    print("this example needs torch: pip install 'loaderx-go[torch]'", file=sys.stderr)
    sys.exit(2)
