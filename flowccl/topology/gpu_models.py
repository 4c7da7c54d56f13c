"""GPU models: what a runtime must know about the chip."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A model of GPU: its streaming multiprocessors (compute units at AMD), and whether its NVSwitch has NVLS."""

    sms: int
    nvls: bool = False


GPU_MODELS = {  # vendors' data sheets and architecture papers
    "V100": GpuModel(80),
    "A100": GpuModel(108),
    "H100": GpuModel(132, nvls=True),  # SXM5
    "H200": GpuModel(132, nvls=True),
    "B200": GpuModel(148, nvls=True),
    "GB200": GpuModel(148, nvls=True),
    "MI250": GpuModel(104),  # one of the two dies of a package
    "MI300X": GpuModel(304),
}
"""The known models by name."""
