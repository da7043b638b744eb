"""Text to image with a token model of any family, plainly or speculatively."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ...devices import wait
from ...draft.feature.dflash import DFlashModel
from ...draft.feature.eagle import EagleModel
from ...draft.guarded import GuardedDrafter
from ...draft.image.grid import GridDrafter
from ...draft.image.whole_picture import WholePictureDrafter
from ...draft.tree.living_tables import LivingTables
from ...engine.accept.local import LocalRule
from ...engine.accept.unverified import UnaskedTarget
from ...engine.coins import ProductionCoins
from ...engine.draft import Context
from ...engine.length.constant import ConstantLength
from ...engine.length.guard import Guard
from ...engine.loop import run
from ...engine.protocols import Engine, Target
from ...engine.warp import Warp
from ...methods import ResolvedConfig
from ...methods.parts.pictures import LocalOptions
from ...models.codebook_neighbours import Neighbours
from ...models.guided import GuidedDecoder
from ...models.rounded_copy import RoundedCopy
from ...models.target import TokenTarget
from ...models.token_grid import TokenGrid
from ..arguments import checked
from ..base import OnStep, owned, row_seeds
from ..costs import Costs
from ..load_switch import switched, watched
from ..memory import within_budget
from ..output import ImageOutput, ImageStats
from ..parts import finish, nearest_codes, pruning, token_offers
from ..prompts import Labels, check_between, check_guidance, check_sampling, negatives, told
from .drawing import Drawing
from .networks import TokenNetworks

OutputType = Literal["pil", "np", "pt", "tokens"]
_AT_A_TIME = 8  # pictures that are decoded together
_SAMPLED = ("height", "width", "guidance_scale", "temperature", "top_k", "top_p")


class TokenImagePipeline(TokenNetworks):
    """A prompt in front, a network over image tokens, a decoder of its codes behind.

    What the three are is the business of an `ImageModel`; subclasses say which networks there are.
    """

    instead: ClassVar = TokenNetworks.instead | {
        "num_inference_steps": "a picture takes the calls that its method needs; leave it out"
    }

    def __init__(self, declared: Mapping[str, Any]) -> None:
        super().__init__(declared)
        self._costs, self._near, self._living = Costs(), Neighbours(), LivingTables()
        self.disable_vae_slicing()

    def enable_vae_slicing(self) -> None:
        """Decode pictures one by one, which takes less memory."""
        self._decoded = 1

    def disable_vae_slicing(self) -> None:
        """Decode several pictures at a time."""
        self._decoded = _AT_A_TIME

    @property
    def class_count(self) -> int | None:
        """Classes of a target that is told them; None: it is told captions."""
        return None

    @abstractmethod
    def network(
        self, height: int | None, width: int | None, alone: bool = False
    ) -> tuple[nn.Module, TokenGrid]:
        """The network for a picture of `height` by `width` pixels, and the picture's tokens.

        One of the two may be None: the picture is square; both: of the default size. `alone`: the
        drafter, which draws in the target's place.

        Raises:
            InputError: no network here draws that size.
        """

    @checked
    @switched
    @torch.inference_mode()
    def __call__(
        self,
        prompt: str | list[str] | None = None,
        negative_prompt: str | list[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        guidance_scale: float | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | list[torch.Generator] | None = None,
        output_type: OutputType = "pil",
        return_dict: bool = True,
        callback_on_step_end: OnStep | None = None,
        class_labels: Labels | None = None,
    ) -> ImageOutput | tuple[Any, ImageStats]:
        """Draw pictures.

        Args:
            prompt: caption or captions; of a target that is told classes, their numbers.
            negative_prompt: what the unconditional rows are told; None: what the family trained
                them with, such as LlamaGen's learned "no caption".
            height, width: pixels; one alone: a square. The embedded model draws 128 px, and 64 px
                with its sibling.
            guidance_scale: classifier-free guidance s; 1 switches it off; None: the family's own.
            temperature, top_k, top_p: warpers, after guidance; temperature 0 is greedy; top_k None:
                the family's own.
            num_images_per_prompt: pictures per caption.
            generator: one for all pictures, or a list with one each; the same seed gives the same
                picture, alone or in a batch (but for goodput and faser lengths: the clock decides).
            output_type: "pil", "np", "pt" or "tokens": the codes, without forced tokens.
            return_dict: an `ImageOutput`, else the tuple (images, stats).
            callback_on_step_end: called as `callback(pipe, round, tokens so far, {"context": …,
                "stats": …})` after every verify round; `context.drafted()` says which tokens the
                round owes to the drafter, and the stats are those so far. Set `pipe.interrupt =
                True` in it to stop: what is not drawn then is filled with token 0.
            class_labels: class or classes, of a target that is told classes.

        Raises:
            InputError: an argument is out of range or does not fit the model.
        """
        captions = [str(one) for one in told(prompt, class_labels, self.class_count)]
        check_between("num_images_per_prompt", num_images_per_prompt, 1, 1024)
        network, grid, scale, warp = self._sampled(
            height, width, guidance_scale, temperature, top_k, top_p
        )
        family, config = self.image_model(network), self.check_speculation(self.speculation)
        if config.drafter_only:
            network, _ = self.network(height, width, alone=True)
        rows = len(captions) * num_images_per_prompt
        seeds = row_seeds(generator, rows)
        stats, self.interrupt = ImageStats(), False

        with stats.phase("encode"):
            negative = negatives(negative_prompt, captions)
            condition, mask = (
                part.repeat_interleave(num_images_per_prompt, 0)
                for part in family.condition(captions, negative, scale is not None, grid)
            )
            wait(self.device)
        uncaptioned = negative is None and scale is not None
        drawing = Drawing(condition, mask, scale, warp, grid, seeds, uncaptioned)
        stats.method, limit = config.method, grid.length
        with self._repacked(network, config), self.progress_bar(total=limit * rows) as bar:
            engine = self._engine(network, drawing, config, stats, self.switch.guard)
            if self.on_engine is not None:
                self.on_engine(engine)
            stats.contract = config.contract_of(engine.rule.contract)

            def on_round(context: Context) -> bool:
                bar.update(sum(context.base) - bar.n)
                done, state = min(context.base), {"context": context, "stats": stats}
                return self._after_round(callback_on_step_end, context.round, done, **state)

            context = run(engine, rows, limit, stats, on_round, self.device)
            finish(engine, stats, self._costs, self._notices, all(context.finished))

        drawn = torch.arange(limit, device=self.device) < context.lengths[:, None]
        tokens = context.tokens[:, :limit] * drawn
        with stats.phase("decode"):
            images: Any = owned(grid.codes(tokens))
            if output_type != "tokens":
                pixels = [family.pixels(some, grid) for some in images.split(self._decoded)]
                images = self.pictures(torch.cat(pixels), output_type)
        return ImageOutput(images=images, stats=stats) if return_dict else (images, stats)

    def _check_given(self, config: ResolvedConfig, given: Mapping[str, Any]) -> None:
        check_between("num_images_per_prompt", given["num_images_per_prompt"], 1, 1024)
        self._sampled(*(given[name] for name in _SAMPLED))
        if config.drafter_only:
            self.network(given["height"], given["width"], alone=True)
        if config.rule.contract == "exact-greedy":
            config.build_rule({}, given["temperature"])

    def _sampled(
        self,
        height: int | None,
        width: int | None,
        guidance_scale: float | None,
        temperature: float,
        top_k: int | None,
        top_p: float,
    ) -> tuple[nn.Module, TokenGrid, float | None, Warp]:
        """Target of a call, tokens of its picture, guidance and warpers; None: no guidance."""
        network, grid = self.network(height, width)
        family = self.image_model(network)
        scale = family.guidance_scale if guidance_scale is None else guidance_scale
        top_k = family.top_k if top_k is None else top_k
        check_guidance(scale)
        check_sampling(temperature, top_k, top_p)
        return network, grid, None if scale == 1 else scale, Warp(temperature, top_k, top_p)

    @torch.no_grad()
    def token_laws(
        self,
        prompt: list[str],
        tokens: Tensor,
        guidance_scale: float | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        height: int | None = None,
        width: int | None = None,
        of_drafter: bool = False,
        weights: str | None = None,
    ) -> Tensor:
        """The target's laws `[B, S, V]` at each of the codes `tokens [B, S]`, given those before.

        Arguments as in `__call__`, one caption per row; `of_drafter`: the draft model's laws;
        `weights`: those of the network with its weights rounded, see `rounded.linear`.
        Where the layout forces tokens, `tokens` must be whole pictures.
        """
        network, grid, scale, warp = self._sampled(
            height, width, guidance_scale, temperature, top_k, top_p
        )
        condition, mask = self.image_model(network).condition(prompt, None, scale is not None, grid)
        drawing = Drawing(condition, mask, scale, warp, grid, [], scale is not None)
        model = self._guided(self.drafter if of_drafter else network, drawing, 1, weights)
        model.start(len(prompt))
        if not grid.free:
            tokens = grid.tokens(tokens)
        laws = model.extend(torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1), [-1] * len(prompt))
        return laws if grid.free else laws[:, grid.forced < 0]

    def _engine(
        self,
        network: nn.Module,
        drawing: Drawing,
        config: ResolvedConfig,
        stats: ImageStats,
        guard: Guard | None = None,
    ) -> Engine:
        grid, warp, family = drawing.grid, drawing.warp, self.image_model(network)
        vocab, stride = family.vocab_size, grid.stride
        beyond = self.components["dflash"].most if "dflash" in config.needs else 0  # of a block
        most = config.draft_size(stride).most_read + beyond
        target = self._guided(network, drawing, most, config.weights)
        model: GuidedDecoder | None = None
        asked = replace(drawing, warp=warp.soft) if config.soft_drafts else drawing
        for part, weights in (("drafter", config.config.draft_weights), ("row_drafter", None)):
            if part in config.needs:
                model = self._guided(self.components[part], asked, most, weights)
        for part, kind in (("eagle", EagleModel), ("dflash", DFlashModel)):
            if part in config.needs:
                model = kind(self.head(part, target.decoder), target, warp=asked.warp)
        if judged := "judge" in config.needs:
            target.watch()
        config = within_budget(config, target, model, vocab, stride, beyond=beyond)
        rounded = None
        if config.rounds:
            rounded = RoundedCopy(self._rounded(network, config), target, asked.warp)
        config.check_layers(target.layers)
        offers = token_offers(
            target,
            model,
            vocab,
            grid,
            codebook=family.codebook,
            nearest=lambda: nearest_codes(family.codebook, self._near),
            experience=partial(self._costs.experience, config, target, model, stride, rounded),
            rounded=lambda: rounded,
            fuzzy=lambda: self.decoder(self.drafter, config.config.draft_weights).fuzzy,
            **self._living.offers(not warp.temperature),
            scaled_up=lambda: self.scaled_up(drawing, config, stats),
            spatial=lambda: self.head("spatial", target.decoder),
            judge=lambda: self.head("judge", target.decoder) if judged else None,
        )
        length = config.build_length(offers, stride)
        rule = config.build_rule(offers, warp.temperature)
        relaxed = {"relaxed": lambda: rule if isinstance(rule, LocalRule) else None}
        built = {"more": lambda: getattr(length, "more", None), **relaxed}
        drafter = config.build_drafter({**offers, **built})
        if isinstance(drafter, WholePictureDrafter):
            drafter.before_call = self._check_interrupt
        if not (grid.free or config.own_layers or config.rounds):  # which know what is forced
            drafter = GridDrafter(drafter, grid.forced)
        turns = config.of(LocalOptions)
        soft = warp.soft if config.rule.soft and warp.greedy else None
        judge: Target = TokenTarget(target, stride, turns.local_turns, turns.local_window, soft)
        if config.unverified:  # a drafter that fails has nobody to stand in for it
            judge, length = UnaskedTarget(), ConstantLength(grid.length)
        elif config.drafts:
            drafter = GuardedDrafter(drafter, vocab, config.draft_size(stride).most_drafted)
        coins = ProductionCoins(drawing.seeds, self.device)
        parts = pruning(judge, rule), drafter, rule, length, coins
        return watched(Engine(*parts), guard)
