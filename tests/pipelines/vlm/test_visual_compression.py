"""Pictures made shorter: exact for the drafter, for the target as the compressor leaves them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import vlms
from vlms import IMAGE, NEW, QWEN, SHARED, agree, asked, greedy, made, shorter

import mmspec
from mmspec import SpecConfig
from mmspec.compress.base import compress
from mmspec.compress.fastv import last_token_attention
from mmspec.compress.packed_tower import watch_packed
from mmspec.compress.tower import watch
from mmspec.errors import InputError
from mmspec.methods import parts
from mmspec.models.transformers.prompted import prompted
from mmspec.pipelines.vlm.looking import look
from mmspec.pipelines.vlm.visual_compression import PictureShortener

RAGGED = [1, 2, 0]  # pictures of every row
FAMILIES = [*SHARED, *QWEN]
TILED = ["llava_next", "llava_onevision"]  # their columns are not the tower's tokens


@pytest.fixture(scope="module")
def known():
    """A model of a family, its drafter, a batch, and what it answers by itself."""
    models = {}

    def get(family: str):
        if family not in models:
            model = made(family)
            inputs = asked(model, RAGGED)
            models[family] = model, shorter(model), inputs, greedy(model, inputs)
        return models[family]

    yield get
    for model, *_ in models.values():
        mmspec.disable_speculation(model)


def shortened(model, inputs, name, share, limit=4):
    """The prompt of a batch, and what the compressor leaves of it."""
    decoder = prompted(model)
    shortener = PictureShortener(decoder, name, share)
    given = {key: value for key, value in inputs.items() if key != "mm_token_type_ids"}
    ids, mask = given.pop("input_ids"), given.pop("attention_mask").bool()
    with torch.inference_mode(), shortener.watching():
        prompt = decoder.prompt(ids, mask, limit, **given)
        return prompt, shortener(prompt, inputs)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["divprune", "fastv", "tome"])
def test_what_stays_keeps_its_place(known, family, name):
    model, _, inputs, _ = known(family)
    prompt, made_ = shortened(model, inputs, name, 0.5)
    width = prompt.mask.shape[1]
    for row, images in enumerate(prompt.images):
        left = [max(1, round(columns / 2)) for _, columns in images]
        assert [columns for _, columns in made_.images[row]] == left
        own = made_.mask[row]
        assert int(own.sum()) == int(prompt.mask[row].sum()) - sum(c for _, c in images) + sum(left)
        assert not own[: int((~own).sum())].any()  # padding is in front
        assert int(made_.visual[row].sum()) == sum(left)
        for first, columns in made_.images[row]:
            assert made_.visual[row, first : first + columns].all()
        # text is what it was, in order and where it was
        text, still = prompt.mask[row] & ~prompt.visual[row], own & ~made_.visual[row]
        assert torch.equal(prompt.embedded[row][text], made_.embedded[row][still])
        positions = prompt.positions[..., row, :width][..., text]
        assert torch.equal(positions, made_.positions[..., row, : len(own)][..., still])
        assert torch.equal(
            prompt.positions[..., row, width:], made_.positions[..., row, len(own) :]
        )
    if prompt.deep is not None:
        assert made_.deep.shape[1] == int(made_.visual.sum())
    # newline columns of tiled pictures are all the same
    if (
        name in ("divprune", "fastv") and family not in TILED
    ):  # these leave columns as they are: which ones, is their say
        for row in range(2):
            before = prompt.embedded[row][prompt.visual[row]]
            after = made_.embedded[row][made_.visual[row]]
            index = torch.cdist(after, before).argmin(1)
            assert torch.equal(before[index], after)
            positions = prompt.positions[..., row, :width][..., prompt.visual[row]]
            here = made_.positions[..., row, : len(made_.mask[row])][..., made_.visual[row]]
            assert torch.equal(positions[..., index], here)


def test_deep_features_stay_with_their_columns(known):
    model, _, inputs, _ = known("qwen3_vl")
    prompt, made_ = shortened(model, inputs, "divprune", 0.5)
    before, after = prompt.embedded[prompt.visual], made_.embedded[made_.visual]
    index = torch.cdist(after, before).argmin(1)
    assert torch.equal(prompt.deep[:, index], made_.deep)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in TILED])
@pytest.mark.parametrize("name", ["visionzip", "prumerge", "tome"])
def test_what_the_tower_shows_goes_to_its_own_picture(known, family, name):
    """Picture by picture, against a call of the tower by itself."""
    model, _, inputs, _ = known(family)
    prompt, made_ = shortened(model, inputs, name, 0.5)
    network = model.base_model
    about = {n: v for n, v in inputs.items() if n.startswith(("pixel", "image"))}
    if family in QWEN:
        around = watch_packed(network.visual)
    else:
        tower = getattr(network, "vision_tower", None) or network.vision_model
        around = watch(tower, parts("compressor")[name].layer)
    with torch.inference_mode(), around as seen:
        model.get_image_features(**about, return_dict=True)
    wanted = []
    spans = [(row, *span) for row, images in enumerate(prompt.images) for span in images]
    for n, (row, first, columns) in enumerate(spans):
        if family in QWEN:
            cues = seen[n].inputs(name)
        else:
            whole = seen if family == "llava" else seen.blocks(2)
            cues = {key: value[n : n + 1] for key, value in whole.inputs(name).items()}
        picture = prompt.embedded[row, None, first : first + columns]
        wanted.append(compress(name, picture, max(1, round(columns / 2)), **cues).features[0])
    assert torch.allclose(made_.embedded[made_.visual], torch.cat(wanted), atol=1e-5)


def test_fastv_reads_the_second_layer(known):
    """Its weights are those of transformers' own eager attention."""
    model, _, inputs, _ = known("llava")
    prompt, made_ = shortened(model, inputs, "fastv", 0.4)
    before = model.config.text_config._attn_implementation
    model.set_attn_implementation("eager")
    out = model(**inputs, output_attentions=True)
    model.set_attn_implementation(before)
    for row in range(2):
        wanted = []
        for first, columns in prompt.images[row]:
            positions = torch.arange(first, first + columns)[None]
            attention = last_token_attention(out.attentions[1][row : row + 1], positions)
            features = prompt.embedded[row : row + 1, first : first + columns]
            wanted.append(compress("fastv", features, 4, attention=attention).features[0])
        assert torch.allclose(made_.embedded[row][made_.visual[row]], torch.cat(wanted))


@pytest.mark.parametrize("looks", ["itself", "another"])
def test_a_draft_models_question_chooses(known, looks):
    """By transformers' own eager attention of all of its layers, on the pictures' grid."""
    model, small, inputs, _ = known("llava")
    looker = small if looks == "another" else model
    shortener = PictureShortener(prompted(model), "draft-attention", 0.4, prompted(looker))
    given = {key: value for key, value in inputs.items() if key != "mm_token_type_ids"}
    ids, mask = given.pop("input_ids"), given.pop("attention_mask").bool()
    with torch.inference_mode():
        prompt = prompted(model).prompt(ids, mask, 4, **given)
        seen = prompted(looker).prompt(ids, mask, 4, **given)
        made_ = shortener(prompt, inputs, (seen, inputs))
    before = looker.config.text_config._attn_implementation
    looker.set_attn_implementation("eager")
    attentions = looker(**inputs, output_attentions=True).attentions
    looker.set_attn_implementation(before)
    attentions = attentions[len(attentions) // 3 :]
    for row in range(2):
        places = [n for n in range(mask.shape[1]) if mask[row, n] and not prompt.visual[row, n]]
        wanted = []
        for first, columns in prompt.images[row]:
            scores = torch.zeros(columns)
            for layer in attentions:
                for rank, query in enumerate(places):
                    paid = layer[row, :, query, first : first + columns].amax(0)
                    scores = torch.maximum(scores, paid * (rank + 1) / len(places))
            features = prompt.embedded[row : row + 1, first : first + columns]
            picked = compress("draft-attention", features, 4, attention=scores[None])
            wanted.append(picked.features[0])
        assert torch.allclose(made_.embedded[row][made_.visual[row]], torch.cat(wanted), atol=1e-6)


def test_a_target_that_sees_what_the_draft_model_looks_at(known):
    model, small, inputs, theirs = known("llava")
    for share, same in ((1.0, True), (0.1, False)):
        config = SpecConfig("draft", target_compressor="draft-attention", target_keep=share)
        mmspec.enable_speculation(model, config, drafter=small)
        out = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
        assert model.speculation_stats.contract == "lossy"
        assert model.speculation_stats.fault is None
        assert agree(out, theirs) is same
    shortener = PictureShortener(prompted(model), "draft-attention", 0.4, prompted(small))
    given = {key: value for key, value in inputs.items() if key != "mm_token_type_ids"}
    ids, mask = given.pop("input_ids"), given.pop("attention_mask").bool()
    with torch.inference_mode():
        prompt = prompted(model).prompt(ids, mask, 4, **given)
        other = replace(prompt, images=[prompt.images[1], prompt.images[0], prompt.images[2]])
        with pytest.raises(InputError, match="or they belong to other prompts"):
            shortener(prompt, inputs, (other, inputs))
    with pytest.raises(InputError, match="looks through a draft model that sees pictures"):
        mmspec.enable_speculation(
            model, SpecConfig("prompt-lookup", target_compressor="draft-attention")
        )


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("name", parts("compressor"))
def test_a_drafter_that_sees_less_changes_nothing(known, family, name):
    model, small, inputs, theirs = known(family)
    config = SpecConfig("draft", draft_compressor=name, draft_keep=0.3)
    mmspec.enable_speculation(model, config, drafter=small)
    ours = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    stats = model.speculation_stats
    assert agree(ours, theirs)
    assert stats.fault is None
    assert stats.contract.startswith("exact")
    assert stats.visual_tokens == (inputs["input_ids"] == IMAGE).sum(1).tolist()
    for mine, target in zip(stats.draft_visual_tokens[:2], stats.visual_tokens[:2], strict=True):
        assert 0 < mine < target
    # copies of a row see what the row sees
    several = dict(max_new_tokens=4, do_sample=True, num_return_sequences=2)
    assert model.generate(**inputs, **several).shape[0] == 6
    assert model.speculation_stats.fault is None


@pytest.mark.parametrize("method", ["prompt-lookup", "draft"])
def test_a_target_that_sees_less_says_so(known, method):
    model, small, inputs, theirs = known("llava")
    small = small if method == "draft" else None

    def answer(share):
        config = SpecConfig(method, target_compressor="divprune", target_keep=share)
        mmspec.enable_speculation(model, config, drafter=small)
        return model.generate(**inputs, max_new_tokens=NEW, do_sample=False)

    assert agree(answer(1.0), theirs)  # nothing is left out
    assert model.speculation_stats.contract == "lossy"
    out = answer(0.1)
    assert model.speculation_stats.visual_tokens == [1, 2, 0]
    assert not agree(out, theirs)
    assert torch.equal(out[2], theirs.sequences[2])  # the row without a picture


def test_prumerge_may_choose_itself(known):
    model, _, inputs, _ = known("llava")
    prompt, made_ = shortened(model, inputs, "prumerge", None)
    assert 0 < int(made_.visual.sum()) < int(prompt.visual.sum())
    with pytest.raises(InputError, match="doesn't choose how many tokens stay"):
        shortened(model, inputs, "divprune", None)


@pytest.mark.parametrize("family", TILED)
def test_towers_whose_tokens_are_others(known, family):
    model, _, inputs, _ = known(family)
    with pytest.raises(InputError, match="use 'divprune', 'tome' or 'fastv'"):
        shortened(model, inputs, "visionzip", 0.5)
    with pytest.raises(InputError, match=f"'pool' can't shorten these pictures of {family}"):
        shortened(model, inputs, "pool", 0.5)


def test_models_that_see_nothing(known):
    from transformers import LlamaConfig, LlamaForCausalLM

    blind = LlamaForCausalLM(LlamaConfig(**{**vlms.text_sizes(), "num_hidden_layers": 1})).eval()
    config = SpecConfig("draft", draft_compressor="divprune")
    with pytest.raises(InputError, match="shortens pictures, and llama sees none"):
        mmspec.enable_speculation(known("llava")[0], config, drafter=blind)


def test_fastv_of_a_single_layer(known):
    shallow = prompted(known("llava")[0])
    shallow.layers = range(1)
    with pytest.raises(InputError, match="reads layer 2 of a language model, and this one has 1"):
        PictureShortener(shallow, "fastv", 0.5)


@pytest.mark.parametrize("family", ["paligemma", "gemma3"])
def test_pictures_that_are_read_both_ways_are_looked_at_so(family):
    """By the masks of the model's own pass, windows among them."""
    model = made(family)
    inputs = asked(model, [1, 2])
    decoder, given = prompted(model), dict(inputs)
    ids, mask = given.pop("input_ids"), given.pop("attention_mask").bool()
    with torch.inference_mode():
        prompt = decoder.prompt(ids, mask, 4, **given)
        (mine,) = look(decoder, prompt, [1], lambda weights: weights[:, :, -1])
    before = model.config.text_config._attn_implementation
    model.set_attn_implementation("eager")
    theirs = model(**inputs, output_attentions=True).attentions[1][:, :, -1]
    model.set_attn_implementation(before)
    assert torch.allclose(mine, theirs, atol=1e-5)
