"""Sizes and devices that this machine cannot honour are refused with the reason."""

from __future__ import annotations

import pytest
import torch

from deepinfer.errors import ConfigError
from deepinfer.machine import (
    check_flash_mla,
    check_num_ranks,
    check_num_threads,
    resolve_device,
    set_cpu_threads,
)


def test_too_few_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="need 4 GPUs, and this machine has 1"):
        check_num_ranks(4, "cuda")
    check_num_ranks(4, "cpu")
    check_num_ranks(1, "cuda:0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    check_num_ranks(4, "cuda")
    with pytest.raises(ConfigError, match="device='cuda:1' is one GPU"):
        check_num_ranks(4, "cuda:1")


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("cuda:1") == "cuda:1"
    for device in ("tpu", "cuda:2", "cuda:x", "cuda:", "cuda:01", "cpu:0", "cpu:1"):
        with pytest.raises(ConfigError, match=device):
            resolve_device(device)


@pytest.mark.parametrize(
    "capability, expected", [(None, "cpu"), ((9, 0), "cuda"), ((8, 0), "cpu"), ((10, 0), "cpu")]
)
def test_auto_takes_a_gpu_of_the_tested_kind(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: capability)
    assert resolve_device("auto") == expected


def test_a_gpu_has_no_plain_attention():
    for enable, device in ((True, "cpu"), (False, "cpu"), (True, "cuda:1")):
        check_flash_mla(enable, device)
    with pytest.raises(ConfigError, match="enable_flash_mla=False on cuda:1"):
        check_flash_mla(False, "cuda:1")


def test_small_models_take_one_thread_and_give_it_back():
    """Two threads wait for each other whenever another process uses the second core."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert set_cpu_threads(None, hidden_size=256) == 2
        assert torch.get_num_threads() == 1
        assert set_cpu_threads(2, hidden_size=256) == 1
        assert set_cpu_threads(None, hidden_size=5120) == 2
        assert torch.get_num_threads() == 2
        for bad in (0, -1, True, 1.5):
            with pytest.raises(ConfigError, match="num_threads"):
                check_num_threads(bad)
    finally:
        torch.set_num_threads(before)
