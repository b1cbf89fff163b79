"""Side-by-side measurements: ``python -m tools.bench --help``.

Importing this package imports neither ``loaderx`` nor NumPy, because processes that hold another
package of the name ``loaderx`` import it too.
"""
