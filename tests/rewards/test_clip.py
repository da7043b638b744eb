"""OpenCLIP, CLIPScore and the embedded CLIP against open_clip's own loading and forward."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from open_clip import factory
from safetensors.torch import load_file, save_file
from torchmetrics.functional.multimodal import clip_score as torchmetrics_clip_score
from torchvision.transforms.functional import to_pil_image

from mmspec.errors import InputError
from mmspec.models.embedded import readable
from mmspec.rewards.clip_score import CLIPScore
from mmspec.rewards.networks import clip as clip_networks
from mmspec.rewards.networks.clip import OpenCLIP, ShapesCLIP, _lost
from mmspec.rewards.shapes_clip import ShapesCLIPScore

NEAR = partial(torch.allclose, atol=1e-6, rtol=1e-5)
ARCHITECTURE = {  # with the library's own words
    "embed_dim": 8,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 8, "head_width": 4, "patch_size": 16},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 1},
}


class Theirs:
    """The folder as the library itself loads it; its outputs for a batch."""

    def __init__(self, folder):
        self.model, _, self.preprocess = open_clip.create_model_and_transforms(
            f"local-dir:{folder}"
        )
        self.model.eval()
        self.tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")

    @torch.no_grad()
    def __call__(self, prompts, pictures):
        """Unit vectors of pictures and prompts, and the pictures' before normalization."""
        pixels = torch.stack([self.preprocess(picture) for picture in pictures])
        image, text, _ = self.model(pixels, self.tokenizer(prompts))
        return image, text, self.model.encode_image(pixels)


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_folder_to_vectors(clip_folder, prompts, pictures, batch_size):
    clip = OpenCLIP.from_pretrained(clip_folder, batch_size=batch_size)
    image, text, raw = Theirs(clip_folder)(prompts, pictures)
    assert (image @ image.T).min() < 0.9  # pictures differ
    assert (text @ text.T).min() < 0.9
    assert NEAR(clip.image_features(pictures), image)
    assert NEAR(clip.text_features(prompts), text)
    assert NEAR(clip.features(pictures), raw, atol=1e-5)  # no unit vectors: longer
    assert NEAR(clip.similarity(prompts, pictures), (image @ text.T).diagonal())
    for out in (clip.image_features(pictures), clip.similarity(prompts, pictures)):
        assert out.dtype == torch.float32
        assert not out.is_inference()
    assert clip.device == torch.device("cpu")
    assert clip.name == "clip-tiny-clip"


def test_frames_of_a_clip_share_a_prompt(clip_folder, prompts, pictures, monkeypatch):
    clip, read = OpenCLIP.from_pretrained(clip_folder), []
    encode = clip.model.encode_text
    monkeypatch.setattr(
        clip.model, "encode_text", lambda ids, **how: read.append(len(ids)) or encode(ids, **how)
    )
    one = clip.similarity(prompts[:1] * len(pictures), pictures)
    assert read == [1]
    assert NEAR(one, clip.image_features(pictures) @ clip.text_features(prompts[:1])[0])


def test_pixels_or_pictures(clip_folder, pictures):
    clip = OpenCLIP.from_pretrained(clip_folder)
    pixels = torch.from_numpy(np.stack([np.asarray(pictures[1])] * 2)).movedim(-1, 1)
    assert torch.equal(clip.features(pixels), clip.features([pictures[1]] * 2))
    with pytest.raises(ValueError, match="expected uint8"):
        clip.features(pixels.float())


def test_loading_leaves_no_trace(clip_folder, caplog):
    state, disabled = torch.get_rng_state(), logging.root.manager.disable
    OpenCLIP.from_pretrained(clip_folder)
    assert torch.equal(torch.get_rng_state(), state)
    assert logging.root.manager.disable == disabled
    assert not caplog.records


@pytest.mark.parametrize("container", ["state_dict", "plain", "safetensors"])
def test_checkpoint_of_a_named_architecture(
    tmp_path, monkeypatch, prompts, pictures, shake, container
):
    monkeypatch.setitem(factory._MODEL_CONFIGS, "tiny", ARCHITECTURE)
    with torch.random.fork_rng():
        model = shake(open_clip.create_model("tiny"))
    weights = model.state_dict()
    path = tmp_path / ("weights.safetensors" if container == "safetensors" else "weights.pt")
    if container == "safetensors":
        save_file(weights, path)
    else:
        torch.save({"state_dict": weights} if container == "state_dict" else weights, path)
    clip = OpenCLIP.from_checkpoint(path, "tiny", preprocess={"mean": (0.1, 0.2, 0.3)})
    transform = open_clip.image_transform(32, is_train=False, mean=(0.1, 0.2, 0.3))
    with torch.no_grad():
        pixels = torch.stack([transform(picture) for picture in pictures])
        tokens = open_clip.get_tokenizer("tiny")(prompts)
        image, text, _ = model(pixels, tokens)
    assert tokens.shape == (5, 12)
    assert NEAR(clip.image_features(pictures), image)
    assert NEAR(clip.text_features(prompts), text)
    assert clip.name == "clip-tiny"
    with pytest.raises(InputError, match="unknown architecture 'tinny'; did you mean 'tiny'"):
        OpenCLIP.from_checkpoint(path, "tinny")


class Adapter:
    """The library's model as torchmetrics wants a model and its processor."""

    def __init__(self, theirs):
        self.theirs, self.config = theirs, None

    def to(self, device):
        return self

    def __call__(self, images=None, text=None, **_):
        if images is not None:
            pixels = [self.theirs.preprocess(to_pil_image(image)) for image in images]
            return {"pixel_values": torch.stack(pixels)}
        ids = self.theirs.tokenizer(text)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    @torch.no_grad()
    def get_image_features(self, pixels):
        return self.theirs.model.encode_image(pixels)

    @torch.no_grad()
    def get_text_features(self, ids, mask):
        return self.theirs.model.encode_text(ids)


def test_clip_score_equals_torchmetrics(clip_folder, prompts, pictures):
    """Pair by pair, since torchmetrics floors only the mean."""
    adapter = Adapter(Theirs(clip_folder))
    pairs = [(prompt, picture) for prompt in prompts for picture in pictures]
    truth = torch.stack(
        [
            torchmetrics_clip_score(
                torch.from_numpy(np.asarray(picture).copy()).movedim(-1, 0),
                prompt,
                lambda: (adapter, adapter),
            )
            for prompt, picture in pairs
        ]
    )
    scorer = CLIPScore.from_pretrained(clip_folder)
    scores = scorer.score([prompt for prompt, _ in pairs], [picture for _, picture in pairs])
    assert torch.allclose(scores, truth, atol=1e-4, rtol=0)  # of 100
    assert (truth == 0).any()
    assert truth.max() > 10
    assert scorer.name == "clip_score"
    assert scorer.score([], []).shape == (0,)


def test_counts_that_do_not_pair(clip_folder, prompts, pictures):
    scorer = CLIPScore.from_pretrained(clip_folder)
    with pytest.raises(ValueError, match="4 prompts can't be paired with 5 pictures"):
        scorer.score(prompts[:4], pictures)
    with pytest.raises(ValueError, match="not one string"):
        scorer.score("five!", pictures)
    for empty in (scorer.clip.features, scorer.clip.text_features):
        with pytest.raises(ValueError, match="nothing to embed"):
            empty([])


def test_embedded_model_by_default(clip_folder, monkeypatch, prompts, pictures):
    monkeypatch.setattr(clip_networks, "embedded_folder", lambda name: clip_folder)
    clip, scorer = ShapesCLIP.from_pretrained(), ShapesCLIPScore.from_pretrained()
    image, text, _ = Theirs(clip_folder)(prompts, pictures)
    assert (clip.name, scorer.name) == ("shapes_clip", "shapes_clip_score")
    assert NEAR(clip.features(pictures), image)
    truth = 100 * (image @ text.T).diagonal().clamp(min=0)
    assert torch.allclose(scorer.score(prompts, pictures), truth, atol=1e-4, rtol=0)
    monkeypatch.setattr(clip_networks, "embedded_folder", lambda name: clip_folder / "nothing")
    with pytest.raises(InputError, match="nothing"):
        ShapesCLIP.from_pretrained()
    assert NEAR(ShapesCLIP.from_pretrained(clip_folder).features(pictures), image)


def test_embedded_model_is_looked_for_among_the_assets():
    expected = Path(__file__).resolve().parents[2] / "assets" / "models" / "clip"
    assert clip_networks.embedded_folder("clip") == readable(expected)


# --- what does not fit ----------------------------------------------------------------------------

NAME = "visual.transformer.resblocks.1.ln_1.bias"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({NAME: None}, f"missing tensor {NAME}"),
        ({"visual.odd": torch.zeros(2)}, "unexpected tensor visual.odd"),
        ({NAME: torch.zeros(3)}, f"tensor {NAME} has shape (3,), expected (16,)"),
        # the library would stretch these two in silence
        ({"visual.positional_embedding": torch.zeros(10, 16)}, "visual.positional_embedding"),
        ({"positional_embedding": torch.zeros(77, 16)}, "tensor positional_embedding"),
    ],
    ids=str,
)
def test_tensors_that_do_not_fit(clip_folder, change, message):
    path = clip_folder / "open_clip_model.safetensors"
    weights = {**load_file(path), **change}
    save_file({name: value for name, value in weights.items() if value is not None}, path)
    with pytest.raises(InputError) as caught:
        OpenCLIP.from_pretrained(clip_folder)
    assert message in one_line(caught)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("open_clip_config.json", None, "open_clip_config.json"),
        ("open_clip_config.json", "junk", "open_clip_config.json"),
        ("open_clip_config.json", "[]", "open_clip_config.json"),
        ("open_clip_config.json", "{}", "can't make local-dir:"),
        ("open_clip_config.json", '{"model_cfg": {"embed_dim": 3}}', "can't make local-dir:"),
        ("open_clip_model.safetensors", None, "no open_clip_model.safetensors or"),
        ("open_clip_model.safetensors", "junk", "open_clip_model.safetensors"),
        ("tokenizer.json", None, "can't make local-dir:"),
        ("tokenizer.json", "{}", "can't make local-dir:"),
    ],
)
def test_files_that_do_not_fit(clip_folder, file, content, message):
    (clip_folder / file).unlink()
    if content is not None:
        (clip_folder / file).write_text(content)
    with pytest.raises(InputError) as caught:
        OpenCLIP.from_pretrained(clip_folder)
    assert message in one_line(caught)
    assert str(clip_folder) in str(caught.value)


def test_tokenizers_without_words(clip_folder):
    """Of a known class, whose files are missing, the library makes a tokenizer of nothing."""
    (clip_folder / "tokenizer.json").unlink()
    (clip_folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    with pytest.raises(InputError, match="no vocabulary"):
        OpenCLIP.from_pretrained(clip_folder)


def test_tokenizers_of_too_many_words(clip_folder, clip_config):
    config = json.loads(json.dumps(clip_config))
    config["model_cfg"]["text_cfg"]["vocab_size"] = 4
    (clip_folder / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="has 12 words, the model 4"):
        OpenCLIP.from_pretrained(clip_folder)


@pytest.mark.parametrize("asked", [True, False])
def test_code_beside_the_weights_is_not_run(clip_folder, clip_config, asked):
    marker = clip_folder / "ran"
    code = f"open({str(marker)!r}, 'w')\nfrom transformers import BertTokenizer\n\n"
    code += "class Odd(BertTokenizer):\n    pass\n"  # transformers marks the class that is loaded
    (clip_folder / "odd.py").write_text(code)
    settings = {"tokenizer_class": "Odd", "auto_map": {"AutoTokenizer": ["odd.Odd", "odd.Odd"]}}
    (clip_folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = json.loads(json.dumps(clip_config))
    if asked:
        config["model_cfg"]["text_cfg"]["tokenizer_kwargs"] = {"trust_remote_code": True}
        (clip_folder / "open_clip_config.json").write_text(json.dumps(config))
    with suppress(InputError):  # or it is loaded without the code
        OpenCLIP.from_pretrained(clip_folder)
    assert not marker.exists()
    if asked:
        open_clip.get_tokenizer(f"local-dir:{clip_folder}")
        assert marker.exists()  # it would have


def one_line(caught) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_ends_of_long_prompts_are_told(clip_folder, prompts, pictures, caplog):
    """Ten tokens are read, one of them the mark of the end."""
    score = CLIPScore.from_pretrained(clip_folder)
    score.score(prompts, pictures)
    (line,) = [r.message for r in caplog.records if "reads" in r.message]
    lost = "a red square and a blue square and two circles"
    assert f"reads 10 tokens of a prompt: lost is {lost!r} of 'a circle and" in line


def test_ends_of_long_prompts_of_openai_s_words():
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    assert _lost(tokenizer, ["a star", "a red circle and a blue square"], 6) == {
        "a red circle and a blue square": "a blue square"
    }


@pytest.mark.parametrize(
    ("part", "size", "said"),
    [("vision_cfg", "layers", 10**7), ("text_cfg", "layers", 10**7), ("text_cfg", "width", 10**4)],
)
def test_config_larger_than_its_weights(clip_folder, part, size, said):
    """open_clip would make it, weights and all."""
    config = json.loads((clip_folder / "open_clip_config.json").read_text())
    config["model_cfg"][part][size] = said
    (clip_folder / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="far larger than its weights") as caught:
        OpenCLIP.from_pretrained(clip_folder)
    assert "\n" not in str(caught.value)
