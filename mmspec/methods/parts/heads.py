"""Draft heads over a frozen target."""

from __future__ import annotations

from typing import Literal, get_args

from ..options import Options, option
from ..part import Head, Preset

Branch = Literal["pruning", "pooling", "convolution", "resampler", "text-only"]
Choice = Literal["gate", "sum", "whole", Branch]
BRANCHES: tuple[Branch, ...] = get_args(Branch)
CHOICES: tuple[Choice, ...] = get_args(Choice)


class BranchOptions(Options):
    branch: Choice | None = option(None, "how pictures are shortened; none: as it was saved")


def head_preset(head: str, summary: str, length: int, drafter: str = "model") -> Preset:
    """A head over a language model that drafts chains.

    What a good head draws stands as often at temperature 1 as its likeliest token does greedily,
    and on a processor a tree's further nodes take longer than they gain.
    """
    settings = {"num_draft_tokens": length}
    return Preset(head, drafter, "token", summary, settings=settings, serves=("vlm",), head=head)


PARTS = (
    Head(
        "eagle",
        ".published.eagle1:EagleNetwork",
        "one layer on the target's features",
        paper="Li et al. 2024",
    ),
    Head(
        "vispec",
        ".published.vispec:ViSpecNetwork",
        "eagle's; a picture is a vector or two, and one for all text",
        sees=True,
        paper="Kang et al. 2025",
    ),
    Head(
        "specvlm",
        ".published.specvlm:SpecVlmNetwork",
        "eagle's; the question chooses how a picture is shortened",
        BranchOptions,
        sees=True,
        paper="Huang et al. 2025",
    ),
    Head(
        "msd",
        ".published.eagle1:MsdNetwork",
        "eagle's; pictures and text come in by ways of their own",
        sees=True,
        paper="Lin et al. 2025",
    ),
    Head(
        "hydra",
        ".published.hydra:HydraNetwork",
        "small heads, each in the light of the tokens drafted before it",
        paper="Ankner et al. 2024",
    ),
    Head(
        "flash",
        ".published.flash:FlashNetwork",
        "pictures are pooled, a call says several tokens",
        blocks=True,
        sees=True,
        paper="Wang et al. 2025",
    ),
    Head(
        "falcon",
        ".published.falcon:FalconNetwork",
        "an LSTM and a layer, a call says a block of tokens that know of each other",
        blocks=True,
        trees=True,
        paper="Gao et al. 2025",
    ),
    Head(
        "dflash",
        ".published.dflash:DFlashNetwork",
        "a block of masked tokens is denoised",
        blocks=True,
        paper="Chen et al. 2026",
    ),
    Head(
        "eagle3",
        ".published.eagle3:Eagle3Network",
        "one layer on hidden states of several of the target's layers",
        paper="Li et al. 2025",
    ),
    Head(
        "peagle",
        ".published.eagle3:Eagle3Network",
        "eagle3's; masked places say the tokens ahead in the same call",
        blocks=True,
        trained=False,
        paper="Hui et al. 2026",
    ),
    Head(
        "dspark",
        ".published.dflash:DFlashNetwork",
        "dflash's; each token corrects the next one's law",
        trained=False,
        paper="Cheng et al. 2026",
    ),
    Head(
        "domino",
        ".published.dflash:DFlashNetwork",
        "dflash's; a recurrent network corrects the laws token by token",
        trained=False,
        paper="Huang et al. 2026",
    ),
    Head(
        "longspec",
        ".published.longspec:LongSpecNetwork",
        "one layer over the target's last keys and values, and a window",
        paper="Yang et al. 2025",
    ),
    Head(
        "medusa",
        ".published.medusa:MedusaNetwork",
        "small heads, each a token further ahead",
        paper="Cai et al. 2024",
    ),
    Head(
        "mtp",
        ".published.mtp:MtpNetwork",
        "a target's own layer for the token after the next",
        trained=False,
        paper="DeepSeek-AI 2024",
    ),
    head_preset("mtp", "the target's own layer for the token after the next", 2),
    head_preset("eagle3", "a head on hidden states of several of the target's layers", 3),
    head_preset("peagle", "eagle3's head; masked places say the tokens ahead", 5, "block"),
    head_preset("dspark", "dflash's head; each token corrects the next one's law", 6),
    head_preset("domino", "dflash's head; a recurrent network corrects the laws", 6),
    head_preset("longspec", "a layer of constant memory on the target's last keys", 4),
    head_preset("medusa", "small heads, each a token further ahead", 3),
    head_preset("vispec", "eagle's head; a picture is a vector or two, and one for all text", 6),
    head_preset("specvlm", "eagle's head; the question chooses how a picture is shortened", 6),
    head_preset("msd", "eagle's head; pictures and text come in by ways of their own", 6),
    head_preset("hydra", "small heads, each in the light of the tokens drafted before it", 6),
    head_preset("flash", "a head with pooled pictures drafts several tokens a call", 5, "block"),
    head_preset("falcon", "an LSTM and a layer draft two tokens a call", 4, "block"),
)
