"""Drafters of chains of token ids."""

from __future__ import annotations

from typing import Literal

from ...errors import InputError
from ..options import option
from ..part import Drafter, Preset
from .shared import CHAIN, ONE_LAW, ChainOptions, LivingOptions, SiblingsOptions, table_lives


class ModelOptions(ChainOptions):
    def calls(self, depth: int) -> list[int]:
        return [1] * depth


class LookupOptions(ChainOptions):
    max_ngram: int = option(3, "most last tokens by which an earlier place is found", 1, 64)


class JoinedOptions(ModelOptions, LivingOptions):
    run_cache: int = option(
        4096,
        "runs of draft tokens that are one of the target's, known at a time; 0: none is joined",
        0,
        2**20,
    )

    def drawn(self, depth: int) -> int:
        """Tokens of the draft model, and nodes that are made of them."""
        return 2 * depth


class BlockOptions(ChainOptions, SiblingsOptions):
    def calls(self, depth: int) -> list[int]:
        return [depth]  # as one


class CopyOptions(ModelOptions):
    hot_experts: int | None = option(
        None,
        "sparse experts of a layer that drafts may choose, those chosen most so far; none: all",
        1,
    )


class InnerOptions(CopyOptions):
    inner: str = option("lookup", "drafter that drafts for the rounded copy of the target")
    inner_draft_tokens: int = option(
        4, "how many it drafts before that copy checks", 1, 64, limits=("depth",)
    )


class FuzzyOptions(ModelOptions):
    fuzzy_layers: int = option(
        4, "draft model's layers in a row whose attentions read one input, the first's", 1, 64
    )

    def calls(self, depth: int) -> list[int]:
        return [depth + 1, *[1] * (depth - 1)][:depth]  # the first reads what stood once more


class SortedOptions(ModelOptions):
    exits: tuple[int, ...] | None = option(
        None, "layers of the draft model in front of each exit; none: its own, or all", 1
    )
    exit_confidence: tuple[float, ...] = option(
        (0.6,), "by exit, largest probability from which a token is drawn there", 0, 1
    )


class AheadOptions(ModelOptions):
    draft_beside: Literal["process", "thread", "here"] | None = option(
        None,
        "where drafting goes on while the target reads; none: a stream of its own on a GPU, a "
        "process on a processor with a second core, and elsewhere nowhere",
    )

    def drawn(self, depth: int) -> int:
        """Tokens of a draft and of the next one, each with a guess in front."""
        return 2 * (depth + 1)


class LayersOptions(ChainOptions):
    def check_layers(self, layers: int) -> None:
        if layers < 2:
            raise InputError(
                "a target that drafts with some of its layers needs two of them or more"
            )


class ExitOptions(LayersOptions):
    exit_layer: int | None = option(None, "layers that draft; none: chosen as it runs", 1)

    def check_layers(self, layers: int) -> None:
        super().check_layers(layers)
        if self.exit_layer is not None and self.exit_layer >= layers:
            raise InputError(
                f"exit_layer must be below the target's {layers} layers, not {self.exit_layer}"
            )


PARTS = (
    Drafter(
        "model",
        ".draft_model:ModelDrafter",
        "a smaller model drafts token by token",
        ModelOptions,
        needs=("drafter",),
        model="token",
        watched=True,
        nests=True,
        paper="Leviathan et al. 2023",
        **CHAIN,
        **ONE_LAW,
    ),
    Drafter(
        "joined",
        ".joined:JoinedDrafter",
        "a smaller model of other words drafts, and runs of its tokens are joined",
        JoinedOptions,
        {"table_lives": table_lives},
        needs=("drafter",),
        watched=True,
        paper="Ramakrishnan et al. 2025",
        **CHAIN,
        **ONE_LAW,
    ),
    Drafter(
        "fuzzy",
        ".fuzzy:FuzzyDrafter",
        "a smaller model drafts, several of its layers' attentions at once",
        FuzzyOptions,
        needs=("drafter",),
        watched=True,
        paper="Wu et al. 2025",
        **CHAIN,
        **ONE_LAW,
    ),
    Drafter(
        "sorted",
        ".sorted_exits:sorted_exits",
        "a smaller model drafts each token with as many layers as make it sure",
        SortedOptions,
        {"thresholds": "exit_confidence"},
        needs=("drafter",),
        returns=True,
        paper="Kavehzadeh et al. 2024",
        **CHAIN,
        **ONE_LAW,
    ),
    Drafter(
        "ahead",
        ".ahead:AheadDrafter",
        "a smaller model drafts on while the target reads what it drafted before",
        AheadOptions,
        {"place": "draft_beside"},
        needs=("drafter",),
        fixed=True,
        ahead=True,
        paper="Liu et al. 2025",
        **CHAIN,
        **ONE_LAW,
    ),
    Drafter(
        "block",
        ".feature.block:BlockDrafter",
        "a head drafts several tokens a call",
        BlockOptions,
        {"how": lambda options, offers: "top" if options.siblings == "top" else "drawn"},
        model="block",
        nests=True,
        **CHAIN,
    ),
    Drafter(
        "early-exit",
        ".self_speculation:early_exit",
        "the target's first layers draft",
        ExitOptions,
        own_layers=True,
        paper="Liu et al. 2024",
        **CHAIN,
        **ONE_LAW,
    ),
    Drafter(
        "layer-skip",
        ".self_speculation:layer_skip",
        "the target drafts with the layers that it needs least",
        LayersOptions,
        own_layers=True,
        paper="Xia et al. 2024",
        **CHAIN,
        **ONE_LAW,
    ),
    Drafter(
        "lookup",
        ".prompt_lookup:PromptLookupDrafter",
        "what followed the last tokens the time before",
        LookupOptions,
        {"longest": "max_ngram"},
        merges=True,
        nests=True,
        laws=False,
        paper="Saxena 2023",
        **CHAIN,
    ),
    Drafter(
        "rounded",
        ".rounded_target:RoundedDrafter",
        "the target on rounded weights drafts, over the target's cache",
        CopyOptions,
        {"model": "rounded"},
        rounds=True,
        watched=True,
        paper="Georganas et al. 2025",
        **CHAIN,
        **ONE_LAW,
    ),
    Drafter(
        "nested",
        ".nested:nested",
        "a drafter drafts for the target on rounded weights, and that for the target",
        InnerOptions,
        {"depth": "inner_draft_tokens", "inner": "inner_drafter"},
        rounds=True,
        paper="Georganas et al. 2025",
        **CHAIN,
        **ONE_LAW,
    ),
    Preset("draft", "model", "token", "a smaller model drafts"),
    Preset(
        "omnidraft",
        "joined",
        "token",
        "a smaller model of other words drafts, and runs of its tokens are joined",
        serves=("vlm",),
    ),
    Preset(
        "pearl",
        "ahead",
        "token",
        "a smaller model drafts on while the target reads what it drafted before",
    ),
    Preset(
        "easyspec",
        "fuzzy",
        "token",
        "a smaller model drafts, several of its layers' attentions at once",
    ),
    Preset(
        "s2d",
        "sorted",
        "token",
        "a smaller model drafts each token with as many layers as make it sure",
        serves=("vlm",),
    ),
    Preset(
        "early-exit",
        "early-exit",
        "token",
        "the target's first layers draft; it finds out how many",
    ),
    Preset(
        "layer-skip", "layer-skip", "token", "the target drafts with the layers that it needs least"
    ),
    Preset(
        "specqd", "rounded", "token", "the target's own weights, rounded, draft; needs nothing else"
    ),
    Preset(
        "ml-specqd",
        "nested",
        "token",
        "three levels: a drafter, the target's weights rounded, the target",
        settings={"num_draft_tokens": 8},
    ),
    Preset("prompt-lookup", "lookup", "token", "copies what followed the same tokens"),
)
