"""Links, anchors, files and names in the documents lead somewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*\.(?:py|sh|md|css|toml|safetensors)|(?:[\w.-]+/)+")
_OURS = (
    "deepinfer",
    "deepinfer_cli",
    "engine",
    "kernels",
    "recipes",
    "tests",
    "docs",
    "examples",
    "benchmarks",
    "training",
)
_DOTTED = re.compile(r"(?:deepinfer|deepinfer_cli|engine|kernels|recipes)(?:\.\w+){2,}")
_NAME_IN_FILE = re.compile(r"`(\w+)(?:\(\))?` in\s+`([\w/]+\.py)`")

_CHANGE = re.compile(r"in `(\w+)` in `([\w/]+\.py)`, write `([^`]+)` for `([^`]+)`")


def _anchors(page: Path) -> set[str]:
    """The ids that a site and a code host give the headings of ``page``."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", heading.replace("`", "").lower()) for heading in headings]
    return {re.sub(r"\s", "-", heading.strip()) for heading in plain}


def test_relative_links_and_anchors(document: Path) -> None:
    broken = []
    for target in _LINK.findall(_FENCED.sub("", document.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue  # elsewhere; a test has no network
        path, _, anchor = target.partition("#")
        page = (document.parent / path).resolve() if path else document
        if not page.exists() or (anchor and anchor not in _anchors(page)):
            broken.append(target)
    assert broken == []


def test_pages_of_the_site_link_inside_of_it(document: Path, root: Path) -> None:
    """A link out of docs/ is dead on the built site; name the file in back quotes instead."""
    docs = root / "docs"
    if docs not in document.parents:
        return
    for target in _LINK.findall(_FENCED.sub("", document.read_text(encoding="utf-8"))):
        path = target.partition("#")[0]
        if path and not re.match(r"[a-z]+:", target):
            assert docs in (document.parent / path).resolve().parents, target


def test_files_that_are_named_exist(document: Path, root: Path) -> None:
    gone = []
    for name in _CODE.findall(_FENCED.sub("", document.read_text(encoding="utf-8"))):
        if _FILE.fullmatch(name) and name.split("/")[0] in _OURS and not list(root.glob(name)):
            gone.append(name)
    assert gone == []


def test_names_that_are_given_with_a_module_exist(document: Path, root: Path) -> None:
    text = _FENCED.sub("", document.read_text(encoding="utf-8"))
    gone = [
        name
        for name in _CODE.findall(text)
        if _DOTTED.fullmatch(name) and not _is_there(name, root)
    ]
    gone += [
        f"{name} in {path}"
        for name, path in _NAME_IN_FILE.findall(text)
        if name not in _defined(root / path)
    ]
    assert gone == []


def test_code_that_is_to_be_changed_is_there(document: Path, root: Path) -> None:
    """`NEW` for `OLD` in `function` in `file`, as the first hour proposes."""
    text = document.read_text(encoding="utf-8")
    for name, path, new, old in _CHANGE.findall(text):
        source = (root / path).read_text(encoding="utf-8")
        nodes = ast.walk(ast.parse(source))
        function = next(n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == name)
        segment = ast.get_source_segment(source, function) or ""
        assert old in segment and new not in segment, f"{name} in {path}"


def _is_there(dotted: str, root: Path) -> bool:
    """Whether ``engine.limits.roofline.decode_limit`` is a module, or a name in one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        place = root.joinpath(*parts[:length])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.exists():
                return length == len(parts) or parts[length] in _defined(file)
    return False


def _defined(file: Path) -> set[str]:
    """Functions, classes, methods, assigned and imported names of a Python file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names
