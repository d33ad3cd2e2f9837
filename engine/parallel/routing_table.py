"""Maps expert ids of one layer to replicas: rank, and local index there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .expert_balance import Placement


@dataclass(frozen=True, eq=False)
class RoutingTable:
    """E experts, at most M replicas of each.

    rank, place [E, M] i64 rank and local index of each replica, padded with those of replica 0
    count       [E] i64    number of replicas
    members     the expert at each local index of each rank
    """

    rank: Tensor
    place: Tensor
    count: Tensor
    members: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(placement: Placement, layer: int, device: torch.device | str = "cpu") -> RoutingTable:
        logical = torch.from_numpy(placement.logical_to_physical[layer])
        replicas = torch.where(logical < 0, logical[:, :1], logical).to(device)
        ranks = torch.from_numpy(placement.device_of_replica).to(device)
        first = torch.searchsorted(ranks, torch.arange(placement.num_devices, device=device))
        physical = torch.from_numpy(placement.physical_to_logical[layer])
        members = tuple(
            tuple(physical[ranks.cpu() == rank].tolist()) for rank in range(placement.num_devices)
        )
        return RoutingTable(
            rank=ranks[replicas],
            place=replicas - first[ranks[replicas]],
            count=torch.from_numpy(placement.num_replicas[layer]).to(device),
            members=members,
        )

    def route(self, ids: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Rank and local index for ids [T, K] i64, each [T, K] i64; -1 stays -1.

        Tokens use the replicas of an expert round-robin, starting with number ``start``, which
        should differ between ranks, so that all replicas get the same number of tokens.
        """
        known = ids.clamp(min=0)
        turn = torch.arange(start, start + len(ids), device=ids.device)[:, None]
        choice = (turn % self.count[known])[..., None]
        rank = self.rank[known].gather(-1, choice)[..., 0]
        place = self.place[known].gather(-1, choice)[..., 0]
        return torch.where(ids < 0, ids, rank), torch.where(ids < 0, ids, place)
