"""Other packages to measure against, each in a process of its own.

``install`` puts a package aside, ``process`` talks to the child that imports it, ``child`` is that
child, and one module per package holds the cases that the child can run.
"""
