"""HPS v2 against the authors' recipe, on a small architecture in their container."""

from __future__ import annotations

import numpy as np
import open_clip
import pytest
import torch
from open_clip import factory
from PIL import Image

from mmspec.errors import InputError
from mmspec.rewards import hpsv2
from mmspec.rewards.hpsv2 import HPSv2

SMALL = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 16, "head_width": 8, "patch_size": 8},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 2},
}


def published_layout() -> dict[str, tuple[int, ...]]:
    """ViT-H-14: 32 layers of 1280 for pictures, 24 of 1024 for prompts, 1024 in common."""
    layout: dict[str, tuple[int, ...]] = {
        "logit_scale": (),
        "positional_embedding": (77, 1024),
        "text_projection": (1024, 1024),
        "token_embedding.weight": (49408, 1024),
        "visual.class_embedding": (1280,),
        "visual.conv1.weight": (1280, 3, 14, 14),
        "visual.positional_embedding": (1 + 16**2, 1280),
        "visual.proj": (1280, 1024),
    }

    def both(name: str, outward: int, *inward: int) -> None:
        layout[f"{name}.weight"], layout[f"{name}.bias"] = (outward, *inward), (outward,)

    for at, width, depth in (("visual.", 1280, 32), ("", 1024, 24)):
        for n in range(depth):
            block = f"{at}transformer.resblocks.{n}"
            both(f"{block}.ln_1", width)
            layout[f"{block}.attn.in_proj_weight"] = (3 * width, width)
            layout[f"{block}.attn.in_proj_bias"] = (3 * width,)
            both(f"{block}.attn.out_proj", width, width)
            both(f"{block}.ln_2", width)
            both(f"{block}.mlp.c_fc", 4 * width, width)
            both(f"{block}.mlp.c_proj", width, 4 * width)
    both("visual.ln_pre", 1280)
    both("visual.ln_post", 1280)
    both("ln_final", 1024)
    return layout


def test_full_size_has_the_published_tensors():
    with torch.device("meta"):
        model = open_clip.create_model(hpsv2.ARCHITECTURE, load_weights=False, device="meta")
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes == published_layout()


@pytest.fixture
def model(monkeypatch, shake):
    monkeypatch.setitem(factory._MODEL_CONFIGS, "small", SMALL)
    monkeypatch.setattr(hpsv2, "ARCHITECTURE", "small")
    with torch.random.fork_rng():
        return shake(open_clip.create_model("small"))


def fitted(picture: Image.Image) -> torch.Tensor:
    """Longer side to 32, black around, CLIP's mean and deviation."""
    wide, high = picture.size
    scale = 32 / max(wide, high)
    size = (round(wide * scale), round(high * scale))
    canvas = Image.new("RGB", (32, 32))
    canvas.paste(
        picture.resize(size, Image.Resampling.BICUBIC), ((32 - size[0]) // 2, (32 - size[1]) // 2)
    )
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    array = (np.asarray(canvas, np.float32) / 255 - np.float32(mean)) / np.float32(std)
    return torch.from_numpy(array).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("file", "name"),
    [("HPS_v2_compressed.pt", "hpsv2"), ("HPS_v2.1_compressed.pt", "hpsv2.1")],
)
def test_checkpoint_to_score(tmp_path, model, prompts, pictures, file, name):
    torch.save({"state_dict": model.state_dict()}, tmp_path / file)
    with torch.no_grad():
        pixels = torch.stack([fitted(picture) for picture in pictures])
        image, text, _ = model(pixels, open_clip.get_tokenizer("small")(prompts))
        truth = torch.diagonal(image @ text.T)
    assert truth.std() > 0.02
    for path in (tmp_path, tmp_path / file):
        scorer = HPSv2.from_pretrained(path, batch_size=2)
        scores = scorer.score(prompts, pictures)
        assert torch.allclose(scores, truth, atol=1e-5, rtol=0)
        assert scores.dtype == torch.float32
        assert (scorer.name, scorer.clip.device) == (name, torch.device("cpu"))
    with pytest.raises(ValueError, match="4 prompts can't be paired with 5 pictures"):
        scorer.score(prompts[:4], pictures)


def test_one_of_the_files(tmp_path, model):
    with pytest.raises(InputError, match="holds neither of HPS_v2_compressed"):
        HPSv2.from_pretrained(tmp_path)
    for file in hpsv2.WEIGHTS.values():
        torch.save({"state_dict": model.state_dict()}, tmp_path / file)
    with pytest.raises(InputError, match="holds both of"):
        HPSv2.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="absent"):
        HPSv2.from_pretrained(tmp_path / "absent.pt")


def test_tensors_that_do_not_fit(tmp_path, model):
    weights = model.state_dict()
    del weights["ln_final.bias"]
    torch.save({"state_dict": weights}, tmp_path / "HPS_v2_compressed.pt")
    with pytest.raises(InputError, match=r"missing tensor ln_final\.bias"):
        HPSv2.from_pretrained(tmp_path)
