"""Rules that all modules of the packages keep."""

import ast
import re
from pathlib import Path

import pytest

import loaderx
import ngram_store
from tests.processes import ROOT

FOLDERS = [Path(package.__file__).parent for package in (loaderx, ngram_store)]
FILES = {f"{folder.name}.{file.stem}": file for folder in FOLDERS for file in folder.glob("*.py")}


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_module_imports_a_private_name_of_another(name):
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and (node.level or node.module.split(".")[0] in ("loaderx", "ngram_store")):
            package = name.split(".")[0] if node.level else node.module
            private = {one.name for one in node.names if one.name.startswith("_")}
            private -= {one for one in private if f"{package}.{one}" in FILES}
            assert private <= {"__version__"}, f"{name} line {node.lineno}"


def test_readers_of_tables_are_used_by_what_they_offer():
    # `rows` is what they are called everywhere.
    for name, file in FILES.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in _READERS:
                assert not node.attr.startswith("_"), f"{name} line {node.lineno}: {node.value.id}.{node.attr}"


_READERS = ("rows", "reader", "table")


def test_defaults_that_many_functions_share_are_written_once():
    for name, file in FILES.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                args = node.args
                pairs = [*zip(args.args[::-1], args.defaults[::-1], strict=False)]
                for arg, value in (*pairs, *zip(args.kwonlyargs, args.kw_defaults, strict=True)):
                    number = isinstance(value, ast.Constant) and type(value.value) is int
                    shared = arg.arg in ("block_rows", "query_chunk_rows")
                    assert not (number and shared), f"{name} line {node.lineno}: {arg.arg}"


def test_the_extra_asks_for_the_torch_that_the_modules_need():
    wanted = re.search(r'^torch = \["torch>=([\d.]+)"\]$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    needed = re.search(r"need torch ([\d.]+) or later", FILES["ngram_store._ops"].read_text())
    assert wanted[1] == needed[1]


def test_arrays_and_tensors_become_addresses_at_the_one_door():
    for name, file in FILES.items():
        if name != "loaderx._engine":
            for node in ast.walk(ast.parse(file.read_text())):
                assert not (isinstance(node, ast.Attribute) and node.attr in _ADDRESSES), f"{name} line {node.lineno}"


_ADDRESSES = ("data_ptr", "ctypes", "from_buffer", "addressof", "__array_interface__")
