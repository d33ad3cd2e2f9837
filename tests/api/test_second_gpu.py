"""A process that was given another GPU than the first launches its kernels there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deepinfer import loading
from deepinfer.engine import engine as engines
from deepinfer.engine.execution.current_device import current_device
from deepinfer.engine.model.model import Model
from deepinfer.engine.types import Request, SamplingParams


def test_only_a_numbered_accelerator_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[torch.device] = []

    @contextmanager
    def enter(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield

    fake = SimpleNamespace(device=enter)
    monkeypatch.setattr(torch, "get_device_module", lambda device: fake)
    for device in ("cpu", "cuda", "cuda:1", torch.device("cuda", 2)):
        with current_device(device):
            pass
    assert [str(device) for device in entered] == ["cuda:1", "cuda:2"]


def test_weights_and_passes_are_on_the_engines_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is current for the caller, and it still is afterwards."""
    inside: list[str] = []

    @contextmanager
    def enter(device: str) -> Iterator[None]:
        inside.append(device)
        yield
        inside.pop()

    forward, passes = Model.forward, []

    def noted(model: Model, *args: Any, **named: Any) -> Any:
        passes.append(list(inside))
        return forward(model, *args, **named)

    load = loading.load_weights

    def loaded(*args: Any) -> Model:
        passes.append(list(inside))
        return load(*args)

    monkeypatch.setattr(loading, "current_device", enter)
    monkeypatch.setattr(engines, "current_device", enter)
    monkeypatch.setattr(loading, "load_weights", loaded)
    monkeypatch.setattr(Model, "forward", noted)
    engine = loading.load_model(None, {"max_num_seqs": 2}, device="cpu").engine
    asked = SamplingParams(max_tokens=3)
    engine.add_request(Request(request_id="a", prompt_token_ids=(5, 6, 7), sampling=asked, seed=0))
    while engine.has_unfinished():
        engine.step()
    assert len(passes) > 3
    assert all(place and set(place) == {"cpu"} for place in passes)
    assert not inside
