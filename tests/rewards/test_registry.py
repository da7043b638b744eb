"""Rewards and feature extractors by name; the pictures and pairs that they all take."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from mmspec.errors import InputError
from mmspec.registry import resolve
from mmspec.rewards.base import batches, check_pairs
from mmspec.rewards.networks import clip as clip_networks
from mmspec.rewards.registry import FEATURES, REWARDS, load_features, load_reward, reward_names

PUBLISHED = {part.name for part in (*REWARDS.all(), *FEATURES.all()) if part.weights}


@pytest.mark.parametrize("name", reward_names())
def test_rewards_resolve(name):
    kind = resolve(REWARDS.get(name).cls)
    assert callable(kind.score)
    assert callable(kind.from_pretrained)


@pytest.mark.parametrize("name", ["clip", "shapes_clip"])
def test_features_resolve(name):
    kind = resolve(FEATURES.get(name).cls)
    assert callable(kind.features)
    assert callable(kind.from_pretrained)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_missing_weights_say_what_and_how(name):
    load = load_reward if name in reward_names() else load_features
    with pytest.raises(InputError) as caught:
        load(name)
    text = str(caught.value)
    assert f"--weights {name}=PATH" in text
    assert "\n" not in text


def test_missing_weights_name_the_published_files():
    for name, files in {
        "image_reward": ["ImageReward.pt", "med_config.json", "THUDM/ImageReward", "vocab.txt"],
        "hpsv2": ["HPS_v2.1_compressed.pt", "xswu/HPSv2"],
        "pick_score": ["yuvalkirstain/PickScore_v1"],
    }.items():
        with pytest.raises(InputError) as caught:
            load_reward(name)
        for file in files:
            assert file in str(caught.value)


def test_unknown_names():
    with pytest.raises(InputError, match="unknown reward 'imagereward'; did you mean 'image_rew"):
        load_reward("imagereward")
    with pytest.raises(InputError, match="unknown feature extractor 'clap'; did you mean 'clip'"):
        load_features("clap")


@pytest.mark.parametrize("content", [b"", b"junk", b"\xff" * 64, "truncated", "pipe"], ids=str)
@pytest.mark.parametrize("name", [*reward_names(), *FEATURES.names()])
def test_broken_weights_are_one_line(name, content, clip_folder):
    """Of every reward and extractor, in the file and in the folder that it takes."""
    path = clip_folder / "open_clip_model.safetensors"
    data = path.read_bytes()
    path.unlink()
    if content == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(data[:-100] if content == "truncated" else content)
    path.with_name("model.safetensors").symlink_to(path)  # as PickScore's folder calls it
    load = load_reward if name in reward_names() else load_features
    for place in (clip_folder, path):
        with pytest.raises(InputError) as caught:
            load(name, place)
        assert "\n" not in str(caught.value)
        assert str(clip_folder) in str(caught.value)


def test_given_weights(clip_folder, pictures, prompts):
    scorer, extractor = load_reward("clip_score", clip_folder), load_features("clip", clip_folder)
    assert scorer.name == "clip_score"
    assert scorer.score(prompts, pictures).shape == (5,)
    assert extractor.name == "clip-tiny-clip"
    assert extractor.features(pictures).shape == (5, 12)
    with pytest.raises(InputError, match="absent"):
        load_reward("clip_score", clip_folder / "absent")


def test_embedded_weights(clip_folder, monkeypatch, pictures, prompts):
    monkeypatch.setattr(clip_networks, "embedded_folder", lambda name: clip_folder)
    scorer, extractor = load_reward("shapes_clip_score"), load_features("shapes_clip")
    assert (scorer.name, extractor.name) == ("shapes_clip_score", "shapes_clip")
    torch.testing.assert_close(  # sums of two networks may round differently
        scorer.score(prompts, pictures),
        load_reward("clip_score", clip_folder).score(prompts, pictures),
    )


def test_names_without_their_libraries():
    code = (
        "import sys; from mmspec.rewards.registry import FEATURES, REWARDS; "
        "assert REWARDS.names() and FEATURES.names(); "
        "print({'torch', 'open_clip', 'transformers', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_pairs_and_batches():
    check_pairs(["a", "b"], torch.zeros(2, 3, 4, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match="1 prompts can't be paired with 2 pictures"):
        check_pairs(["a"], torch.zeros(2, 3, 4, 4, dtype=torch.uint8))
    assert [list(range(7))[part] for part in batches(7, 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(batches(0, 3)) == []
