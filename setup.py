"""The part of the package's description that pyproject.toml cannot hold: its extension."""

from setuptools import Extension, setup

from loaderx_build.command import BuildGoExtension

setup(
    # The sources are Go; the command knows how to build them.
    ext_modules=[Extension("loaderx._native", sources=[])],
    cmdclass={"build_ext": BuildGoExtension},
)
