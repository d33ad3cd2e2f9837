"""Settings from a YAML file: a flat mapping, with line numbers for messages.

Values mean the same as in a flag; plain YAML would read 010 as 8, 1:30 as 90 and the folder 1.10 as
1.1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deepinfer.errors import ConfigError, nearest
from deepinfer_cli.small_file import read_small

from .settings import FIELDS

DEFAULT_FILE = "deepinfer.yaml"


def yaml_layer(config: str | None) -> list[tuple[str, object, str]]:
    """(name, value, file:line) of each setting in ``config``, by default in ``deepinfer.yaml`` if
    it exists.  Raises: ConfigError."""
    path = Path(config or DEFAULT_FILE)
    if config is None and not path.is_file():
        return []

    import yaml  # imported here: not needed without a file

    class Loader(yaml.SafeLoader):
        """Only booleans and nulls are converted; all other scalars stay text."""

        yaml_implicit_resolvers = {  # noqa: RUF012 (as in its base)
            first: [(tag, pattern) for tag, pattern in found if tag.endswith((":bool", ":null"))]
            for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    try:
        loader = Loader(read_small(path).decode("utf-8"))
        node = loader.get_single_node()
        if node is None:
            return []
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{path}: expected lines of the form 'name: value'")
        layer: list[tuple[str, object, str]] = []
        for key, value in node.value:
            origin = f"{path}:{key.start_mark.line + 1}"
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            if name not in FIELDS:
                raise ConfigError(f"{origin}: {name} is not a setting{nearest(name, FIELDS)}")
            if any(name == earlier for earlier, _, _ in layer):
                raise ConfigError(f"{origin}: {name} is given twice")
            if not _is_flat(value):
                raise ConfigError(f"{origin}: {name}: nested lists and mappings are not supported")
            if twice := _repeated_key(value):
                raise ConfigError(f"{origin}: {name}: {twice} is given twice")
            try:
                layer.append((name, loader.construct_object(value, deep=True), origin))
            except (LookupError, AttributeError, TypeError) as error:  # a tag that does not match
                kind = value.tag.replace("tag:yaml.org,2002:", "!!")
                raise ConfigError(f"{origin}: {name}: {value.value!r} is not a {kind}") from error
        return layer
    except OSError as error:
        raise ConfigError(f"cannot read settings from {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: too many digits, an invalid date
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error


def _repeated_key(node: Any) -> str | None:
    """A duplicate key of a mapping, if any."""
    pairs = [item for item in node.value if isinstance(item, tuple)]
    keys = [str(key.value) for key, _ in pairs]
    return next((key for key in keys if keys.count(key) > 1), None)


def _is_flat(node: Any) -> bool:
    """A scalar, or a list or mapping of scalars: nested aliases could expand to gigabytes."""
    parts = [] if isinstance(node.value, str) else node.value
    inner = [part for item in parts for part in (item if isinstance(item, tuple) else (item,))]
    return all(isinstance(part.value, str) for part in inner)
