"""What Qwen's vision-language models have of their own: positions on axes, deep features."""

from __future__ import annotations

import pytest
import torch
from transformers.generation.streamers import BaseStreamer
from vlms import QWEN, asked, greedy, made, shorter

import mmspec
from mmspec.engine.warp import Warp
from mmspec.errors import InputError
from mmspec.methods import SpecConfig
from mmspec.models.guided import GuidedDecoder
from mmspec.models.prefill import WHOLE
from mmspec.models.setting import Setting
from mmspec.models.transformers.prompted import prompted

CLOSE = 1e-5


@pytest.fixture(scope="module")
def known():
    return {family: made(family) for family in QWEN}


@pytest.fixture(params=QWEN)
def model(request, known):
    yield known[request.param]
    mmspec.disable_speculation(known[request.param])


def given(inputs: dict) -> dict:
    return {n: v for n, v in inputs.items() if n not in ("input_ids", "attention_mask")}


class Broken(BaseStreamer):
    def put(self, value):
        raise RuntimeError("nobody listens")

    def end(self):
        pass


@pytest.mark.parametrize("before", [None, torch.tensor([[-7], [3]])], ids=["none", "some"])
def test_nothing_is_left_on_the_model(model, before):
    """Neither of a call that ends well nor of one that fails in transformers or here."""
    drafter = shorter(model)
    network, seen = model.model, drafter.model
    network.rope_deltas = seen.rope_deltas = before
    mmspec.enable_speculation(model, SpecConfig("draft"), drafter)
    inputs = {**asked(model, [1, 2]), "max_new_tokens": 4, "do_sample": False}
    model.generate(**inputs)
    assert network.rope_deltas is before
    with pytest.raises(RuntimeError, match="nobody listens"):
        model.generate(**asked(model, [1]), max_new_tokens=4, streamer=Broken())
    with pytest.raises(InputError):
        model.generate(**inputs, drafter_inputs={})
    prompted(model).prompt(
        inputs["input_ids"], inputs["attention_mask"].bool(), 4, **given(asked(model, [1, 2]))
    )
    assert network.rope_deltas is before
    assert seen.rope_deltas is before
    network.rope_deltas = None


def test_one_call_does_not_see_another_s_distances(model):
    """Prompts with and without pictures in turn, as transformers has them one by one."""
    for rows in ([1], [0], [2], [0, 1]):
        inputs = asked(model, rows)
        theirs = greedy(model, inputs).sequences
        mmspec.enable_speculation(model)
        assert torch.equal(model.generate(**inputs, max_new_tokens=16, do_sample=False), theirs)
        assert torch.equal(model.generate(**inputs, max_new_tokens=16, do_sample=False), theirs)
        mmspec.disable_speculation(model)


@torch.inference_mode()
def test_positions_are_those_of_the_grid(model):
    """A 2 × 3 picture behind three words, and text behind its larger side."""
    ids = asked(model, [1])["input_ids"]
    visual = (ids[0] == model.config.image_token_id).nonzero()[:, 0].tolist()
    assert visual == list(range(3, 9))  # behind two words and an opening
    prompt = prompted(model).prompt(ids, torch.ones_like(ids).bool(), 2, **given(asked(model, [1])))
    assert prompt.positions.shape == (3, 1, ids.shape[1] + 2)
    assert prompt.positions[:, 0, 3:9].tolist() == [
        [3, 3, 3, 3, 3, 3],
        [3, 3, 3, 4, 4, 4],
        [3, 4, 5, 3, 4, 5],
    ]
    rest = prompt.positions[:, 0, 9:]
    assert torch.equal(rest, torch.arange(6, 6 + rest.shape[1]).expand(3, -1))
    assert torch.equal(prompt.positions[:, 0, :3], torch.arange(3).expand(3, -1))


def test_more_columns_than_positions(known):
    """A picture of 6 columns takes 3 positions: positions are what a model has too few of."""
    inputs = asked(known["qwen2_vl"], [2])
    width = inputs["input_ids"].shape[1]  # the two pictures spare three columns each, or two
    model = made("qwen2_vl", max_position_embeddings=width)
    theirs = greedy(model, inputs, max_new_tokens=3).sequences
    mmspec.enable_speculation(model)
    assert torch.equal(model.generate(**inputs, max_new_tokens=3, do_sample=False), theirs)
    with pytest.raises(InputError, match="too long for this model"):
        model.generate(**inputs, max_new_tokens=16, do_sample=False)


def test_guidance_is_refused(model):
    mmspec.enable_speculation(model)
    with pytest.raises(InputError, match="can't honour guidance_scale"):
        model.generate(**asked(model, [1]), max_new_tokens=2, guidance_scale=2.0)


# --- DeepStack ------------------------------------------------------------------------------------


def first_laws(decoder, inputs: dict, deep: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Laws `[R, 1, V]` behind the prompt, and the states of its other columns."""
    mask = inputs["attention_mask"].bool()
    prompt = decoder.prompt(inputs["input_ids"], mask, 4, **given(inputs))
    prompt.deep.mul_(deep)
    decoder.place(prompt)
    network = GuidedDecoder(decoder, Setting(prompt.embedded, mask, None, Warp(), 4, 0, 4))
    network.watch(prefix=WHOLE)
    network.start(len(mask))
    states = network.hidden
    return network.extend(torch.zeros(len(mask), 1, dtype=torch.long), [-1] * len(mask)), states


@pytest.mark.parametrize("ends", [False, True], ids=["words last", "picture last"])
@torch.inference_mode()
def test_deep_features_lie_in_their_columns(known, ends):
    """Also behind padding, and in the last column; without them the laws are others."""
    model = known["qwen3_vl"]
    inputs = asked(model, [2, 1])
    if ends:
        last = int((inputs["input_ids"] == model.config.image_token_id).any(0).nonzero().max()) + 1
        text = ("input_ids", "attention_mask", "mm_token_type_ids")
        inputs = {n: v[:, :last] if n in text else v for n, v in inputs.items()}
        assert (inputs["input_ids"][:, -1] == model.config.image_token_id).any()
    laws, states = first_laws(prompted(model), inputs)
    positions, _ = model.model.get_rope_index(
        inputs["input_ids"],
        inputs["mm_token_type_ids"],
        inputs["image_grid_thw"],
        attention_mask=inputs["attention_mask"],
    )
    out = model(**inputs, position_ids=positions, use_cache=False, output_hidden_states=True)
    assert torch.allclose(laws[:, 0], out.logits[:, -1].softmax(-1), atol=CLOSE)
    real = inputs["attention_mask"][:, :-1].bool()
    assert torch.allclose(states[real], out.hidden_states[-1][:, :-1][real], atol=CLOSE)
    without, others = first_laws(prompted(model), inputs, deep=0.0)
    assert (without - laws).abs().max() > 1e-3
    behind = inputs["mm_token_type_ids"][:, :-1].bool() & real
    assert ((states - others).abs().amax(-1) > 1e-3)[behind].all()
    model.model.rope_deltas = None


def test_only_qwen3_has_them(known):
    for family, model in known.items():
        inputs = asked(model, [1])
        mask = inputs["attention_mask"].bool()
        with torch.no_grad():
            prompt = prompted(model).prompt(inputs["input_ids"], mask, 2, **given(inputs))
        assert (prompt.deep is not None) == (family == "qwen3_vl")
    assert prompt.deep.shape == (2, 6, 32)
    assert torch.equal(prompt.repeated(2).deep, torch.cat([prompt.deep] * 2, dim=1))
