"""Recipe of a video pipeline's router: how far drafted frames are from the target's own.

Clips are made as in use: both models make every block from the same noise, behind blocks of which
some were drafted and some are the target's, and one of the two joins the clip. What is learned is
the PSNR between their frames: it takes no labels and no judge, and it is what a rejection changes.
Clips come again, half of them in a mirror, as to make them takes far longer than to learn from
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import T5EncoderModel

from ...models.text_encoder import encode_prompt
from ...models.wan.frame_router import DECIBELS, FrameRouter
from ...models.wan.transformer import WanTransformer
from ...models.wan.vae import decode_block, to_bytes
from ...worlds.shapes.scene import in_turn
from ...worlds.shapes.vocabulary import Split
from ...worlds.video_world.prompts import ClipPrompt, mirrored, sample_prompt, unseen
from ...worlds.video_world.vocabulary import KINDS, TIMING
from ..base import BaseRecipe
from ..feature_cache import cache_folder, read_cached, write_cached
from ..routing import RANKS, rank_correlation
from ..tokenizers import PREFIX, caption_ids, clip_tokenizer
from ..trainer import Loss, TrainConfig
from .autoencoder import PIPELINE
from .model import BLOCKS
from .rollout import block_maker

ROUTER: dict[str, Any] = dict(
    text_len=PREFIX,
    text_dim=64,
    patch_size=4,
    widths=(32, 64, 128),
    blocks=BLOCKS,
    frames=TIMING.latents * TIMING.factor,
    dropout=0.1,
)
LEAST, MOST = 5.0, 45.0  # decibels that are told apart
KEPT = 300  # batches, after which they come again
JUDGED = 12  # batches of held-out clips; of a few the ranking is chance
FIRST = 0.2  # how likely a first block is the drafter's, of how likely others are
SHARP = 10.0 * np.log10(4)  # of values in [-1, 1]: the decibels of an error of 1


@dataclass(frozen=True)
class Drafts:
    """The drafts of a block, one a clip, and what they are worth.

    Attributes:
        number: of the block.
        before: last frames before it `[B, 3, H, W]` in 8 bits; anything before the first, as a
            network has zeros there.
        frames: drafted ones `[B, N, 3, H, W]`, as well.
        worth: what a router is to say of them `[B, N]`, or of each block `[B, 1]`.
    """

    number: int
    before: Tensor
    frames: Tensor
    worth: Tensor


@dataclass(frozen=True)
class Pairs:
    """A block as both models make it, one a clip.

    Attributes:
        number: of the block.
        before: last frames before it `[B, 3, H, W]` in [-1, 1]; zeros before the first.
        drafted, own: the drafter's frames and the target's `[B, N, 3, H, W]`, as well.
        stands: clips that go on with the drafter's `[B]`.
    """

    number: int
    before: Tensor
    drafted: Tensor
    own: Tensor
    stands: Tensor

    def chosen(self, draft: Tensor, own: Tensor) -> Tensor:
        """Rows of two tensors `[B, …]` that the clips go on with."""
        return torch.where(self.stands.view(-1, *[1] * (own.ndim - 1)), draft, own)


@dataclass(frozen=True)
class DraftedClips:
    """Clips of a training step, which are still to be made or are there.

    Attributes:
        prompts: of each.
        drafts: by block; None: they are to be made.
        seed: what they are made with.
        file: where they are kept.
    """

    prompts: list[ClipPrompt]
    drafts: list[Drafts] | None
    seed: tuple[int, ...]
    file: Path


def draw_prompts(size: int, rng: np.random.Generator, split: Split = "train") -> list[ClipPrompt]:
    """Prompts of a step, whose kinds take turns."""
    return [sample_prompt(rng, kind, split) for kind in in_turn(rng, KINDS, size)]


def draw_cached_drafts(
    folder: Path, seed: int, size: int, rng: np.random.Generator, step: int
) -> DraftedClips:
    """Clips of a step, whose blocks are there unless it is the first time.

    Of those that are there half are seen in a mirror, but for prompts that training never shows.

    Args:
        folder: of the drafts of a pipeline, see `cache_folder`.
    """
    number = step % KEPT
    file = folder / f"{seed}-{size}-{number}.pt"
    prompts = draw_prompts(size, np.random.default_rng([seed, number]))
    kept = read_cached(file)
    if kept is None:
        return DraftedClips(prompts, None, (seed, number, 1), file)
    turned = [mirrored(prompt) for prompt in prompts]
    turns = [bool(rng.random() < 0.5) and not unseen(other.include) for other in turned]
    prompts = [
        other if turn else own for own, other, turn in zip(prompts, turned, turns, strict=True)
    ]

    def shown(pictures: Tensor) -> Tensor:
        rows = torch.tensor(turns).view(-1, *[1] * (pictures.ndim - 1))
        return torch.where(rows, pictures.flip(-1), pictures)

    drafts = [
        Drafts(number, shown(before), shown(frames), worth)
        for number, (before, frames, worth) in enumerate(kept)
    ]
    return DraftedClips(prompts, drafts, (seed, number, 1), file)


class VideoRouterRecipe(BaseRecipe):
    """Trains `FrameRouter`.

    Args:
        config, rate, init: see `BaseRecipe`; a batch is of clips.
        pipeline: folder that holds `vae`, `transformer`, `drafter`, `text_encoder` and `tokenizer`;
            it receives `router`.
    """

    kind, name, adamw = PIPELINE, "router", 0.01
    cache = "drafts"
    sizes: ClassVar = ROUTER
    texts: ClassVar = dict(
        title="Router of the clip world's block video",
        purpose="guesses how near a drafted frame is to what the target would have made",
        limits="knows the drafts of one drafter for one target; says nothing of how good a clip is",
        data="blocks that both models make of clips of moving shapes, from the same noise, "
        "behind blocks of both",
    )

    def __init__(
        self, config: TrainConfig, pipeline: Path, init: str | None = None, rate: float = 2e-3
    ) -> None:
        super().__init__(config, pipeline, rate)
        parts = ["vae", "transformer", "drafter", "text_encoder"]
        folder = cache_folder(pipeline, self.cache, parts)
        self.draw = partial(draw_cached_drafts, folder, config.seed, config.batch_size)
        self.vae = self.component(AutoencoderKLWan, "vae")
        self.makers: list[WanTransformer] = [
            self.component(WanTransformer, name) for name in ("drafter", "transformer")
        ]
        self.encoder = self.component(T5EncoderModel, "text_encoder")
        self.tokenizer = clip_tokenizer()
        self.model = FrameRouter(vocab_size=len(self.tokenizer), **self.sizes)
        self.start(init)

    def loss(self, batch: DraftedClips, rng: np.random.Generator, step: int) -> Loss:
        drafts, captions = batch.drafts, [prompt.prompt for prompt in batch.prompts]
        if drafts is None:
            drafts = list(self.drafts(batch.prompts, np.random.default_rng(batch.seed)))
            kept = [(block.before, block.frames, block.worth) for block in drafts]
            write_cached(batch.file, [[tensor.cpu() for tensor in tensors] for tensors in kept])
        worth = torch.cat([block.worth for block in drafts], dim=1).to(self.config.device)
        return self.loss_of(self._guess(self.model, captions, drafts), worth)

    def loss_of(self, guesses: Sequence[Tensor], worth: Tensor) -> Loss:
        """The loss of what is said of each block's frames `[B, N]`; `worth` is of all blocks."""
        loss = F.smooth_l1_loss(torch.cat([*guesses], dim=1) / DECIBELS, worth / DECIBELS)
        return loss, {"decibels": float(worth.mean()), "spread": float(worth.std())}

    def drafts(self, prompts: Sequence[ClipPrompt], rng: np.random.Generator) -> Iterator[Drafts]:
        """The drafts of clips that both models make together, and their PSNR."""
        for pairs in self.pairs([prompt.prompt for prompt in prompts], rng):
            error = (pairs.drafted - pairs.own).square().mean((2, 3, 4)).clamp_min(1e-6)
            yield self.drafted(pairs, (SHARP - 10 * error.log10()).clamp(LEAST, MOST))

    def drafted(self, pairs: Pairs, worth: Tensor) -> Drafts:
        """The drafts of pairs, in 8 bits."""
        return Drafts(pairs.number, to_bytes(pairs.before), to_bytes(pairs.drafted), worth)

    @torch.no_grad()
    def pairs(self, captions: list[str], rng: np.random.Generator) -> Iterator[Pairs]:
        """The blocks of clips that both models make together.

        Of each clip another share of the drafts stands, so that all mixtures occur; the first block
        is mostly the target's, as in use.
        """
        told = pad_sequence(
            [encode_prompt(self.tokenizer, self.encoder, c, PREFIX) for c in [*captions, ""]],
            batch_first=True,
        )
        told, untold = told[:-1], told[-1:].expand_as(told[:-1])
        config, device = self.makers[1].config, self.config.device
        size = config.sample_height, config.sample_width
        makers = [block_maker(model, told, untold, size, BLOCKS) for model in self.makers]
        steps = max(model.config.sample_steps for model in self.makers)
        shape = (steps, len(captions), config.num_frame_per_block, config.in_dim, *size)
        shares = rng.random(len(captions))
        last: Tensor | None = None
        state: dict[str, Tensor] | None = None
        before: Tensor | None = None
        for number in range(BLOCKS):
            noise = torch.from_numpy(rng.standard_normal(shape)).float().to(device)
            blocks = [make(noise[0], noise.__getitem__, last) for make in makers]
            (drafted, after), (own, afterwards) = (
                decode_block(self.vae, block, state) for block in blocks
            )
            likely = shares if number else FIRST * shares
            stands = torch.from_numpy(rng.random(len(captions)) < likely).to(device)
            shown = torch.zeros_like(own[:, 0]) if before is None else before
            pairs = Pairs(number, shown, drafted, own, stands)
            yield pairs
            last, before = pairs.chosen(*blocks), pairs.chosen(drafted[:, -1], own[:, -1])
            state = {name: pairs.chosen(after[name], own) for name, own in afterwards.items()}

    def _guess(
        self, model: FrameRouter, captions: list[str], drafts: Sequence[Drafts]
    ) -> list[Tensor]:
        """The router's word on each block's frames `[B, N]`."""
        told = model.read(caption_ids(self.tokenizer, captions).to(self.config.device))

        def shown(pixels: Tensor) -> Tensor:
            return pixels.to(self.config.device).float().div(127.5).sub(1)

        return [
            model(shown(of.frames), shown(of.before) * bool(of.number), told, of.number).float()
            for of in drafts
        ]

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        """Rank correlation of the worst frames of held-out blocks; first blocks are left out."""
        guessed, worst = self.held_out(model, lambda frames: frames.amin(1))
        return {
            "held_out_decibels_off": float((guessed - worst).abs().mean()),
            RANKS: rank_correlation(guessed, worst),
        }

    def held_out(self, model: Any, of_block: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """The router's word on held-out blocks, first ones left out, and the truth `[n]`.

        Args:
            of_block: a block's number `[B]`, of its frames' `[B, N]`.
        """
        guessed, true = [], []
        for captions, drafts in self.held_out_drafts:
            guessed += [of_block(guess) for guess in self._guess(model, captions, drafts)]
            true += [of_block(block.worth) for block in drafts]
        return torch.cat(guessed).cpu(), torch.cat(true).cpu()

    @cached_property
    def held_out_drafts(self) -> list[tuple[list[str], list[Drafts]]]:
        """Captions and drafts of held-out batches of clips, made once for all evaluations."""
        rng, found = self.held_out_rng(), []
        for _ in range(JUDGED):
            prompts = draw_prompts(self.config.batch_size, rng, split="held_out")
            found.append(([p.prompt for p in prompts], list(self.drafts(prompts, rng))[1:]))
        return found
