"""Checks of the model's files before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from deepinfer.engine.checkpoint.hub_cache import resolve_model_folder
from deepinfer.errors import CheckpointError
from deepinfer.recipes.embedded import embedded_model_path
from deepinfer_cli.settings.settings import Settings


def model_folder(settings: Settings) -> Path | None:
    """The folder of the model, None for the embedded model.

    Raises: CheckpointError if there is no such model.
    """
    if settings.model is None:
        return None
    folder = resolve_model_folder(settings.model)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} is not a model: it has no config.json")
    return folder


def check_sampling(settings: Settings, *, is_constrained: bool) -> None:
    """Refuse default sampling with which every row would fail for this model.  ``is_constrained``:
    there is a constraint on the command line.

    Raises: CheckpointError about the model, ConfigError that names the setting.
    """
    folder, sampling = model_folder(settings), settings.sampling()
    if not (sampling.logit_bias or sampling.stop_token_ids or sampling.min_tokens):
        return
    from deepinfer.engine.checkpoint.weights import open_checkpoint  # imports torch
    from deepinfer.rows.run_sampling import check_run_sampling

    model = open_checkpoint(folder or embedded_model_path()).config
    check_run_sampling(
        sampling,
        vocab_size=model.vocab_size,
        max_model_len=settings.max_model_len or model.max_position_embeddings,
        is_constrained=is_constrained,
    )
