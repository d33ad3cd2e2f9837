"""The main functions of rank processes and replicas."""

from __future__ import annotations

import hashlib

import torch

from deepinfer import __version__
from deepinfer.engine.checkpoint.hub_cache import resolve_model_folder
from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.execution.prefill import PrefillWorker
from deepinfer.engine.memory.device_memory import DeviceMemory
from deepinfer.engine.parallel.groups import connect, join
from deepinfer.engine.parallel.mailbox import Mailbox
from deepinfer.engine.parallel.peer_memory import all_reach_each_other
from deepinfer.engine.parallel.prefill_server import PrefillServer
from deepinfer.engine.parallel.rank import Rank
from deepinfer.engine.parallel.redundancy import sized_by_memory
from deepinfer.engine.parallel.remote_prefill import RemotePrefillWorker
from deepinfer.loading import load_model, load_weights, open_model
from deepinfer.machine import device_count, set_cpu_threads
from deepinfer.recipes.embedded import embedded_model_path

from .messages import RankOrder, Ready
from .rows import Alone, RankRows, RowMailbox

# Maximum tokens per rank in passes whose exchange does not wait for the host.  Its buffers hold
# every token for every rank, so with many ranks, and for prompts through NCCL, sizes are exchanged
# instead.
_MOST_RANKS_WITH_CAPACITY = 8
_PEER_CAPACITY, _NCCL_CAPACITY = 8192, 512


def rank_main(mailbox: Mailbox, order: RankOrder) -> None:
    """Load the model, report ready, then serve one run after another."""
    device = order.device
    if device in ("cuda", "npu"):
        device = f"{device}:{order.rank % device_count(device)}"
        torch.get_device_module(device).set_device(device)
    store = connect(order.host, order.port)
    world_size = order.sizes.world_size
    join(store, order.rank, world_size, facts=_facts(order), device=device)
    if device == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // world_size))
    rank = _rank(order, device)
    if not rank.takes_rows:
        opened = open_model(order.model_path, order.settings, device=device, rank=rank)
        set_cpu_threads(order.num_threads, opened.checkpoint.config.hidden_size)
        model = load_weights(opened, device, rank)
        rank.follow(model, rank.plan_cache(model, opened.engine_config)[1])
        return
    settings, remote_prefill = dict(order.settings), None
    links = [Mailbox(link, is_driver=False) for link in order.links.values()]
    if order.rank in order.sizes.prefill:
        settings["schedule_drafts"] = False
    elif links:
        # Prefix caching is done by the prefill ranks.
        settings["enable_prefix_caching"] = False

        def remote_prefill(local: PrefillWorker) -> RemotePrefillWorker:
            return RemotePrefillWorker(local, links, rank.inboxes())

    loaded = load_model(
        order.model_path,
        settings,
        device=device,
        num_threads=order.num_threads,
        profile_path=order.profile_path,
        kernels=order.kernels,
        rank=rank,
        remote_prefill=remote_prefill,
    )
    rank.finish()
    engine_config = loaded.engine.config
    mailbox.send(Ready(loaded.folder, loaded.config, engine_config, loaded.notes))
    if order.rank in order.sizes.prefill:
        PrefillServer(loaded.engine, links, rank.outboxes()).serve(rank.rest)
    RankRows(mailbox, loaded, rank, order.seed).serve()


def _rank(order: RankOrder, device: str) -> Rank:
    """This rank, with the fastest exchange that its devices support."""
    settings = order.settings
    sizes = sized_by_memory(
        order.sizes,
        open_checkpoint(order.model_path or embedded_model_path()).config,
        DeviceMemory.of(device),
        settings.get("gpu_memory", EngineConfig().gpu_memory),
    )
    count = sizes.world_size
    if device == "cpu" or count > _MOST_RANKS_WITH_CAPACITY:
        return Rank(sizes)
    is_one_host = sizes.ranks_per_node in (0, count)
    if is_one_host and count <= torch.cuda.device_count() and all_reach_each_other(count):
        step = settings.get("max_num_batched_tokens", EngineConfig().max_num_batched_tokens)
        return Rank(sizes, capacity=min(step, _PEER_CAPACITY), uses_peer_memory=True)
    return Rank(sizes, capacity=_NCCL_CAPACITY)


def replica_main(mailbox: RowMailbox, order: RankOrder) -> None:
    """The same for a replica, which is a whole engine without peers."""
    loaded = load_model(
        order.model_path,
        order.settings,
        device=order.device,
        num_threads=order.num_threads,
        kernels=order.kernels,
    )
    config, notes = loaded.engine.config, loaded.notes
    mailbox.send(Ready(loaded.folder, loaded.config, config, notes, _facts(order)))
    RankRows(mailbox, loaded, Alone(), order.seed).serve()


def _facts(order: RankOrder) -> dict[str, str]:
    """What must be the same on all ranks."""
    folder = resolve_model_folder(order.model_path or embedded_model_path())
    config = (folder / "config.json").read_bytes() if folder.is_dir() else b""
    return {
        "the version of deepinfer": __version__,
        "the version of torch": torch.__version__,
        "the digest of config.json": hashlib.sha256(config).hexdigest()[:16],
        "the settings": repr((order.sizes, sorted(order.settings.items()), order.seed)),
    }
