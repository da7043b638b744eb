"""Cross-block caching: layers of a video model that add what they added to the block before."""

from __future__ import annotations

from typing import Any

from ..options import Options, option
from ..part import Preset

REUSE_THRESHOLD = 0.7


class ReuseOptions(Options):
    reuse_blocks: int = option(
        1, "blocks behind the one that layers were run for which may reuse their residual", 1, 1024
    )
    reuse_layers: int = option(
        1, "layers that are run, or spared, together; more take less memory", 1, 1024
    )


class NearReuseOptions(ReuseOptions):
    reuse_threshold: float = option(
        0.0,
        "how near, relatively, a layer's input must be to that of the block before for its "
        "residual to be reused; more is faster; 0: none is",
        0,
    )

    def approximates(self) -> bool:
        return self.reuse_threshold > 0


class ChanceReuseOptions(ReuseOptions):
    reuse_share: float = option(
        0.3, "part of the layers with a residual that reuse it; more is faster", 0, 1
    )

    def approximates(self) -> bool:
        return self.reuse_share > 0


_OF_TARGET: Any = dict(drafter="null", rule="token", serves=("video",), paper="Zeng et al. 2026")

PARTS = (
    Preset(
        "x-cache",
        summary="layers add what they added to the block before where their input is near its",
        knob="reuse_threshold",
        sweep=(0.65, 0.7, 0.75, 0.8),
        settings={"reuse_threshold": REUSE_THRESHOLD},
        options={"video": NearReuseOptions},
        **_OF_TARGET,
    ),
    Preset(
        "random-reuse",
        summary="layers add what they added to the block before by chance; nobody looks at inputs",
        role="sceptic",
        knob="reuse_share",
        sweep=(0.1, 0.2, 0.3, 0.5),
        options={"video": ChanceReuseOptions},
        **_OF_TARGET,
    ),
)
