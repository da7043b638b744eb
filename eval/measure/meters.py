"""Peak memory and energy, as far as the platform tells."""

from __future__ import annotations

from pathlib import Path

import torch

PROCESS = Path("/proc/self")
POWERCAP = Path("/sys/class/powercap")


class PeakMemory:
    """Most memory in use since this object was made, by the device if it has its own memory.

    Else by the process, where the system lets it reset the high-water mark (Linux does).
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self._known = True
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)
            return
        try:
            (PROCESS / "clear_refs").write_text("5")  # proc(5): resets the peak resident set
        except OSError:
            self._known = False

    def read(self) -> int | None:
        """Bytes, or None if it can't be told."""
        if self._cuda is not None:
            return int(torch.cuda.max_memory_allocated(self._cuda))
        if not self._known:
            return None
        lines = (PROCESS / "status").read_text().splitlines()
        kibibytes = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
        return int(kibibytes) * 1024


class EnergyMeter:
    """Joules used by the device: a GPU's own counter, or the processor packages' (RAPL).

    Counters of packages hold what everything on the machine used, and turn over at their range.
    """

    def __init__(self, device: torch.device) -> None:
        self._handle = _nvml_handle(device) if device.type == "cuda" else None
        zones = [] if device.type == "cuda" else _packages()
        self._zones = [(zone / "energy_uj", zone / "max_energy_range_uj") for zone in zones]

    def read(self) -> list[float] | None:
        """Joules on every counter, or None if there is none to read."""
        if self._handle is not None:
            import pynvml

            return [pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3]
        try:
            return [float(counter.read_text()) / 1e6 for counter, _ in self._zones] or None
        except OSError:  # most systems show these to the administrator alone
            return None

    def since(self, before: list[float] | None) -> float | None:
        """Joules used since an earlier reading."""
        now = self.read()
        if before is None or now is None:
            return None
        used = [a - b for a, b in zip(now, before, strict=True)]
        for i, (_, most) in enumerate(self._zones):
            if used[i] < 0:
                used[i] += float(most.read_text()) / 1e6
        return sum(used)


def _packages() -> list[Path]:
    """The processor's packages; other zones are parts of them, or hold them."""
    zones = sorted(POWERCAP.glob("intel-rapl:?"))
    return [zone for zone in zones if (zone / "name").read_text().startswith("package")]


def _nvml_handle(device: torch.device) -> object | None:
    """The card's energy counter; None without NVML's package, a driver, or the counter."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        # by its name: NVML counts all cards, PyTorch those that this process may see
        uuid = torch.cuda.get_device_properties(device).uuid
        handle: object = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError:
        return None
    return handle
