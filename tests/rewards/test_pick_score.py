"""PickScore against the authors' recipe, one pair at a time, on a checkpoint in their format."""

from __future__ import annotations

import json
import string

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer

from mmspec.errors import InputError
from mmspec.rewards.pick_score import PickScore

LETTERS = [letter + end for letter in string.ascii_lowercase for end in ("", "</w>")]
VOCABULARY = [*LETTERS, "<|startoftext|>", "<|endoftext|>"]
TEXT = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 24,
    "eos_token_id": 2,  # as published: not the token's id; the largest id in a row ends it
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}


@pytest.fixture
def folder(tmp_path, shake):
    """The files of PickScore_v1."""
    with torch.random.fork_rng():
        model = shake(CLIPModel(CLIPConfig(text_config=TEXT, vision_config=VISION)))
    model.save_pretrained(tmp_path)
    words = {word: n for n, word in enumerate(VOCABULARY)}
    CLIPTokenizer(vocab=words, merges=[]).save_pretrained(tmp_path)
    side = {"height": 32, "width": 32}
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=side).save_pretrained(tmp_path)
    return tmp_path


def pixels(picture: Image.Image) -> torch.Tensor:
    """Shorter side to 32, the square in the middle, CLIP's mean and deviation."""
    wide, high = picture.size
    short = min(wide, high)
    size = (int(32 * wide / short), int(32 * high / short))
    resized = picture.resize(size, Image.Resampling.BICUBIC)
    left, top = (size[0] - 32) // 2, (size[1] - 32) // 2
    square = np.asarray(resized.crop((left, top, left + 32, top + 32)), np.float32) / 255
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    return torch.from_numpy((square - np.float32(mean)) / np.float32(std)).permute(2, 0, 1)[None]


@torch.no_grad()
def recipe(folder, prompt: str, picture: Image.Image) -> float:
    """`exp(scale)` times the product of the two embeddings, each divided by its norm."""
    model = CLIPModel.from_pretrained(folder).eval()
    pieces = [end for word in prompt.lower().split() for end in [*word[:-1], word[-1] + "</w>"]]
    ids = [VOCABULARY.index(piece) for piece in ["<|startoftext|>", *pieces][:23]]
    tokens = torch.tensor([[*ids, len(VOCABULARY) - 1]])
    image = model.get_image_features(pixels(picture)).pooler_output
    text = model.get_text_features(tokens).pooler_output
    image, text = image / image.norm(dim=-1, keepdim=True), text / text.norm(dim=-1, keepdim=True)
    return float(model.logit_scale.exp() * (text @ image.T)[0, 0])


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_checkpoint_to_score(folder, prompts, pictures, batch_size):
    scorer = PickScore.from_pretrained(folder, batch_size=batch_size)
    scores = scorer.score(prompts, pictures)
    truth = [recipe(folder, *pair) for pair in zip(prompts, pictures, strict=True)]
    assert np.std(truth) > 0.5
    assert torch.allclose(scores, torch.tensor(truth), atol=1e-4, rtol=0)
    assert scores.dtype == torch.float32
    assert not scores.is_inference()
    assert (scorer.name, scorer.device) == ("pick_score", torch.device("cpu"))
    assert scorer.score([], []).shape == (0,)


def test_frames_of_a_clip_share_a_prompt(folder, prompts, pictures):
    scorer, read = PickScore.from_pretrained(folder), []
    pairs = [(prompt, picture) for picture in pictures for prompt in prompts[:2]]
    scorer.network.text_model.register_forward_pre_hook(
        lambda _, args, given: read.append(len(given["input_ids"])), with_kwargs=True
    )
    found = scorer.score([prompt for prompt, _ in pairs], [picture for _, picture in pairs])
    truth = [recipe(folder, *pair) for pair in pairs]
    assert torch.allclose(found, torch.tensor(truth), atol=1e-4, rtol=0)
    assert read == [2]


def test_positions_may_be_stored(folder, prompts, pictures):
    """As older releases of the library saved them."""
    before = PickScore.from_pretrained(folder).score(prompts, pictures)
    weights = load_file(folder / "model.safetensors")
    weights["text_model.embeddings.position_ids"] = torch.arange(24)[None]
    weights["vision_model.embeddings.position_ids"] = torch.arange(17)[None]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    after = PickScore.from_pretrained(folder).score(prompts, pictures)
    assert torch.allclose(after, before, atol=1e-4, rtol=0)


def test_counts_that_do_not_pair(folder, prompts, pictures):
    with pytest.raises(ValueError, match="4 prompts can't be paired with 5 pictures"):
        PickScore.from_pretrained(folder).score(prompts[:4], pictures)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logit_scale": None}, "missing tensor logit_scale"),
        ({"odd.weight": torch.zeros(2)}, "unexpected tensor odd.weight"),
        ({"visual_projection.weight": torch.zeros(2, 2)}, "tensor visual_projection.weight has"),
    ],
    ids=str,
)
def test_tensors_that_do_not_fit(folder, change, message):
    weights = {**load_file(folder / "model.safetensors"), **change}
    kept = {name: value for name, value in weights.items() if value is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError) as caught:
        PickScore.from_pretrained(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", None),
        ("config.json", "junk"),
        ("model.safetensors", None),
        ("model.safetensors", "junk"),
        ("preprocessor_config.json", None),
        ("preprocessor_config.json", "junk"),
        ("tokenizer.json", None),
        ("tokenizer.json", "junk"),
    ],
)
def test_files_that_do_not_fit(folder, file, content):
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(InputError) as caught:
        PickScore.from_pretrained(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_vocabularies(folder):
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"]["odd</w>"] = len(VOCABULARY)
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(InputError, match=f"has {len(VOCABULARY) + 1} words, expected"):
        PickScore.from_pretrained(folder)
