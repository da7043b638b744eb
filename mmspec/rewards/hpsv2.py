"""HPS v2: a CLIP tuned on human choices between pictures of a prompt.

Wu et al. 2023, "Human Preference Score v2: A Solid Benchmark for Evaluating Human Preferences of
Text-to-Image Synthesis", section 4. The published files are open_clip's ViT-H-14 under
"state_dict"; pictures are fitted into the square by their longer side and padded with black.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from .clip_score import ClipReward
from .registry import RewardPart

if TYPE_CHECKING:
    import torch

    from .networks.clip import OpenCLIP

ARCHITECTURE = "ViT-H-14"
PREPROCESS = {"resize_mode": "longest", "fill_color": 0}
# published files by the name of their scores, which don't compare with each other
WEIGHTS = {"hpsv2": "HPS_v2_compressed.pt", "hpsv2.1": "HPS_v2.1_compressed.pt"}
HPSV2 = RewardPart(
    "hpsv2",
    "mmspec.rewards.hpsv2:HPSv2",
    weights="the file HPS_v2.1_compressed.pt or HPS_v2_compressed.pt (of xswu/HPSv2)",
    bounds=(-1, 1),
    scored_as=tuple(WEIGHTS),
)


class HPSv2(ClipReward):
    """The cosine of the prompt's and the picture's embeddings, as the authors' `score` gives it.

    Their benchmark tables, and most papers, print 100 times that.

    Args:
        clip: the tuned model.
        name: `hpsv2` or `hpsv2.1`.
    """

    def __init__(self, clip: OpenCLIP, name: str = "hpsv2") -> None:
        super().__init__(clip)
        self.name = name

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, device: str | torch.device = "cpu", batch_size: int = 32
    ) -> HPSv2:
        """The published model.

        Args:
            path: `HPS_v2_compressed.pt` or `HPS_v2.1_compressed.pt` (of xswu/HPSv2), or a folder
                with one of them.

        Raises:
            InputError: none or both of the files, an unreadable one, or a tensor is missing,
                unexpected or of another shape.
        """
        from .networks.clip import OpenCLIP

        path = Path(path)
        found = [path]
        if path.is_dir():
            found = [path / file for file in WEIGHTS.values() if (path / file).is_file()]
        if len(found) != 1:
            which = "both" if found else "neither"
            names = " and ".join(WEIGHTS.values())
            raise InputError(f"{path} holds {which} of {names}: name one file")
        name = "hpsv2.1" if "v2.1" in found[0].name else "hpsv2"
        clip = OpenCLIP.from_checkpoint(
            found[0], ARCHITECTURE, preprocess=PREPROCESS, device=device, batch_size=batch_size
        )
        return cls(clip, name)
