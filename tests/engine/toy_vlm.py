"""A tiny LLaVA with random weights, prompts with and without pictures, and heads for it."""

from __future__ import annotations

import torch
from torch import nn
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from mmspec.engine.warp import Warp
from mmspec.methods import parts
from mmspec.models.guided import GuidedDecoder
from mmspec.models.heads.columns import Columns, Images
from mmspec.models.heads.dflash import DFlashHead
from mmspec.models.heads.feature import EagleVlmHead, MsdHead
from mmspec.models.heads.flash import FlashHead
from mmspec.models.heads.hydra import HydraHead
from mmspec.models.heads.specvlm import SpecVlmHead
from mmspec.models.heads.vispec import ViSpecHead
from mmspec.models.loading import cast
from mmspec.models.transformers.vlm import VisualPrompt, VlmDecoder

PICTURE = 16  # columns
TRAINED = [name for name, part in parts("head").items() if part.trained]  # heads with a recipe
# two pictures with words between, none, and one at the very start
ROWS = [[1, "picture", 2, 3, "picture", 1], [2, 1, 2], ["picture", 1]]
HEADS = {
    "eagle": (EagleVlmHead, {}),
    "vispec": (ViSpecHead, {}),
    "vispec-4": (ViSpecHead, {"queries": 4}),
    "msd": (MsdHead, {}),
    "flash": (FlashHead, {"latents": 3, "block": 2}),
    "specvlm": (SpecVlmHead, {"gate_dim": 8}),
    "specvlm-sum": (SpecVlmHead, {"gate_dim": 8, "choose": "sum"}),
    "specvlm-pruning": (SpecVlmHead, {"gate_dim": 8, "choose": "pruning"}),
    "specvlm-pooling": (SpecVlmHead, {"gate_dim": 8, "choose": "pooling"}),
    "specvlm-convolution": (SpecVlmHead, {"gate_dim": 8, "choose": "convolution"}),
    "specvlm-resampler": (SpecVlmHead, {"gate_dim": 8, "choose": "resampler"}),
    "specvlm-text-only": (SpecVlmHead, {"gate_dim": 8, "choose": "text-only"}),
    "dflash": (DFlashHead, {"block": 3}),
    "hydra": (HydraHead, {"heads": 3}),
}


def tiny_llava(vocab: int = 12, seed: int = 0) -> LlavaForConditionalGeneration:
    """In float64 throughout; the last token stands for pictures."""
    vision = dict(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=8,
        patch_size=2,
    )
    text = dict(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
    )
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**vision),
        text_config=LlamaConfig(**text),
        image_token_index=vocab - 1,
        image_token_id=vocab - 1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlavaForConditionalGeneration(config)
        for weight in model.parameters():
            nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    for module in list(model.modules()):  # transformers' norms round to float32
        for name, child in list(module.named_children()):
            if isinstance(child, LlamaRMSNorm):
                norm = nn.RMSNorm(len(child.weight), child.variance_epsilon)
                norm.weight = child.weight
                setattr(module, name, norm)
    return model.double().eval()


def tiny_head(name: str, model, seed: int = 3):
    """A head that is neither good nor useless: what it says leans on all its inputs."""
    kind, own = HEADS[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = kind.for_target(model, **own)
        for key, weight in head.named_parameters():
            identity = weight.detach().clone() if key.startswith(("fc", "globally")) else 0
            mean = float(weight.ndim == 1 and "norm" in key)
            nn.init.normal_(weight, mean=mean, std=0.25)
            weight.data += identity
    return cast(head, torch.float64)


def prompt_of(decoder: VlmDecoder, rows, limit: int) -> VisualPrompt:
    """Rows of words and pictures, padded on the left; equal pictures in equal rows."""
    token = decoder.model.config.image_token_id
    lines, pictures = [], []
    for row in rows:
        line: list[int] = []
        for n, word in enumerate(row):
            if word == "picture":
                generator = torch.Generator().manual_seed(10 * len(row) + n)
                pictures.append(torch.randn(3, 8, 8, generator=generator, dtype=torch.float64))
            line += [token] * PICTURE if word == "picture" else [word]
        lines.append(line)
    width = max(map(len, lines))
    ids = torch.tensor([[0] * (width - len(line)) + line for line in lines])
    mask = torch.arange(width) >= torch.tensor([[width - len(line)] for line in lines])
    inputs = {"pixel_values": torch.stack(pictures)} if pictures else {}
    with torch.inference_mode():
        return decoder.prompt(ids, mask, limit, **inputs)


def guided_vlm(model, rows=ROWS, *, limit=12, warp=None, scratch=24, scale=None):
    """The target of some prompts, and where their pictures are."""
    decoder = VlmDecoder(model)
    prompt = prompt_of(decoder, rows, limit)
    if scale is not None:  # the unconditional twins see nothing
        prompt = prompt.joined(prompt_of(decoder, [[5, 6]] * len(rows), limit))
    decoder.place(prompt)
    target = GuidedDecoder(
        decoder, prompt.embedded, prompt.mask, scale, warp or Warp(), limit, 0, scratch
    )
    return target, prompt, Images.of(prompt.images)


class Passes:
    """One row of a prompt and any text behind it, in full passes without cache or padding."""

    def __init__(self, model, prompt: VisualPrompt, row: int) -> None:
        self.model, self.pads = model, int((~prompt.mask[row]).sum())
        self.prompt = prompt.embedded[row : row + 1, self.pads :]
        spans = [(first - self.pads, count) for first, count in prompt.images[row]]
        self.images = Images.of([spans])
        self.length = self.prompt.shape[1]

    def embedded(self, text: list[int]) -> torch.Tensor:
        words = self.model.get_input_embeddings()(torch.tensor([text], dtype=torch.long))
        return torch.cat([self.prompt, words], dim=1)

    def hidden(self, text: list[int]) -> torch.Tensor:
        """The target's hidden states `[1, S, D]` behind its last norm."""
        body = self.model.model.language_model
        return body(inputs_embeds=self.embedded(text)).last_hidden_state

    def law(self, text: list[int]) -> torch.Tensor:
        """The target's law `[V]` behind a text."""
        return self.model.lm_head(self.hidden(text)[0, -1]).softmax(-1)

    def columns(self, text: list[int], known: int) -> Columns:
        """Columns of a text in which the first `known` hidden states are known."""
        embedded, hidden = self.embedded(text), self.hidden(text)
        before = torch.zeros_like(embedded)
        before[:, 1 : known + 1] = hidden[:, :known]
        mask = torch.ones(embedded.shape[:2], dtype=torch.bool)
        asked = torch.arange(mask.shape[1])[None] < self.length
        return Columns(embedded, before, mask, asked, self.images)
