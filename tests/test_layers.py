"""Imports point one way: deepinfer_cli -> deepinfer -> engine -> kernels; recipes stand apart."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_FOLDERS = ("deepinfer_cli", "deepinfer", "engine", "kernels", "recipes")
# What each folder may import from this project, beside itself and the leaf deepinfer.errors.
_ALLOWED = {
    "deepinfer_cli": {"deepinfer", "engine", "kernels", "recipes"},
    "deepinfer": {"engine", "kernels", "recipes"},
    "engine": {"kernels"},
    "kernels": set(),
    "recipes": set(),
}
_TENSOR_LIBRARIES = {"torch", "triton", "numpy", "safetensors"}
_SLOW = ("torch", "triton", "pyarrow", "datasets", "tokenizers")


def _files(folder: str) -> list[Path]:
    paths = sorted((_ROOT / folder).rglob("*.py"))
    links = [_ROOT / "deepinfer" / name for name in ("engine", "kernels", "recipes")]
    return [path for path in paths if not any(link in path.parents for link in links)]


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    """(absolute module, line) of every import in ``path``, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            if node.module == "deepinfer":
                yield from ((f"deepinfer.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield node.module, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1, f"{path}:{node.lineno}: an import from a parent folder"


def _folder_of(module: str) -> str | None:
    """The folder of this project that ``module`` lives in, None for the leaf and for others."""
    parts = module.split(".")
    if parts[0] not in ("deepinfer", "deepinfer_cli") or parts[:2] == ["deepinfer", "errors"]:
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ("engine", "kernels", "recipes") else parts[0]


@pytest.mark.parametrize("folder", _FOLDERS)
def test_no_arrow_points_up(folder: str) -> None:
    wrong = [
        f"{path.relative_to(_ROOT)}:{line} imports {module}"
        for path in _files(folder)
        for module, line in _imports(path)
        if _folder_of(module) not in {None, folder} | _ALLOWED[folder]
    ]
    assert _files(folder) and wrong == []


@pytest.mark.parametrize("folder", _FOLDERS)
def test_bare_folder_names_are_never_imported(folder: str) -> None:
    """They are other people's packages wherever ours is installed."""
    wrong = [
        f"{path.relative_to(_ROOT)}:{line}"
        for path in _files(folder)
        for module, line in _imports(path)
        if module.split(".")[0] in ("engine", "kernels", "recipes")
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", ["engine", "kernels"])
def test_tensor_code_needs_tensor_libraries_only(folder: str) -> None:
    allowed = _TENSOR_LIBRARIES | set(sys.stdlib_module_names) | {"deepinfer"}
    wrong = [
        f"{path.relative_to(_ROOT)}:{line} imports {module}"
        for path in _files(folder)
        for module, line in _imports(path)
        if module.split(".")[0] not in allowed
    ]
    assert wrong == []


def test_the_error_tree_is_a_leaf() -> None:
    found = _imports(_ROOT / "deepinfer" / "errors.py")
    modules = {module.partition(".")[0] for module, _ in found}
    assert modules <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", ["engine", "kernels", "recipes"])
def test_the_links_are_there(name: str) -> None:
    link = _ROOT / "deepinfer" / name
    assert link.is_symlink() and link.readlink() == Path("..") / name
    assert link.resolve() == _ROOT / name


@pytest.mark.parametrize(
    "code",
    [
        "import deepinfer",
        "import deepinfer.errors, deepinfer.outputs, deepinfer.engine.types",
        "import deepinfer_cli.main, deepinfer_cli.run.verb",
    ],
)
def test_light_imports_stay_light(code: str) -> None:
    check = f"{code}; import sys; print([name for name in {_SLOW} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", check], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_rule_itself_catches_an_arrow_that_points_up(tmp_path: Path) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text(
        "def f():\n    from deepinfer.engine.types import Request\n"
        "from deepinfer import OfflineEngine\nimport torch.nn\nfrom deepinfer.errors import X\n"
    )
    found = {_folder_of(module) for module, _ in _imports(sample)}
    assert found == {"engine", "deepinfer", None}
    sample.write_text("from ..engine import types\n")
    with pytest.raises(AssertionError):
        list(_imports(sample))
