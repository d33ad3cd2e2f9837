"""Joules that the processor itself counts (Linux powercap), where this user may read them."""

from __future__ import annotations

from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Counts from its making.  ``joules`` is None where no counter can be read."""

    def __init__(self, root: Path = _POWERCAP) -> None:
        # A package ("intel-rapl:0") includes its parts ("intel-rapl:0:0").
        self._zones = [zone for zone in root.glob("*rapl*:*") if zone.name.count(":") == 1]
        self._first = self._read()

    def joules(self) -> float | None:
        """Since the meter was made; counters that started again at 0 are taken to have done so
        once."""
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
