"""Checks of a run with these settings: settings, model, memory, kernels, step times."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from deepinfer.arguments import EngineArguments
from deepinfer.dry_run import DryRun
from deepinfer.engine.speculation.step_profile import StepProfile
from deepinfer.errors import DeepInferError
from deepinfer.kernels.bundle import default_store, read_bundle
from deepinfer.rows.prompts import run_constraint as constraint_of
from deepinfer_cli.host import host
from deepinfer_cli.report.pages.words import count, milliseconds, size
from deepinfer_cli.settings.as_given import errors_as_given
from deepinfer_cli.settings.constraint import run_constraint
from deepinfer_cli.settings.engine_arguments import engine_arguments
from deepinfer_cli.settings.layers import Resolved, resolve
from deepinfer_cli.settings.settings import Settings

from .checks import NOTE, OK, PROBLEM, WARNING, Check, shown_path


def run_checks(flags: Mapping[str, object], config: str | None) -> Iterator[Check]:
    """Everything short of loading weights."""
    try:
        resolved = resolve(flags, config=config)
        constraint = constraint_of(run_constraint(resolved))
    except DeepInferError as error:
        yield Check(group="run", name="settings", state=PROBLEM, text=_words(error))
        return
    yield Check(group="run", name="settings", state=OK, text=_origins(resolved))
    settings = resolved.settings
    try:
        with errors_as_given(resolved.origins):
            arguments = EngineArguments(**engine_arguments(settings))
            dry_run = DryRun(settings.model, arguments)
            with closing(dry_run):
                dry_run.check(settings.sampling(), constraint)
    except DeepInferError as error:
        yield Check(group="run", name="model", state=PROBLEM, text=_words(error))
        return
    yield Check(group="run", name="model", state=OK, text=_model(settings, dry_run))
    yield Check(group="run", name="how", state=OK, text=_how(dry_run))
    for name, note in dry_run.notes.items():
        yield Check(group="run", name=name, state=NOTE, text=note)
    yield memory_check(dry_run)
    if settings.speculation_profile is not None:
        yield _profile(Path(settings.speculation_profile))


def memory_check(dry_run: DryRun) -> Check:
    """Caches are allocated immediately; weights are mapped from files and read on use."""
    memory = dry_run.memory
    need = memory.weight_bytes + memory.cache_bytes
    free = host().available_bytes
    text = f"weights {size(memory.weight_bytes)}, caches {size(memory.cache_bytes)} for "
    text += f"{count(memory.cache_tokens)} tokens"
    if dry_run.config.device != "cpu" or free is None or need < free:
        return Check(group="run", name="memory", state=OK, text=text)
    advice = "lower --cache-memory-gib or --max-num-seqs, or use a larger machine"
    if memory.cache_bytes > free:
        text += f": only {size(free)} are free"
        return Check(group="run", name="memory", state=PROBLEM, text=text, advice=advice)
    text += f": more than the {size(free)} that are free, so weights are read again and again"
    return Check(group="run", name="memory", state=WARNING, text=text, advice=advice)


def bundle_checks(store: Path | None = None) -> Iterator[Check]:
    """Compiled kernels that a GPU run would find."""
    store = store or default_store()
    folders = sorted(path.parent for path in store.glob("*/manifest.json"))
    if not folders:
        text = f"none in {shown_path(store)}: a GPU run compiles them at its first steps"
        yield Check(group="kernels", name="bundles", state=NOTE, text=text)
    for folder in folders:
        try:
            bundle = read_bundle(folder)
        except DeepInferError as error:
            advice = f"remove {shown_path(folder)} and run deepinfer build"
            yield Check(
                group="kernels", name="bundle", state=WARNING, text=_words(error), advice=advice
            )
            continue
        identity = bundle.identity
        compilers = ", ".join(f"{name} {version}" for name, version in identity.compilers.items())
        text = f"{len(bundle.kernels)} kernels of {shown_path(identity.model_name)}, {compilers}"
        yield Check(group="kernels", name=identity.target, state=OK, text=text)


def _words(error: Exception) -> str:
    """The message without values of variables, and the home folder as ``~``."""
    text = " ".join(str(error).split())
    for variable, value in os.environ.items():
        text = text.replace(f"{variable}={value}", f"{variable}=…")
    home = os.path.expanduser("~")
    return text if home in ("~", "/", "") else text.replace(home + "/", "~/")


def _origins(resolved: Resolved) -> str:
    """Names of settings and where they come from, without values, which may be private."""
    given = [
        f"{name} ({shown_path(origin)})"
        for name, origin in resolved.origins.items()
        if origin != "default"
    ]
    return "all default" if not given else "given: " + ", ".join(given)


def _model(settings: Settings, dry_run: DryRun) -> str:
    name = "the small model inside the package"
    if settings.model is not None:
        name = shown_path(dry_run.model_folder)
    model = dry_run.model_config
    parts = f"{model.num_hidden_layers} layers, a vocabulary of {count(model.vocab_size)} tokens"
    return f"{name}: {parts}"


def _how(dry_run: DryRun) -> str:
    config = dry_run.config
    drafts = "no drafts"
    if config.num_speculative_tokens:
        most = f"up to {config.num_speculative_tokens} drafts"
        drafts = f"{most}, as many as pay off" if config.schedule_drafts else most
    parts = [
        f"on {config.device}",
        f"{config.max_num_seqs} answers at a time",
        f"{count(config.max_model_len)} tokens each at most",
        drafts,
    ]
    if config.batch_invariant:
        parts.append("batch-invariant")
    if config.exact:
        parts.append("exact")
    return ", ".join(parts)


def _profile(path: Path) -> Check:
    """The saved step times for ``--speculative auto``."""
    if not path.exists():
        text = f"{shown_path(path)} is not there yet: measured at the next start"
        return Check(group="run", name="step times", state=NOTE, text=text)
    try:
        profile = StepProfile.load(path)
    except DeepInferError as error:
        return Check(group="run", name="step times", state=PROBLEM, text=_words(error))
    steps = ", ".join(
        f"{count(number)}: {milliseconds(1_000 * profile.plain_step_s(number))}"
        for number in profile.num_requests
    )
    text = f"of {profile.device}, by answers at a time: {steps}"
    return Check(group="run", name="step times", state=OK, text=text)
