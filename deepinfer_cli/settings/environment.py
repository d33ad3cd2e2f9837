"""Settings from environment variables: ``DEEPINFER_<NAME>``, and upstream's for speculation."""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer.errors import ConfigError, nearest

from .settings import FIELDS
from .values import COUNT, SWITCH

_PREFIX = "DEEPINFER_"
CONFIG = _PREFIX + "CONFIG"
# Used by build.sh, not by a run.
_OTHER_VARIABLES = {"DEEPINFER_ACCELERATOR"}
# Upstream's variables for parts of ``speculative``.
_SCHEDULED_DRAFTS = "DEEPINFER_ENABLE_MTP_VARLEN"
_MOST_DRAFTS = "DEEPINFER_USE_NEXTN_DECODE"
_UPSTREAM_DRAFTS = "5"


def environment_layer(environment: Mapping[str, str]) -> list[tuple[str, object, str]]:
    """(name, value, variable) of each setting found.  Raises: ConfigError for unknown variables."""
    known = {_PREFIX + name.upper(): name for name in FIELDS}
    others = _OTHER_VARIABLES | {CONFIG, _SCHEDULED_DRAFTS, _MOST_DRAFTS}
    layer = _upstream_drafts(environment)
    for variable, value in sorted(environment.items()):
        if variable in known:
            layer.append((known[variable], value, variable))
        elif variable.startswith(_PREFIX) and variable not in others:
            # Compare without the common prefix, which makes all names similar.
            names = [name.removeprefix(_PREFIX) for name in (*known, CONFIG)]
            hint = nearest(variable.removeprefix(_PREFIX), names)
            hint = hint.replace("did you mean ", f"did you mean {_PREFIX}")
            raise ConfigError(f"environment variable {variable} is not a setting{hint}")
    return layer


def _upstream_drafts(environment: Mapping[str, str]) -> list[tuple[str, object, str]]:
    """``speculative`` from upstream's two variables, if one of them is set."""
    switch, most = environment.get(_SCHEDULED_DRAFTS), environment.get(_MOST_DRAFTS)
    if switch is None and most is None:
        return []
    try:
        is_scheduled = SWITCH.parse(switch or "0")
        count = COUNT.parse(most or _UPSTREAM_DRAFTS)
    except ValueError:
        raise ConfigError(
            f"{_SCHEDULED_DRAFTS}={switch}, {_MOST_DRAFTS}={most}: expected 1 or 0, and a number"
        ) from None
    prefix = "auto:" if is_scheduled and count else ""
    return [("speculative", f"{prefix}{count}", _MOST_DRAFTS if most else _SCHEDULED_DRAFTS)]
