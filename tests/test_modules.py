"""Rules that all modules of the package keep."""

import ast
from pathlib import Path

import loaderx


def test_no_module_imports_a_private_name_of_another():
    folder = Path(loaderx.__file__).parent
    modules = {file.stem for file in folder.glob("*.py")}
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                private = {name.name for name in node.names if name.name.startswith("_")} - modules
                assert private <= {"__version__"}, f"{file.name} line {node.lineno}"
