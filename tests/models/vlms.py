"""Tiny random vision-language models of every family, and what their processors would give.

Prompts are built as each family's processor lays them out, of random pictures and random words.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

WORDS, START, STOP, VIDEO, IMAGE, VOCAB = 34, 34, 35, 36, 37, 38
NEW = 16
SHARED = ["llava", "llava_next", "llava_onevision", "idefics3", "smolvlm", "internvl"]
QWEN = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
SIZES = [(16, 32), (32, 16), (20, 30), (9, 11)]  # height and width of the pictures
PINPOINTS = [[16, 32], [32, 16], [32, 32]]
TOWER = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
MERGED = {"depth": 3, "num_heads": 2, "patch_size": 4, "temporal_patch_size": 2}


def text_sizes() -> dict[str, Any]:
    """What a language model's config says, new at every call: transformers adds to its parts."""
    return {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }


def _config(family: str) -> dict[str, Any]:
    """What differs from family to family."""
    text = {"model_type": "llama", **text_sizes()}
    rope = text["rope_parameters"]
    clip = {"model_type": "clip_vision_model", "projection_dim": 16, **TOWER}
    siglip = {"model_type": "siglip_vision_model", "vision_use_head": False, **TOWER}
    if family == "llava":
        clip["image_size"] = 24
        return {"text_config": text, "vision_config": clip, "image_token_index": IMAGE}
    if family in ("llava_next", "llava_onevision"):
        return {
            "text_config": text if family == "llava_next" else {**text, "model_type": "qwen2"},
            "vision_config": clip if family == "llava_next" else siglip,
            "image_grid_pinpoints": PINPOINTS,
            "image_token_index": IMAGE,
            "video_token_index": VIDEO,
        }
    if family == "paligemma":
        return {
            "text_config": {**text, "model_type": "gemma"},
            "vision_config": {**siglip, "projection_dim": 32},
            "image_token_id": IMAGE,
            "projection_dim": 32,
            "hidden_size": 32,
        }
    if family == "gemma3":
        kinds = ["full_attention", "sliding_attention", "full_attention"]
        of_kinds = {kind: dict(rope) for kind in kinds}
        return {
            "text_config": {
                **text_sizes(),
                "query_pre_attn_scalar": 8,
                "sliding_window": 8,
                "layer_types": kinds,
                "rope_parameters": of_kinds,
            },
            "vision_config": {**siglip, "image_size": 32},
            "image_token_index": IMAGE,
            "mm_tokens_per_image": 4,
        }
    if family in ("idefics3", "smolvlm"):
        return {"text_config": text, "vision_config": TOWER, "image_token_id": IMAGE}
    if family == "internvl":
        text["model_type"] = "qwen2"
        return {"text_config": text, "vision_config": TOWER, "image_token_id": IMAGE}
    rope["mrope_section"] = [2, 1, 1]
    tower = {
        "qwen2_vl": {**MERGED, "embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2},
        "qwen2_5_vl": {
            **MERGED,
            "hidden_size": 16,
            "intermediate_size": 24,
            "out_hidden_size": 32,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
        "qwen3_vl": {
            **MERGED,
            "hidden_size": 16,
            "intermediate_size": 24,
            "out_hidden_size": 32,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0, 1],
        },
    }
    return {
        "text_config": {**text_sizes(), "rope_parameters": rope},
        "vision_config": tower[family],
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": START,
        "vision_end_token_id": STOP,
    }


def made(family: str, seed: int = 0, **text: Any) -> PreTrainedModel:
    """A model with random weights; `text` changes its language model."""
    config = copy.deepcopy(_config(family))  # transformers adds to what it is given
    config["text_config"] |= text
    config = AutoConfig.for_model(family, tie_word_embeddings=False, **config)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config).eval()
        for name, weight in model.named_parameters():
            # Gemma's norms add 1 themselves
            gemma = "gemma" in family and ("language_model" in name or "soft_emb_norm" in name)
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1 and not gemma), std=0.3)
            if name.endswith("embed_tokens.weight"):
                weight.data *= 0.5  # what stands where matters more than the last word
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model


def loaded(family: str, folder: Any) -> PreTrainedModel:
    """The same from a checkpoint in the published format."""
    made(family).save_pretrained(folder)
    return AutoModelForImageTextToText.from_pretrained(folder).eval()


def shorter(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its language model's last layer: a drafter that knows a thing or two."""
    config = copy.deepcopy(model.config)
    config.text_config.num_hidden_layers -= 1
    if getattr(config.text_config, "layer_types", None):
        config.text_config.layer_types = config.text_config.layer_types[:-1]
    out = type(model)(config)
    out.load_state_dict({name: model.state_dict()[name] for name in out.state_dict()})
    return out.eval()


def asked(model: PreTrainedModel, pictures: list[int], seed: int = 0) -> dict[str, Tensor]:
    """Inputs of a row for every entry: so many pictures, and words around them."""
    rng = torch.Generator().manual_seed(seed)
    family, count = model.config.model_type, sum(pictures)
    inputs, blocks = _pictures(model, family, pictures, rng) if count else ({}, [])
    rows, block = [], iter(blocks)
    for n, number in enumerate(pictures):
        words = torch.randint(1, WORDS, (4 + n,), generator=rng).tolist()
        text = words[:2]
        for _ in range(number):
            text += [*next(block), words[2]]
        rows.append([*text, *words, *words])
    width = max(map(len, rows))
    inputs["input_ids"] = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    real = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    inputs["attention_mask"] = torch.tensor(real)
    if family in QWEN:
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == IMAGE).int()
    if family == "paligemma":  # the prompt is read both ways
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    if family == "gemma3":  # a picture is
        inputs["token_type_ids"] = (inputs["input_ids"] == IMAGE).long()
    return inputs


def _pictures(
    model: PreTrainedModel, family: str, pictures: list[int], rng: torch.Generator
) -> tuple[dict[str, Tensor], list[list[int]]]:
    """Inputs, and the tokens that stand for every picture."""
    count = sum(pictures)
    if family == "llava":
        return {"pixel_values": torch.randn(count, 3, 24, 24, generator=rng)}, [[IMAGE] * 9] * count
    if family == "paligemma":
        return {"pixel_values": torch.randn(count, 3, 16, 16, generator=rng)}, [[IMAGE] * 4] * count
    if family == "gemma3":
        pixels = torch.randn(count, 3, 32, 32, generator=rng)
        return {"pixel_values": pixels}, [[START, *[IMAGE] * 4, STOP]] * count
    if family == "internvl":  # two tiles each, which a quarter of the patches becomes
        pixels = torch.randn(2 * count, 3, 16, 16, generator=rng)
        return {"pixel_values": pixels}, [[START, *[IMAGE] * 2, STOP]] * count
    if family in ("idefics3", "smolvlm"):  # three tiles each; rows are filled with black ones
        tiles = [torch.randn(3 * n, 3, 16, 16, generator=rng) for n in pictures]
        most = 3 * max(pictures)
        pixels = torch.stack([F.pad(t, (0, 0, 0, 0, 0, 0, 0, most - len(t))) for t in tiles])
        seen = torch.ones(len(pictures), most, 16, 16, dtype=torch.long)
        seen[..., 8:] = torch.arange(most)[:, None, None] != 1  # the second one is half as wide
        block = [START, IMAGE] * 3 + [STOP]
        return {"pixel_values": pixels, "pixel_attention_mask": seen}, [block] * count
    if family in QWEN:
        grids = torch.tensor([[1, 4, 6], [1, 2, 4], [1, 4, 4], [1, 6, 2]])[:count]
        patches = int(grids.prod(-1).sum())
        pixels = torch.randn(patches, 3 * 2 * 4 * 4, generator=rng)
        sizes = (grids.prod(-1) // 4).tolist()
        blocks = [[START, *[IMAGE] * size, STOP] for size in sizes]
        return {"pixel_values": pixels, "image_grid_thw": grids}, blocks
    inputs = {
        "pixel_values": torch.randn(count, 5, 3, 16, 16, generator=rng),
        "image_sizes": torch.tensor(SIZES[:count]),
    }
    if family == "llava_onevision":  # tiles for pictures that are alone in their row
        inputs["batch_num_images"] = torch.tensor(pictures)
    with torch.no_grad():
        features = model.get_image_features(**inputs, return_dict=True).pooler_output
    return inputs, [[IMAGE] * len(picture) for picture in features]


def greedy(model: PreTrainedModel, inputs: dict[str, Tensor], **more: Any) -> Any:
    """transformers' own output and logits."""
    asks = {"max_new_tokens": NEW, "do_sample": False, **more}
    return model.generate(
        **inputs, **asks, return_dict_in_generate=True, output_logits=True, use_cache=True
    )


def agree(ours: Tensor, theirs: Any, close: float = 1e-4) -> bool:
    """Whether the tokens are transformers' own, up to where its two best logits are as good."""
    assert ours.shape == theirs.sequences.shape
    width = theirs.sequences.shape[1] - len(theirs.logits)
    for row, differs in enumerate(ours != theirs.sequences):
        if differs.any():
            step = int(differs.int().argmax()) - width
            best, second = theirs.logits[step][row].topk(2).values.tolist()
            if step < 0 or best - second > close:
                return False
    return True
