"""Checks of versions, and of other packages that shadow ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import deepinfer
from deepinfer_cli.host import source_commit

from .checks import NOTE, OK, PROBLEM, WARNING, Check, shown_path

DISTRIBUTION = "deepinfer-cli"
_FOLDERS = ("engine", "kernels", "recipes")
_NEEDED = (
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "deepseek-recipe",
    "llguidance",
    "jsonschema",
    "typer",
    "rich",
    "pyyaml",
    "pyarrow",
    "zstandard",
)
_OPTIONAL = {"triton": "kernels for GPUs", "datasets": "dataset folders as input"}


def software_checks() -> Iterator[Check]:
    """Versions of deepinfer, Python and dependencies, and whose files are imported."""
    root = Path(deepinfer.__file__).resolve().parents[1]
    commit = source_commit(root)
    text = f"{deepinfer.__version__}{f' ({commit})' if commit else ''} in {shown_path(root)}"
    yield Check(group="software", name="deepinfer", state=OK, text=text)
    version = ".".join(map(str, sys.version_info[:3]))
    text = f"{version} in {shown_path(sys.prefix)}"
    yield Check(group="software", name="python", state=OK, text=text)
    yield from _packages()
    yield from _links(root)
    yield from shadow_checks(root, sys.path, metadata.packages_distributions())


def _packages() -> Iterator[Check]:
    found = {}
    for name in (*_NEEDED, *_OPTIONAL):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            advice = f"pip install {name}"
            if name in _OPTIONAL:
                text = f"not installed; only needed for {_OPTIONAL[name]}"
                yield Check(group="software", name=name, state=NOTE, text=text, advice=advice)
            else:
                yield Check(
                    group="software",
                    name=name,
                    state=PROBLEM,
                    text="not installed",
                    advice=advice,
                )
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    yield Check(group="software", name="packages", state=OK, text=text)


def _links(root: Path) -> Iterator[Check]:
    """The three linked packages must be importable, from this installation only."""
    for name in _FOLDERS:
        spec = find_spec(f"deepinfer.{name}")
        origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if origin is None or root not in origin.parents:
            where = "missing" if origin is None else f"in {shown_path(origin.parent)}"
            yield Check(
                group="software",
                name=f"deepinfer.{name}",
                state=PROBLEM,
                text=f"{where}, expected below {shown_path(root)}",
                advice=f"install again: pip install --force-reinstall {DISTRIBUTION}",
            )


def shadow_checks(
    root: Path, search_path: Sequence[str], owners: Mapping[str, Sequence[str]]
) -> Iterator[Check]:
    """Other packages with our names.  ``owners``: the distributions that have each package."""
    foreign = sorted({name for name in owners.get("deepinfer", ()) if name != DISTRIBUTION})
    if foreign:
        yield Check(
            group="software",
            name="other owners",
            state=WARNING,
            text=f"the package deepinfer also belongs to {', '.join(foreign)}, whose files may "
            "have replaced ours",
            advice=f"pip uninstall {' '.join(foreign)}; "
            f"pip install --force-reinstall {DISTRIBUTION}",
        )
    for name in ("deepinfer", "deepinfer_cli"):
        places = [place for place in _places(name, search_path) if place.parent != root]
        if places:
            yield Check(
                group="software",
                name=f"other {name}",
                state=WARNING,
                text=f"also in {', '.join(map(shown_path, places))}: which one is imported depends "
                "on the folder you start from",
                advice="keep one of them",
            )
    others = [
        place for name in _FOLDERS for place in _places(name, search_path) if place.parent != root
    ]
    if others:
        yield Check(
            group="software",
            name="same names",
            state=NOTE,
            text=f"{', '.join(map(shown_path, others))}: not ours and not in the way "
            "(ours are inside deepinfer)",
        )


def _places(name: str, search_path: Sequence[str]) -> list[Path]:
    """Every folder of the search path with a package of this name."""
    found = []
    for entry in search_path:
        place = Path(entry or os.curdir).resolve() / name
        if (place / "__init__.py").is_file() and place not in found:
            found.append(place)
    return found
