"""Keys of `config.json` to change, by the layout that a head was read from."""

from __future__ import annotations

from collections.abc import Sequence

from ..models.heads.formats.eagle3 import LAYERS, MASKS
from ..models.heads.published.dflash import DFlashNetwork
from ..models.heads.published.eagle3 import Eagle3Network
from ..models.heads.published.head import PublishedHead


def layers_key(head: PublishedHead, reads: Sequence[int]) -> str:
    """Advice to read the hidden states `reads`."""
    if isinstance(head.network, DFlashNetwork):
        if head.format.startswith("speculators"):
            return f"set aux_hidden_state_layer_ids to {list(reads)}"
        return f"set target_layer_ids to {[number - 1 for number in reads]}"
    if isinstance(head.network, Eagle3Network):
        return f"set {LAYERS} to {list(reads)}"
    return "train the head on the last hidden state: no key of config.json names another"


def feedback_key(head: PublishedHead, feed: bool, logits: bool) -> str:
    """Advice for a feedback; `feed` and `logits` as in `Eagle3Network`."""
    if head.format.startswith("speculators"):
        if logits:
            return f"set norm_output to {str(feed).lower()}"
        return "convert it to eagle3: speculators has no such head"
    if feed:
        return 'set norm_output to true and architectures to ["LlamaForCausalLM"]'
    if logits:
        return "remove norm_output: readers differ in its meaning, and this is what all do without"
    return "train it again: a SpecForge before September 2026 did so, and no key says it"


def mask_key(head: PublishedHead, token: int) -> str:
    """Advice for another mask token."""
    known = (key for key in MASKS if key in head.config)
    return f"set {next(known, 'mask_token_id')} to {token}"


def anchor_key(head: PublishedHead, anchored: bool) -> str:
    """Advice for blocks whose places say the tokens behind them, or those that stand there."""
    if head.method == "domino":
        return f"set shift_label to {str(anchored).lower()}"
    change = f"set sample_from_anchor to {str(anchored).lower()}"
    if head.format.startswith("speculators"):
        return change
    return f"convert it to speculators and {change}"
