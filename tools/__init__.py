"""Tools that run from a checkout; the wheel installs none of this under the name ``tools``."""
