"""Energy from the processor's counters (Linux powercap), if this user may read them."""

from __future__ import annotations

from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Counts from its creation.  ``joules`` is None if no counter can be read."""

    def __init__(self, root: Path = _POWERCAP) -> None:
        # A package ("intel-rapl:0") includes its parts ("intel-rapl:0:0").
        self._zones = [zone for zone in root.glob("*rapl*:*") if zone.name.count(":") == 1]
        self._first = self._read()

    def joules(self) -> float | None:
        """Joules since the creation of the meter; counters that wrapped around are assumed to have
        done so once."""
        now = self._read()
        if not self._first or now.keys() != self._first.keys():
            return None
        total = 0
        for zone, value in now.items():
            spent = value - self._first[zone]
            total += spent if spent >= 0 else spent + _number(zone / "max_energy_range_uj")
        return total / 1e6

    def _read(self) -> dict[Path, int]:
        try:
            return {zone: _number(zone / "energy_uj") for zone in self._zones}
        except (OSError, ValueError):
            return {}


def _number(path: Path) -> int:
    return int(path.read_text())
