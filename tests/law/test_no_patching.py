"""The package leaves the standard library as it finds it: it replaces no attributes and imitates no private protocols."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "pgworkers"
MODULES = sorted(PACKAGE.rglob("*.py"))
#: A process owns its streams.
STREAMS = {"sys.stdin", "sys.stdout", "sys.stderr"}
#: Containers that are meant to be written to.
CONTAINERS = ("os.environ[", "os.environb[", "sys.path[", "sys.modules[")
PRIVATE_PROTOCOLS = (
    "_asyncio_future_blocking",
    "atexit._",
    "environb._data",
    "environ._data",
    "tuple.__new__",
    "import _random",
    "threading._",
    "logging._",
)
#: Modules that still replace something or use a private protocol. Rewrite them and remove them from here; add none.
ALLOWED: set[str] = set()


def replacements(source: str) -> list[str]:
    """Assignments to, deletions of and `setattr` on attributes of standard modules.

    A `setattr` on a plain name with a computed attribute counts too: the name may hold a module.
    """
    tree = ast.parse(source)
    modules = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.partition(".")[0] in sys.stdlib_module_names
    } | {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").partition(".")[0] in sys.stdlib_module_names
        for alias in node.names
    }
    found: list[str] = []

    def check_target(node: ast.expr) -> None:
        if isinstance(node, ast.Tuple | ast.List):
            for element in node.elts:
                check_target(element)
            return
        inner = node
        while isinstance(inner, ast.Attribute | ast.Subscript):
            inner = inner.value
        text = ast.unparse(node)
        if inner is node or not isinstance(inner, ast.Name) or inner.id not in modules:
            return
        if text not in STREAMS and not text.startswith(CONTAINERS):
            found.append(text)

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.Delete):
            for target in node.targets:
                check_target(target)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            check_target(node.target)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            owner, attribute = node.args[:2]
            is_computed = not isinstance(attribute, ast.Constant) and ast.unparse(owner) != "self"
            if isinstance(owner, ast.Name) and (owner.id in modules or is_computed):
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_a_module_replaces_nothing_of_the_standard_library(module: Path) -> None:
    if str(module.relative_to(PACKAGE)) in ALLOWED:
        return
    source = module.read_text(encoding="utf-8")
    assert replacements(source) == []
    assert [name for name in PRIVATE_PROTOCOLS if name in source] == []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.fork = None",
        "import os, signal as s\nx, s.signal = 1, 2",
        "import sys\ndel sys.stdlib_module_names",
        "import os\nsetattr(os, 'fork', None)",
        "def patch(module, name):\n    setattr(module, name, None)",
        "import os\nos.environ = {}",
        "from concurrent.futures import Future\nFuture.result = None",
    ],
)
def test_a_replacement_is_reported(source: str) -> None:
    assert len(replacements(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['A'] = 'b'",
        "import sys\nsys.stdout = open('/dev/null')",
        "import sys\nsys.path[:0] = ['.']",
        "class A:\n    def f(self):\n        self.os = 1",
    ],
)
def test_what_is_allowed_is_not_reported(source: str) -> None:
    assert replacements(source) == []
