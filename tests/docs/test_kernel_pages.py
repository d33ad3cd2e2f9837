"""Each kernel family has a page that names all of its public functions."""

from __future__ import annotations

import ast
from pathlib import Path

_SHARED = {"rows": ("rows", "norm", "rope"), "drafts": ("compressor", "dspark")}


def _public(init: Path) -> set[str]:
    """Names that ``init`` passes on, but for classes, which a page may say in words."""
    return {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(init.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
        if (alias.asname or alias.name).islower()
    }


def test_every_family_has_a_page_with_its_functions(root: Path) -> None:
    pages = {path.stem: path for path in (root / "docs" / "kernels").glob("*.md")}
    page_of = {family: page for page, families in _SHARED.items() for family in families}
    families = [init.parent.name for init in sorted((root / "kernels").glob("*/__init__.py"))]
    assert len(families) > 10
    missing = {}
    for family in families:
        names = _public(root / "kernels" / family / "__init__.py")
        if names:
            text = pages[page_of.get(family, family)].read_text(encoding="utf-8")
            missing[family] = sorted(name for name in names if f"`{name}`" not in text)
    assert {family: names for family, names in missing.items() if names} == {}


def test_every_page_is_in_the_list_and_in_the_site(root: Path) -> None:
    site = (root / "mkdocs.yml").read_text(encoding="utf-8")
    index = (root / "docs" / "kernels" / "index.md").read_text(encoding="utf-8")
    for path in (root / "docs").glob("**/*.md"):
        name = str(path.relative_to(root / "docs"))
        assert f": {name}\n" in site or f"- {name}\n" in site, name
        if path.parent.name == "kernels" and path.stem != "index":
            assert f"({path.name})" in index
