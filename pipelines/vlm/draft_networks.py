"""Draft networks of a transformers model at work, and the prompts that they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from ...draft.feature.head_model import head_model
from ...draft.runs import LivingRuns
from ...draft.translated import TranslatedModel
from ...errors import InputError
from ...methods import ResolvedConfig, SpecConfig
from ...methods.parts.heads import BranchOptions
from ...models.guided import GuidedDecoder
from ...models.heads.columns import Images
from ...models.heads.published.base_decoder import PublishedDecoder
from ...models.heads.published.decoder import published_decoder
from ...models.heads.published.eagle_decoder import PublishedEagleDecoder
from ...models.heads.published.specvlm import SpecVlmNetwork
from ...models.loading import cast
from ...models.masked_folders import MASK
from ...models.rounded_copy import RoundedCopy
from ...models.token_model import TokenModel
from ...models.transformers.masked import MaskedForm
from ...models.transformers.probe import probed
from ...models.transformers.prompted import EncodedPrompt, PromptedDecoder
from ...models.transformers.vlm import VisualPrompt
from ...models.transformers.vocabulary_map import VocabularyMap, same_words, vocabulary_map
from ..output import VlmStats
from .beside import Beside
from .masked_targets import check_masked_target
from .prompt_caches import PromptCaches, kept_entries
from .request import Request
from .visual_compression import PictureShortener

# most rows that one of two models of the same tokenizer has beyond the other: vocabularies are
# padded to round numbers (Qwen2.5: 151,936 rows of the small models, 152,064 of the large ones)
PADDING = 512


class Drafting:
    """A draft model or a draft head beside a target, or neither, and who judges what they draft.

    Vocabularies of target and draft model may differ by rows of padding, or altogether if the
    tokenizers of both are given.

    Attributes:
        words: the target's tokens in the draft model's, if it has others.
        runs: the draft model's tokens that are one of the target's together, as they are seen.
        beyond: tokens that a block of the head may be longer than what is asked of it.
        scratch: tokens that a call may add beyond the output.
        rounded: the target on rounded weights, for methods that draft with it.

    Raises:
        InputError: the method needs another one, or does not need this one, or what is there does
            not fit the target.
    """

    def __init__(
        self,
        target: PromptedDecoder,
        config: ResolvedConfig,
        beside: Beside,
    ) -> None:
        check_masked_target(target, config)
        beside.check(config, target)
        self.target, self.config, self.beside = target, config, beside
        drafter, head, tokenizers = beside.drafter, beside.head, beside.tokenizers
        self.head, self.judge, self.router = head, beside.judge, beside.router
        self.words: VocabularyMap | None = None
        self.drafter = None if drafter is None else probed(drafter)
        if self.drafter is not None:
            self.drafter.round_weights(config.config.draft_weights)
            sizes = target.vocab_size, self.drafter.vocab_size
            given = None not in tokenizers
            if given and not (same_words(*tokenizers) and self.share_words(*sizes)):
                self.words = vocabulary_map(*tokenizers, *sizes)
        self.runs = self.words and LivingRuns(self.words.run)
        target.experts.kept = False
        self.rounded = target.rounded(*config.draft_copy) if config.rounds else None
        self._check_words()
        self._head: PublishedDecoder | None = None
        self._made_of: list[int] = []  # its weights, as they were then
        self.refresh()
        self.beyond = 0 if head is None else head.block_size
        self.scratch = config.draft_size().most_read + self.beyond
        self._shorteners: dict[PromptedDecoder, PictureShortener] = {}
        for decoder, slot in ((self.target, "target"), (self.drafter, "draft")):
            name = getattr(config.config, f"{slot}_compressor")
            if name is not None and decoder is not None:
                share = config.options[f"{slot}_keep"]
                made = PictureShortener(decoder, name, share, self.drafter)
                self._shorteners[decoder] = made
        self.caches = PromptCaches(config, self.drafter, self.words is not None)

    def _check_words(self) -> None:
        """Check that the target and the draft model share their words, or have tokenizers."""
        config, target, drafter = self.config, self.target, self.drafter
        if drafter is None:
            return
        if "masked" in config.needs:
            MaskedForm.of(drafter.model)
        if self.words is not None:
            if config.drafter_only:
                raise InputError(
                    f"method {config.method!r} lets the draft model answer, and it has other words "
                    "than the model; run it by itself"
                )
            if self.router is not None:
                raise InputError(
                    f"method {config.method!r} asks a router, which reads states of a draft model "
                    "of the model's own words; use 'random-routing', or give a reward"
                )
        elif not self.share_words(drafter.vocab_size, target.vocab_size):
            raise InputError(
                f"the drafter has {drafter.vocab_size} tokens and the model "
                f"{target.vocab_size}, which is more than padding; give drafter_tokenizer (and "
                "tokenizer, in a script) so that it can draft in other words"
            )
        elif not config.drafter_only:
            drafter.drafts_for = target.vocab_size

    @staticmethod
    def share_words(one: int, other: int) -> bool:
        """True if vocabularies of so many rows may be the same, but for padding."""
        less, more = sorted((one, other))
        return more - less <= min(PADDING, less // 16)

    def refresh(self) -> None:
        """Look the weights up again: the target, which comes first, may have been moved."""
        for beside in (self.drafter, self.rounded):
            if beside is not None:
                beside.refresh()
        head = self.head
        for reader in (self.judge, self.router):
            if reader is not None:
                reader.to(self.target.embeddings.device)
        if head is None:
            return
        if head.training:
            raise InputError("the draft head is in training mode; call head.eval() first")
        weight = self.target.embeddings
        head = cast(head.to(weight.device), weight.dtype)
        made_of = [0 if w.is_inference() else w._version for w in head.parameters()]
        kept = None if self._head is None else self._head.embeddings
        where = (weight.device, weight.dtype)
        if kept is None or (kept.device, kept.dtype) != where or self._made_of != made_of:
            self._head, self._made_of = published_decoder(head, self.target), made_of
        branch = self.config.of(BranchOptions).branch
        if isinstance(head.network, SpecVlmNetwork):
            head.network.choose = branch or head.network.saved

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Let compressors look at vision towers during a generation."""
        with ExitStack() as towers:
            for shortener in self._shorteners.values():
                towers.enter_context(shortener.watching())
            yield

    @contextmanager
    def repacked(self) -> Iterator[None]:
        """Repack the draft networks' weights, see `CausalDecoder.repacked`."""
        with ExitStack() as running:
            for beside in (self.drafter, self.rounded, self._head):
                if beside is not None:
                    running.enter_context(beside.repacked())
            yield

    @contextmanager
    def counting(self, stats: VlmStats) -> Iterator[None]:
        """Count the experts that calls inside touch, of a target with sparse ones."""
        self.target.experts.forget()
        if self.rounded is not None:
            self.rounded.experts.forget()
        yield
        stats.judging_experts = self.target.experts.per_call
        if self.rounded is not None:
            stats.drafting_experts = self.rounded.experts.per_call

    def own(
        self, given: Mapping[str, Any], drafter_inputs: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """Inputs of the draft model: its own, or of one that sees those given to the target."""
        if drafter_inputs is not None and self.drafter is None:
            raise InputError("there are drafter_inputs, and no draft model")
        if drafter_inputs is not None or self.drafter is None:
            return drafter_inputs
        words, sees, ids = self.words, self.drafter.sees, given.get("input_ids")
        if words is None and (sees or not self.target.sees or ids is None):
            return given if sees else None
        if ids is None or sees:
            lacks = "a drafter_processor" if sees else "the prompt as input_ids"
            raise InputError(
                f"a drafter of other words needs {lacks}, or inputs of its own (drafter_inputs)"
            )
        ids, mask = without_pictures(ids, given.get("attention_mask"), self.target.model.config)
        if words is None:
            return {"input_ids": ids, "attention_mask": mask}
        return words.retold(ids, mask)

    def prompt(self, request: Request, decoder: PromptedDecoder) -> EncodedPrompt:
        """Prompt of one of the models, with compressed pictures if a compressor is configured."""
        own = None if decoder is self.target else request.own
        words = self.words if decoder is self.drafter else None
        shortener, inputs = self._shorteners.get(decoder), request.given if own is None else own
        if shortener is None:
            seen = self.caches.seen(request) if decoder is self.drafter else None
            return seen or request.prompt(decoder, own, words=words)
        looked: Any = None
        if decoder is self.target and shortener.looks:
            assert self.drafter is not None
            own_inputs = request.given if request.own is None else request.own
            looked = request.prompt(self.drafter, request.own, words=self.words), own_inputs
        return request.prompt(decoder, own, lambda prompt: shortener(prompt, inputs, looked), words)

    def model(
        self, request: Request, target: GuidedDecoder, prompt: EncodedPrompt, stats: VlmStats
    ) -> GuidedDecoder | None:
        """Draft network for a target that has not started; None: there is none."""
        config = self.config
        if self.judge is not None:
            target.watch()
        if self._head is not None:
            images = None
            if isinstance(prompt, VisualPrompt):
                images = Images.of(prompt.images, target.prefix.device)
            law = request.ranked if config.soft_drafts else None
            return head_model(self._head, target, images, law)
        if self.drafter is None or config.drafter_only or not config.model_drafts:
            return None
        seen = self.prompt(request, self.drafter)
        stats.draft_visual_tokens = visual_tokens(seen)
        law = request.ranked if config.soft_drafts else request.drafted
        keeping = self.caches.keeping("draft", seen)
        model = request.guided(self.drafter, seen, self.scratch, law, self.words, keeping)
        if config.returns or self.words is not None:
            model.returns = True
            model.reserve(self.scratch)
        self.caches.follow(model, seen)
        stats.draft_cache_entries = kept_entries(model)
        if self.router is not None:
            model.watch()
        return model

    def in_words(self, model: GuidedDecoder | None) -> TokenModel | None:
        """The draft network as one of the target's words."""
        if model is None or self.words is None or self.drafter is None:
            return model
        model.drafts = model.returns = True  # words may be spelled anew from far back
        model.reserve(model.setting.scratch)
        return TranslatedModel(model, self.words.spelled, model.room - 1)

    @property
    def fuzzy(self) -> Callable[[int], AbstractContextManager[None]]:
        """Maker of what surrounds the draft model's calls with fuzzy layers."""
        assert self.drafter is not None
        return self.drafter.fuzzy

    def copy(
        self, request: Request, target: GuidedDecoder, prompt: EncodedPrompt
    ) -> RoundedCopy | None:
        """The target on rounded weights in this generation; None: nobody asks for it."""
        if self.rounded is None:
            return None
        self.rounded.place(prompt)
        return RoundedCopy(
            self.rounded, target, request.ranked if self.config.soft_drafts else None
        )

    def tell(self, stats: VlmStats) -> None:
        """Record what was written ahead in the last generation, and what a head saw."""
        stats.lookahead_tokens = self.caches.ahead
        if not self.config.drafts or stats.fault is not None:
            return
        if isinstance(self._head, PublishedEagleDecoder):
            rows = len(stats.calls)  # those without a condition stand behind them
            stats.draft_visual_tokens = self._head.visual()[:rows]
            stats.branches = self._head.branches()[:rows]


def method_of(target: PromptedDecoder, beside: Beside) -> SpecConfig | str:
    """Method of a model and what is beside it, where nobody names one.

    A head drafts as many tokens as its files name.
    """
    drafter, head = beside.drafter, beside.head
    if head is not None:
        given: dict[str, Any] = {"num_draft_tokens": head.length} if head.length else {}
        return SpecConfig(head.method, **given)
    config = target.config if drafter is None else drafter.config.get_text_config()
    masked = getattr(config, MASK, None) is not None
    if drafter is None:
        return "s2d2" if masked else target.method
    return "deer" if masked else "draft"


def without_pictures(ids: Tensor, mask: Tensor | None, config: Any) -> tuple[Tensor, Tensor]:
    """Prompts `[B, T]` less the tokens that stand for pictures, padded on the left; their mask."""
    names = (f"{kind}_token_{name}" for kind in ("image", "video") for name in ("id", "index"))
    places = [place for name in names if isinstance(place := getattr(config, name, None), int)]
    kept = torch.ones_like(ids) if mask is None else mask.long()
    kept = kept * ~torch.isin(ids, torch.tensor(places, device=ids.device))
    order = kept.argsort(dim=1, stable=True)  # what is left out goes to the front
    width = max(1, int(kept.sum(1).max()))
    return ids.gather(1, order)[:, -width:], kept.gather(1, order)[:, -width:]


def visual_tokens(prompt: EncodedPrompt) -> list[int]:
    """Columns of pictures in a prompt, per row; none for a model that sees none."""
    if not isinstance(prompt, VisualPrompt):
        return []
    counts: list[int] = prompt.visual.sum(1).tolist()
    return counts
