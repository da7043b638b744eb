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
from mmspec.methods.parts.heads import BRANCHES
from mmspec.models.guided import GuidedDecoder
from mmspec.models.heads.columns import Images
from mmspec.models.heads.formats.new import MAKERS
from mmspec.models.heads.formats.new_head import NewHead
from mmspec.models.heads.published.head import PublishedHead
from mmspec.models.loading import cast
from mmspec.models.setting import Setting
from mmspec.models.transformers.vlm import VisualPrompt, VlmDecoder
from mmspec.train.heads.head_batch import HeadBatch
from mmspec.train.heads.last_layer import LastLayerReader

PICTURE = 16  # columns
TRAINED = [name for name, part in parts("head").items() if part.trained]  # heads with a recipe
# two pictures with words between, none, and one at the very start
ROWS = [[1, "picture", 2, 3, "picture", 1], [2, 1, 2], ["picture", 1]]
HEADS: dict[str, tuple[str, dict]] = {
    "eagle": ("eagle", {}),
    "eagle3": ("eagle3", {}),
    "vispec": ("vispec", {}),
    "vispec-4": ("vispec", {"queries": 4}),
    "msd": ("msd", {}),
    "flash": ("flash", {"latents": 3, "block": 2}),
    "falcon": ("falcon", {}),
    "falcon-3": ("falcon", {"block": 3}),
    "specvlm": ("specvlm", {"gate_dim": 8}),
    **{
        f"specvlm-{choice}": ("specvlm", {"gate_dim": 8, "choose": choice})
        for choice in ("sum", *BRANCHES)
    },
    "dflash": ("dflash", {"block": 4, "joined": 2}),
    "medusa": ("medusa", {"heads": 3}),
    "longspec": ("longspec", {"window": 4, "block": 3}),
    "hydra": ("hydra", {"heads": 3}),
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


def tiny_head(name: str, model, seed: int = 3) -> PublishedHead:
    """A head that is neither good nor useless: what it says leans on all its inputs."""
    kind, own = HEADS[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = MAKERS[kind](NewHead(model), **own)
        for key, weight in head.network.named_parameters():
            passes = key.startswith(("fc", "img_fc")) and weight.ndim == 2 and kind != "dflash"
            identity = weight.detach().clone() if passes else 0
            mean = float(weight.ndim == 1 and "norm" in key)
            # an LSTM lets little pass
            std = 2.0 if key.startswith("lstm.weight") else 0.25
            nn.init.normal_(weight, mean=mean, std=std)
            weight.data += identity
    return cast(head, torch.float64).eval()


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
        decoder, Setting(prompt.embedded, prompt.mask, scale, warp or Warp(), limit, 0, scratch)
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

    def states(self, text: list[int], reads: tuple[int, ...]) -> torch.Tensor:
        """The target's hidden states `[1, S, A · D]` that a head reads."""
        body = self.model.model.language_model
        out = body(inputs_embeds=self.embedded(text), output_hidden_states=True)
        return torch.cat([out.hidden_states[n] for n in reads or (-1,)], dim=-1)

    def batch(self, text: list[int], known: int, reads: tuple[int, ...] = ()) -> HeadBatch:
        """A text as training has it, in which the first `known` hidden states are known."""
        embedded = self.embedded(text)
        seen = torch.arange(embedded.shape[1])[None] < known
        features, states = self.states(text, ()), self.states(text, reads)
        mask = torch.ones(embedded.shape[:2], dtype=torch.bool)
        answer = torch.arange(mask.shape[1])[None] >= self.length
        numbers = embedded, features * seen[..., None], states * seen[..., None]
        output, embed = self.model.lm_head, self.model.get_input_embeddings()
        last = LastLayerReader(VlmDecoder(self.model))
        return HeadBatch(*numbers, mask, answer, self.images, output, embed, last=last)


ANSWER = 7  # tokens


def batch_of(model, reads: tuple[int, ...] = (), rows=ROWS) -> HeadBatch:
    """Prompts and answers, padded on the left, and what the target says of them."""
    _, prompt, _ = guided_vlm(model, rows)
    generator = torch.Generator().manual_seed(2)
    text = torch.randint(1, 10, (len(rows), ANSWER), generator=generator)
    lines = [Passes(model, prompt, row) for row in range(len(rows))]
    width = prompt.mask.shape[1] + ANSWER
    sizes = (16, 16, 16 * len(reads or (0,)))
    shapes = [(len(rows), width, size) for size in sizes]
    parts = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    with torch.no_grad():
        for row, passes in enumerate(lines):
            words = text[row].tolist()
            own = passes.batch(words, width, reads)
            for part, one in zip(parts, (own.embedded, own.features, own.states), strict=True):
                part[row, passes.pads :] = one[0]
            mask[row, passes.pads :] = True
    answer = torch.arange(width).expand(len(rows), -1) >= width - ANSWER
    model.requires_grad_(False)
    output, embed = model.lm_head, model.get_input_embeddings()
    last = LastLayerReader(VlmDecoder(model))
    return HeadBatch(*parts, mask, answer, Images.of(prompt.images), output, embed, last=last)
