"""Conventions by which a head may have been trained: its files' own, and changes of one thing.

Each is a small change of the loaded head, of the target's hidden states, or of its inputs. Weights
are shared with the head that was loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..draft.feature.feature_model import FeatureModel
from ..models.guided import GuidedDecoder
from ..models.heads.columns import Images
from ..models.heads.published.dflash import DFlashNetwork
from ..models.heads.published.eagle1 import EagleNetwork, MsdNetwork
from ..models.heads.published.eagle3 import Eagle3Network
from ..models.heads.published.head import PublishedHead
from ..models.heads.published.medusa import MedusaNetwork
from ..models.heads.published.mtp import MtpNetwork
from ..models.heads.published.vocabulary import DraftVocabulary
from ..models.transformers.causal import CausalDecoder
from .inputs import as_model, lagged, normed_output, placeholders, unnormed
from .keys import anchor_key, feedback_key, layers_key, mask_key
from .rotary import rotaries
from .target import Target

Change = Callable[[PublishedHead], None]
Make = Callable[..., FeatureModel]


def _nothing(head: PublishedHead) -> None:
    """Change nothing."""


@dataclass(frozen=True)
class Convention:
    """A reading of a head's files.

    Attributes:
        check: the check that it belongs to, such as "layers".
        name: what is read otherwise.
        advice: what to change if it is the right one.
        change: of a copy of the head that shares its weights.
        target: surrounds the generation, with other hidden states; None: the usual ones.
        model: makes the draft model of the head, the target, pictures, ids and the usual maker.
        pictures: it differs only where there are pictures.
    """

    check: str
    name: str
    advice: str = ""
    change: Change = _nothing
    target: Callable[[CausalDecoder], AbstractContextManager[None]] | None = None
    model: Callable[[PublishedHead, GuidedDecoder, Images | None, Tensor, Make], FeatureModel] = (
        as_model
    )
    pictures: bool = False

    def of(self, head: PublishedHead) -> PublishedHead:
        """The head under this convention; it shares the weights of `head`."""
        shared: dict[int, Any] = {id(weight): weight for weight in head.parameters()}
        own = copy.deepcopy(head, shared)
        self.change(own)
        return own


STATED = Convention("acceptance", "as its files say")


def neighbours(head: PublishedHead, target: Target) -> list[Convention]:
    """Conventions that differ in one thing from what the head's files say."""
    found = [*_layers(head, target.layers), *_features(head, target)]
    network = head.network
    if isinstance(network, Eagle3Network):
        found += [*_feedback(head), *_residual(network)]
    if isinstance(network, MtpNetwork):
        found.append(_raw_feedback())
    if isinstance(network, EagleNetwork):
        found += _kinds(head)
    # others read pictures by an adapter, or draft blocks
    if type(network) in (EagleNetwork, MsdNetwork, Eagle3Network, MtpNetwork):
        found += _pictures(head, target)
        if getattr(network, "mask_token_id", None) is None:
            found.append(_lagged())
    if isinstance(network, DFlashNetwork):
        found += _anchor(head, network)
    if isinstance(network, MedusaNetwork):
        found += _fewer_heads(network)
    if getattr(network, "mask_token_id", None) is not None:
        found += _masks(head, target.masks)
    found += _rotary(head, target)
    if head.vocabulary is not None:
        found += _maps(head.vocabulary)
    return found


def _layers(head: PublishedHead, layers: int) -> Iterator[Convention]:
    """The hidden states of other layers."""
    stated = head.reads_of(layers) or (layers,)
    usual = (2, layers // 2, layers - 3)
    others = {
        "one layer up": tuple(number + 1 for number in stated),
        "one layer down": tuple(number - 1 for number in stated),
    }
    if isinstance(head.network, Eagle3Network) and len(stated) == len(set(usual)) == 3:
        others["that EAGLE-3 reads where nothing is said"] = usual
    for name, reads in others.items():
        if reads != stated and all(0 <= number <= layers for number in reads):
            change = _setting("reads", reads)
            text = f"the target's hidden states {list(reads)}, {name}, in place of {list(stated)}"
            yield Convention("layers", text, layers_key(head, reads), change)


def _features(head: PublishedHead, target: Target) -> Iterator[Convention]:
    """The last hidden state in front of the final norm, where EAGLE-3 always takes it."""
    norm = getattr(target.decoder.body, "norm", None)
    if norm is None or isinstance(head.network, Eagle3Network):
        return
    if target.layers not in (head.reads_of(target.layers) or (target.layers,)):
        return
    advice = (
        "runtimes give a head the last hidden state behind the target's final norm: train the head "
        "on that (no key of config.json says otherwise)"
    )
    name = "the target's last hidden state in front of the final norm"
    around = unnormed(norm)
    yield Convention("norms", name, advice, target=around)
    if isinstance(head.network, EagleNetwork) and not isinstance(head.network, MtpNetwork):
        both = f"{name}, and the norm behind the head"
        yield Convention("norms", both, advice, target=around, model=normed_output(norm))


def _feedback(head: PublishedHead) -> Iterator[Convention]:
    """Both meanings of `norm_output`: what is fed back, and what the output layer reads."""
    network = head.network
    assert isinstance(network, Eagle3Network)
    stated = (network.feed_normed, network.norm_logits or network.feed_normed)
    for feed, logits in ((False, True), (True, True), (False, False)):
        if (feed, logits) == stated:
            continue
        name = "the next step takes the output " + ("behind" if feed else "in front of")
        name += f" the final norm, and the output layer reads it {'normed' if logits else 'raw'}"

        def change(head: PublishedHead, feed: bool = feed, logits: bool = logits) -> None:
            _set(head.network, feed_normed=feed, norm_logits=logits)

        yield Convention("feedback", name, feedback_key(head, feed, logits), change)


def _raw_feedback() -> Convention:
    name = "the next step takes the output in front of the closing norm"
    advice = "the layer was trained as older runtimes run it; no key of config.json says so"

    def change(head: PublishedHead) -> None:
        _set(head.network, feed_normed=False)

    return Convention("feedback", name, advice, change)


def _residual(network: Eagle3Network) -> Iterator[Convention]:
    other = not network.layers[0].norm_before_residual

    def change(head: PublishedHead) -> None:
        _set(head.network.get_submodule("layers.0"), norm_before_residual=other)

    name = f"the residual is the {'normed' if other else 'raw'} hidden state"
    advice = f"set norm_before_residual to {str(other).lower()}"
    yield Convention("norms", name, advice, change)


def _kinds(head: PublishedHead) -> Iterator[Convention]:
    """EAGLE's and MSD's files look the same."""
    if type(head.network) not in (EagleNetwork, MsdNetwork):
        return
    other = MsdNetwork if type(head.network) is EagleNetwork else EagleNetwork

    def change(head: PublishedHead) -> None:
        head.network.__class__ = other  # they differ in what they make of pictures alone

    msd = other is MsdNetwork
    name = "pictures past fc, as MSD reads them" if msd else "pictures through fc"
    advice = f"load it with kind={'msd' if msd else None!r}"
    yield Convention("images", name, advice, change, pictures=True)


def _lagged() -> Convention:
    name = "shift 0: every hidden state beside its own token, not the one behind it"
    advice = (
        "train the head with the token behind each hidden state: no runtime pairs them otherwise"
    )
    return Convention("shift", name, advice, model=lagged)


def _pictures(head: PublishedHead, target: Target) -> Iterator[Convention]:
    token = getattr(target.model.config, "image_token_id", None)
    if target.processor is None or token is None:
        return
    name = "the placeholder's embedding at pictures, not the picture's own"
    advice = "train the head with the picture's embeddings, or serve it by vLLM, which shows these"
    made = placeholders(int(token))
    yield Convention("images", name, advice, model=made, pictures=True)


def _anchor(head: PublishedHead, network: DFlashNetwork) -> Iterator[Convention]:
    """Shift 0 or 1 of a block's places."""
    other = not network.anchored
    name = "a block's place says the token " + ("behind it" if other else "that stands there")

    def change(head: PublishedHead) -> None:
        _set(head.network, anchored=other)
        head.length = None

    yield Convention("shift", name, anchor_key(head, other), change)


def _fewer_heads(network: MedusaNetwork) -> Iterator[Convention]:
    if network.count < 2:
        return

    def change(head: PublishedHead) -> None:
        assert isinstance(head.network, MedusaNetwork)
        del head.network[0]

    name = "shift 0: the first head says the next token, which the target itself knows"
    yield Convention("shift", name, "leave the first head out of the file", change)


def _masks(head: PublishedHead, tokens: Sequence[int]) -> Iterator[Convention]:
    stated = getattr(head.network, "mask_token_id", None)
    own = head.embeddings
    for token in tokens:
        if token != stated and (own is None or token < len(own)):

            def change(head: PublishedHead, token: int = token) -> None:
                _set(head.network, mask_token_id=token)

            name = f"token {token} as the mask, in place of {stated}"
            yield Convention("mask token", name, mask_key(head, token), change)


def _rotary(head: PublishedHead, target: Target) -> Iterator[Convention]:
    for name, advice, rotary in rotaries(head, target.decoder.config):
        yield Convention("rotary", name, advice, _setting("rotary", rotary))


def _maps(own: DraftVocabulary) -> Iterator[Convention]:
    """The map's entries in order of the tokens: writers that sort, and those that do not."""
    ordered = own.ids.sort().values
    if bool((ordered == own.ids).all()):
        return

    def change(head: PublishedHead) -> None:
        assert head.vocabulary is not None
        head.vocabulary.ids = ordered

    name = "the map's tokens in ascending order"
    yield Convention("vocabulary map", name, "store d2t sorted, as t2d lists the tokens", change)


def _setting(name: str, value: Any) -> Change:
    def change(head: PublishedHead) -> None:
        _set(head, **{name: value})

    return change


def _set(where: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(where, name, value)
