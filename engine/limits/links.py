"""Models of the links between ranks, for the expert exchange in plans and benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.errors import ConfigError, nearest

from .device_profiles import DeviceProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The outgoing direction of one rank's link.

    bytes_per_s     payload rate of one rank
    latency_s       time of an almost empty exchange
    ranks_per_node  ranks behind one receiver: a token is sent once to each node that needs it
    """

    name: str
    bytes_per_s: float
    latency_s: float
    ranks_per_node: int
    source: str

    def num_receivers(self, num_ranks: int) -> int:
        """Receivers a token can be sent to, including its own.  Raises: ConfigError."""
        if self.ranks_per_node > 1 and num_ranks > 1 and num_ranks % self.ranks_per_node:
            raise ConfigError(
                f"{num_ranks} ranks over {self.name}: expected a multiple of the "
                f"{self.ranks_per_node} ranks of a node"
            )
        return max(1, num_ranks // self.ranks_per_node)


NVLINK = Link(
    name="nvlink",
    bytes_per_s=450e9,
    latency_s=15e-6,
    ranks_per_node=1,
    source="NVLink 4, published; latency of a peer store measured between two H200",
)
NVLINK5 = Link(
    name="nvlink5",
    bytes_per_s=900e9,
    latency_s=15e-6,
    ranks_per_node=1,
    source="NVLink 5, published; latency taken from NVLink 4",
)
RDMA400 = Link(
    name="rdma400",
    bytes_per_s=50e9,
    latency_s=20e-6,
    ranks_per_node=8,
    source="one 400 Gb/s adapter per GPU and eight GPUs a node; latency assumed",
)
RDMA800 = Link(
    name="rdma800",
    bytes_per_s=100e9,
    latency_s=20e-6,
    ranks_per_node=8,
    source="one 800 Gb/s adapter per GPU and eight GPUs a node; latency assumed",
)

LINKS = {link.name: link for link in (NVLINK, NVLINK5, RDMA400, RDMA800)}


def link(name: str) -> Link:
    """The link called ``name``.  Raises: ConfigError naming the known links."""
    known = LINKS.get(name.lower())
    if known is None:
        hint = nearest(name.lower(), LINKS)
        raise ConfigError(f"link={name!r}: expected one of {', '.join(LINKS)}{hint}")
    return known


def device_link(device: DeviceProfile) -> Link:
    """The fabric inside a node of this device, as if it connected all ranks."""
    return Link(
        name=f"{device.name} fabric",
        bytes_per_s=device.link_bytes_per_s,
        latency_s=NVLINK.latency_s,
        ranks_per_node=1,
        source=device.source,
    )
