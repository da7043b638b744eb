"""Checks of a loaded head's settings against its target's."""

from __future__ import annotations

from ..errors import InputError
from ..models.heads.published.dflash import DFlashNetwork
from ..models.heads.published.eagle1 import EagleNetwork
from ..models.heads.published.eagle3 import Eagle3Network
from ..models.heads.published.head import PublishedHead
from ..models.heads.published.mtp import MtpNetwork
from .keys import layers_key
from .report import Diagnosis
from .rotary import described, same, target_rotary
from .target import Target


def check_settings(told: Diagnosis, head: PublishedHead, target: Target) -> bool:
    """Check what can be told without a run; False: the head can't run beside the target.

    Args:
        told: is given the findings.
    """
    fits = _layers(told, head, target) and _sizes(told, head, target)
    _norms(told, head)
    _feedback(told, head)
    if head.rotary is not None:
        _rotary(told, head, target)
    _images(told, head, target)
    return fits


def _sizes(told: Diagnosis, head: PublishedHead, target: Target) -> bool:
    try:
        head.meet(target.model)
    except InputError as error:
        told.add("sizes", "fault", str(error))
        return False
    sizes = f"hidden states of {head.target_size}, a vocabulary of {target.vocab_size}"
    mask = getattr(head.network, "mask_token_id", None)
    if mask is not None and not 0 <= mask < target.vocab_size:
        text = f"mask_token_id {mask} lies outside of the vocabulary of {target.vocab_size}"
        told.add("sizes", "fault", f"{text}; take the head of this target")
        return False
    told.add("sizes", "fine", f"the target's: {sizes}")
    return True


def _layers(told: Diagnosis, head: PublishedHead, target: Target) -> bool:
    reads, layers = head.reads_of(target.layers), target.layers
    outside = [number for number in reads if not 0 <= number <= layers]
    if outside:
        text = f"reads hidden states {list(reads)}, and the target has {layers} layers"
        lower = [number - 1 for number in reads]
        if max(lower) <= layers and min(lower) >= 0:
            text += f"; off by one? {layers_key(head, lower)}"
        told.add("layers", "fault", text)
    elif not reads:
        told.add("layers", "fine", f"reads the last hidden state of {layers} layers")
    elif head.reads is None:
        text = f"config.json names none; EAGLE-3's usual {list(reads)} of {layers} layers are read"
        told.add("layers", "note", text)
    else:
        usual, text = (2, layers // 2, layers - 3), f"reads hidden states {list(reads)}"
        side = "in front of" if isinstance(head.network, Eagle3Network) else "behind"
        text += f" of {layers} layers (0: the embeddings, {layers}: {side} the final norm)"
        offset = {own - other for own, other in zip(reads, usual, strict=False)}
        if len(reads) == len(usual) and offset in ({1}, {-1}):
            side = "above" if offset == {1} else "below"
            text += f"; each is one {side} EAGLE-3's usual {list(usual)}"
            told.add("layers", "note", text)
        else:
            told.add("layers", "fine", text)
    return not outside


def _norms(told: Diagnosis, head: PublishedHead) -> None:
    network = head.network
    if isinstance(network, Eagle3Network):
        raw = "normed" if network.layers[0].norm_before_residual else "raw"
        fused = [name for name in ("fc_norm", "input_norm") if hasattr(network, name)]
        text = f"the residual is the {raw} hidden state; {', '.join(fused) or 'no norm'} before fc"
        if "norm_before_residual" not in head.config and head.format.startswith("speculators"):
            text += "; norm_before_residual is not written, and vLLM takes true for it"
            told.add("norms", "note", text)
            return
        told.add("norms", "fine", text)
    elif isinstance(network, MtpNetwork):
        kind = "zero-centred" if network.zero_centred else "ordinary"
        told.add("norms", "fine", f"{kind}; reads states behind the target's final norm")
    elif isinstance(network, EagleNetwork):
        told.add(
            "norms", "fine", "reads states behind the target's final norm; has none of its own"
        )


def _feedback(told: Diagnosis, head: PublishedHead) -> None:
    network = head.network
    if isinstance(network, MtpNetwork):
        side = "behind" if network.feed_normed else "in front of"
        text = f"the next step takes the output {side} the closing norm; config.json does not say"
        told.add("feedback", "note", text)
    if not isinstance(network, Eagle3Network):
        return
    if network.feed_normed:
        text = "the next step takes the output behind the final norm"
    else:
        read = "normed" if network.norm_logits else "raw"
        text = f"the next step takes the raw output; the output layer reads it {read}"
    told.add(
        "feedback", "fine", f"{text} (norm_output: {head.config.get('norm_output', 'not said')})"
    )


def _rotary(told: Diagnosis, head: PublishedHead, target: Target) -> None:
    assert head.rotary is not None
    theirs, own = target_rotary(head, target.decoder.config), described(head.rotary)
    if theirs is None or same(theirs, head.rotary):
        told.add("rotary", "fine", f"{own}{'' if theirs is None else ', as the target'}")
    else:
        text = f"{own}, and the target has {described(theirs)}; heads may differ in this"
        told.add("rotary", "note", text)


def _images(told: Diagnosis, head: PublishedHead, target: Target) -> None:
    if target.processor is None:
        told.add("images", "fine", "the target sees no pictures")
    elif isinstance(head.network, DFlashNetwork):
        told.add("images", "fine", "reads the hidden states at pictures, and no embeddings there")
    elif isinstance(head.network, Eagle3Network):
        text = "reads the picture's embeddings at its places; vLLM shows the placeholder's there"
        told.add("images", "note", text)
    elif isinstance(head.network, EagleNetwork):
        ways = {"eagle": "through fc", "mtp": "through fc", "msd": "past fc"}
        how = ways.get(head.method, "compressed")
        told.add("images", "fine", f"reads the picture's embeddings, {how}")
    else:
        told.add("images", "fine", "reads the last hidden state alone")
