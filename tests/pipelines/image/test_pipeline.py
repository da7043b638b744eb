"""The image pipeline's contract, on a small random model in float64: rounding decides nothing.

Methods that draft on rounded weights are for float32.
"""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import logging
import re
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from grids import GREEDY, UNORDERED
from knobs import precision, with_knobs

from mmspec import ImagePipeline, SpecConfig
from mmspec.errors import InputError
from mmspec.methods import parse_method, serving
from mmspec.models.guided import GuidedDecoder
from mmspec.models.llamagen.decoder import LlamaGenDecoder
from mmspec.models.text_encoder import encode_captions
from mmspec.pipelines.model_folders import locate

PRESETS = serving("image")
METHODS = list(PRESETS)
# a call of the target a round, and a token of its own in each
CALL_A_ROUND = [name for name in METHODS if PRESETS[name].rule not in UNORDERED]
PROMPT = "a photo of a red circle"
PROMPTS = [PROMPT, "a photo of three stars", "a photo of a blue square left of a white ring"]


def load(folder, dtype=torch.float64) -> ImagePipeline:
    pipe = ImagePipeline.from_pretrained(folder, dtype=dtype)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@functools.cache
def loaded(folder, dtype) -> ImagePipeline:
    return load(folder, dtype)


@pytest.fixture
def pipe(request, tiny_folder) -> ImagePipeline:
    """One of its own."""
    return copy.deepcopy(loaded(tiny_folder, precision(request, "image")))


def seeds(*numbers: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(number) for number in numbers]


def draw(pipe, prompt=PROMPT, seed=0, **arguments) -> torch.Tensor:
    """Tokens `[B, 16]`."""
    generator = torch.Generator().manual_seed(seed)
    arguments = {"generator": generator, "output_type": "tokens", **arguments}
    return pipe(prompt, **arguments).images


def speculate(pipe, method) -> None:
    pipe.enable_speculation(SpecConfig(method=method))


# --- save and load --------------------------------------------------------------------------------


def weight_files(folder) -> dict[str, bytes]:
    files = sorted(folder.rglob("*.safetensors"))
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def same_weights(one: ImagePipeline, other: ImagePipeline) -> bool:
    for name, part in one.components.items():
        if isinstance(part, torch.nn.Module):
            ours, theirs = part.state_dict(), other.components[name].state_dict()
            assert ours.keys() == theirs.keys()
            if not all(torch.equal(ours[key], theirs[key]) for key in ours):
                return False
    return True


def test_round_trip_keeps_every_byte(tiny_folder, tmp_path):
    load(tiny_folder, torch.float32).save_pretrained(tmp_path)
    assert len(weight_files(tmp_path)) == 11
    assert weight_files(tmp_path) == weight_files(tiny_folder)
    index = "model_index.json"
    assert (tmp_path / index).read_text() == (tiny_folder / index).read_text()
    assert torch.equal(draw(load(tmp_path)), draw(load(tiny_folder)))


@pytest.mark.parametrize("missing", [["drafter"], ["sibling"], ["drafter", "sibling"]], ids=str)
def test_optional_components_may_be_missing(tiny_folder, tmp_path, missing):
    parts = {**load(tiny_folder).components, **dict.fromkeys(missing)}
    ImagePipeline(**parts).save_pretrained(tmp_path)
    again = load(tmp_path)
    assert [name for name, part in again.components.items() if part is None] == missing
    assert torch.equal(draw(again), draw(load(tiny_folder)))


def test_sharded_and_saved_over_one_another(tiny_folder, tmp_path):
    """What an earlier save left behind misleads nobody."""
    whole = load(tiny_folder, torch.float32)
    for size, sharded in (("20KB", True), ("1MB", False), ("30KB", True)):
        whole.save_pretrained(tmp_path, max_shard_size=size)
        index = tmp_path / "transformer" / "diffusion_pytorch_model.safetensors.index.json"
        assert index.exists() == sharded
        assert same_weights(load(tmp_path, torch.float32), whole)


def test_dtype(tiny_folder):
    half = load(tiny_folder, torch.float16)
    for name in ("transformer", "vq_model", "drafter", "sibling"):
        assert {p.dtype for p in half.components[name].parameters()} == {torch.float16}
    assert half.text_encoder.dtype == torch.float16
    assert half("a red circle", output_type="pt").images.isfinite().all()


@pytest.mark.parametrize("rounds", [1, 99])
def test_only_whole_pictures_say_whether_speculation_pays(tiny_folder, monkeypatch, rounds):
    pipe, judged = load(tiny_folder), []
    monkeypatch.setattr(pipe._notices, "check", lambda stats, call: judged.append(stats))
    speculate(pipe, "draft")

    def stop(pipe, done, tokens, told):
        pipe.interrupt = done >= rounds

    out = pipe(PROMPT, callback_on_step_end=stop)
    assert judged == ([out.stats] if rounds == 99 else [])


def test_folders_of_something_else(tiny_folder, tmp_path):
    index = tmp_path / "model_index.json"
    for text, message in (
        ('{"_class_name": "StableDiffusionPipeline"}', "StableDiffusionPipeline"),
        ('{"_class_name": "ImagePipeline", "transformer": null}', "names no transformer"),
        ('{"_class_name": "ImagePipeline", "transformer": ["a", "b"]}', "transformer/config.json"),
        ("[]", "JSON object"),
        ("{", "model_index.json"),
    ):
        index.write_text(text)
        with pytest.raises(InputError, match=message):
            ImagePipeline.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="no model folder"):
        ImagePipeline.from_pretrained(tmp_path / "nothing")


def test_embedded_models_have_names():
    assert locate("embedded-image", "nothing") == locate(None, "image")
    with pytest.raises(InputError, match="no model embedded-nothing ships with this version"):
        ImagePipeline.from_pretrained("embedded-nothing")


@pytest.mark.parametrize("name", ["drafter", "sibling"])
@pytest.mark.parametrize("field", ["vocab_size", "cls_token_num", "caption_dim"])
def test_networks_must_fit_together(pipe, name, field):
    config = {**pipe.transformer.config, field: 7}
    other = type(pipe.transformer).from_config(config)
    with pytest.raises(InputError, match=f"{name}'s {field} \\(7\\)"):
        ImagePipeline(**{**pipe.components, name: other})


def test_parts_must_fit_together(pipe):
    config = pipe.transformer.config
    wide, many = (
        type(pipe.transformer).from_config({**config, **change})
        for change in (dict(caption_dim=24), dict(vocab_size=160))
    )
    parts = {name: pipe.components[name] for name in ("vq_model", "text_encoder", "tokenizer")}
    with pytest.raises(InputError, match="features have 32 channels, the target reads 24"):
        ImagePipeline(wide, **parts)
    with pytest.raises(InputError, match="160 different tokens, the image tokenizer has 128 codes"):
        ImagePipeline(many, **parts)


# --- seeds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_picture_alone_or_in_a_batch(pipe, method):
    speculate(pipe, method)
    alone = [draw(pipe, p, generator=g) for p, g in zip(PROMPTS, seeds(3, 4, 5), strict=True)]
    alone = torch.cat(alone)
    assert len(alone.unique(dim=0)) == 3
    assert torch.equal(draw(pipe, PROMPTS, generator=seeds(3, 4, 5)), alone)
    assert torch.equal(draw(pipe, PROMPTS[::-1], generator=seeds(5, 4, 3)), alone.flip(0))
    assert torch.equal(draw(pipe, PROMPTS[0], generator=seeds(3)), alone[:1])


def test_one_generator_serves_the_rows_in_turn(pipe):
    generator = torch.Generator().manual_seed(3)
    in_turn = torch.cat([draw(pipe, prompt, generator=generator) for prompt in PROMPTS])
    assert torch.equal(draw(pipe, PROMPTS, seed=3), in_turn)
    assert not torch.equal(draw(pipe, PROMPTS, seed=4), in_turn)


def test_without_generator_the_global_seed_counts(pipe):
    with torch.random.fork_rng():
        torch.manual_seed(8)
        first, second = draw(pipe, generator=None), draw(pipe, generator=None)
        torch.manual_seed(8)
        assert torch.equal(draw(pipe, generator=None), first)
    assert not torch.equal(first, second)


def test_several_pictures_of_a_prompt(pipe):
    four = draw(pipe, PROMPTS[:2], num_images_per_prompt=2, generator=seeds(1, 2, 3, 4))
    alone = zip([PROMPTS[0]] * 2 + [PROMPTS[1]] * 2, seeds(1, 2, 3, 4), strict=True)
    assert torch.equal(four, torch.cat([draw(pipe, p, generator=g) for p, g in alone]))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_wrong_number_of_generators(pipe, count):
    with pytest.raises(InputError, match=f"{count} generators for 2"):
        draw(pipe, PROMPTS[:2], generator=seeds(*range(count)))


# --- outputs --------------------------------------------------------------------------------------


def test_output_types_show_the_same_pictures(pipe):
    made = {
        kind: pipe(PROMPTS[:2], generator=seeds(1, 2), output_type=kind).images
        for kind in ("tokens", "pt", "np", "pil")
    }
    tokens, pixels, array = made["tokens"], made["pt"], made["np"]
    assert tokens.shape == (2, 16)
    assert tokens.dtype == torch.long
    assert tokens.min() >= 0
    assert tokens.max() < 128
    assert pixels.shape == (2, 3, 32, 32)
    assert pixels.dtype == torch.float32
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    assert pixels.std() > 0.01
    assert array.shape == (2, 32, 32, 3)
    assert array.dtype == np.float32
    assert np.array_equal(array, pixels.permute(0, 2, 3, 1).numpy())
    assert [(image.size, image.mode) for image in made["pil"]] == [((32, 32), "RGB")] * 2
    for image, truth in zip(made["pil"], array, strict=True):
        assert np.array_equal(np.asarray(image), (truth * 255).round().astype(np.uint8))
    decoded = pipe.vq_model.decode(tokens, 4, 4).float().clamp(-1, 1) / 2 + 0.5
    assert torch.allclose(pixels, decoded, atol=1e-6)


@pytest.mark.parametrize("kind", ["pt", "tokens"])
def test_tensors_belong_to_the_caller(pipe, kind):
    images = pipe(PROMPT, output_type=kind).images
    images.mul_(2)  # an inference tensor would refuse
    assert not images.is_inference()


def test_tuple(pipe):
    images, stats = pipe(PROMPT, generator=seeds(0), output_type="tokens", return_dict=False)
    assert torch.equal(images, draw(pipe, generator=seeds(0)))
    assert (stats.method, stats.contract, stats.emitted) == ("plain", "exact", [16])


# --- what steers the picture ----------------------------------------------------------------------


def test_negative_prompt(pipe):
    plain = draw(pipe)
    assert not torch.equal(draw(pipe, negative_prompt="a blue star"), plain)
    two = draw(pipe, PROMPTS[:2], negative_prompt="a blue star", generator=seeds(0, 1))
    assert torch.equal(two[:1], draw(pipe, negative_prompt="a blue star"))
    each = draw(pipe, PROMPTS[:2], negative_prompt=["a blue star", "a ring"], generator=seeds(0, 1))
    assert torch.equal(each[0], two[0])
    assert not torch.equal(each[1], two[1])
    # told the same as the prompt, the unconditional rows leave nothing to guide
    same = draw(pipe, negative_prompt=PROMPT, guidance_scale=5)
    assert torch.equal(same, draw(pipe, guidance_scale=1))
    assert not torch.equal(same, plain)
    with pytest.raises(InputError, match="1 negative prompts for 2 prompts"):
        draw(pipe, PROMPTS[:2], negative_prompt=["a ring"])


def test_a_caption_that_comes_again_is_encoded_once(pipe):
    family, grid = pipe.image_model(pipe.transformer), pipe.network(None, None)[1]
    encoded = []
    hook = pipe.text_encoder.register_forward_pre_hook(
        lambda _, args, told: encoded.append(len(told["input_ids"])), with_kwargs=True
    )
    told, mask = family.condition([*PROMPTS, PROMPT], ["a ring"] * 4, True, grid)
    hook.remove()
    assert encoded == [3, 1]
    each = [*PROMPTS, PROMPT, *["a ring"] * 4]
    wanted, columns = encode_captions(pipe.tokenizer, pipe.text_encoder, each, 16)
    assert torch.allclose(told, wanted, atol=1e-12)
    assert torch.equal(mask, columns)


@pytest.mark.parametrize(("scale", "rows"), [(1, 2), (1.0, 2), (2, 4), (0.5, 4)])
def test_no_guidance_no_unconditional_rows(pipe, monkeypatch, scale, rows):
    seen = []
    cache = LlamaGenDecoder.cache
    monkeypatch.setattr(LlamaGenDecoder, "cache", lambda *a: seen.append(a[1]) or cache(*a))
    speculate(pipe, "draft")
    draw(pipe, PROMPTS[:2], guidance_scale=scale)
    assert seen == [rows, rows]


@pytest.mark.parametrize("method", GREEDY)
def test_greedy_methods_agree(pipe, method):
    plain = draw(pipe, PROMPTS, temperature=0)
    speculate(pipe, method)
    assert torch.equal(draw(pipe, PROMPTS, seed=9, temperature=0), plain)
    assert not torch.equal(draw(pipe, PROMPTS, temperature=1), plain)


@pytest.mark.parametrize("knobs", [{}, {"temperature": 0}, {"guidance_scale": 1.0}], ids=str)
def test_drafter_only(pipe, knobs, monkeypatch):
    """The drafter's own pictures, called lossy; the target is not asked."""
    heads = dict.fromkeys(("drafter", "judge", "eagle", "dflash", "spatial"))  # of the target
    parts = {**pipe.components, "transformer": pipe.drafter, **heads}
    alone = draw(ImagePipeline(**parts), PROMPTS, seed=3, **knobs)
    monkeypatch.setattr(pipe.transformer, "rotary", None)
    speculate(pipe, "drafter-only")
    out = pipe(PROMPTS, generator=torch.Generator().manual_seed(3), output_type="tokens", **knobs)
    assert torch.equal(out.images, alone)
    assert (out.stats.method, out.stats.contract) == ("drafter-only", "lossy")
    with pytest.raises(InputError, match="nobody could judge a draft"):
        SpecConfig(method="drafter-only", drafter="model")
    without = ImagePipeline(**{**pipe.components, "drafter": None})
    with pytest.raises(InputError, match="needs the component 'drafter'"):
        without.enable_speculation(SpecConfig(method="drafter-only"))


def test_a_drafter_has_a_no_caption_of_its_own(pipe):
    """Not the target's, which it never saw."""
    with torch.no_grad():
        pipe.drafter.cls_embedding.get_buffer("uncond_embedding").neg_()
    none = dict.fromkeys(("drafter", "judge", "eagle", "dflash", "spatial"))
    alone = ImagePipeline(**{**pipe.components, "transformer": pipe.drafter, **none})
    alone.set_progress_bar_config(disable=True)
    wanted = draw(alone, PROMPTS, seed=3)
    speculate(pipe, "drafter-only")
    assert torch.equal(draw(pipe, PROMPTS, seed=3), wanted)
    laws = pipe.token_laws(PROMPTS, wanted, of_drafter=True)
    assert torch.allclose(laws, alone.token_laws(PROMPTS, wanted))


@pytest.mark.parametrize("part", ["text_encoder", "drafter"])
def test_a_part_of_another_precision(tiny_folder, part):
    own = load(tiny_folder, torch.bfloat16).components[part]
    mixed = ImagePipeline.from_pretrained(tiny_folder, dtype=torch.float32, **{part: own})
    mixed.set_progress_bar_config(disable=True)
    speculate(mixed, "draft")
    assert draw(mixed).shape == (1, 16)


def test_greedy_speculation_pays(pipe):
    """The comparison above is no formality: drafts were taken."""
    speculate(pipe, "sjd")
    stats = pipe(PROMPTS, temperature=0, output_type="tokens").stats
    assert sum(stats.accepted) > 0
    assert stats.nfe < 16


@pytest.mark.parametrize("knobs", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-6}], ids=str)
def test_tight_warpers_are_greedy(pipe, knobs):
    assert torch.equal(draw(pipe, **knobs), draw(pipe, temperature=0))


def test_height_and_width(pipe):
    assert pipe.default_size == 32
    assert torch.equal(draw(pipe, height=32, width=32), draw(pipe))
    small, large = draw(pipe, height=16), draw(pipe)
    assert small.shape == (1, 4)
    assert torch.equal(draw(pipe, width=16), small)
    assert pipe(PROMPT, height=16, width=16).images[0].size == (16, 16)
    with torch.no_grad():  # the small picture is the sibling's work, the large one the target's
        pipe.sibling.output.weight.neg_()
    assert not torch.equal(draw(pipe, height=16), small)
    assert torch.equal(draw(pipe), large)


@pytest.mark.parametrize(
    ("height", "width"),
    [(0, 0), (0, None), (-16, None), (7, None), (8, 8), (24, None), (64, 64), (32, 16), (None, 9)],
)
def test_sizes_out_of_reach(pipe, height, width):
    with pytest.raises(InputError, match="px") as caught:
        draw(pipe, height=height, width=width)
    assert "\n" not in str(caught.value)


def test_sizes_without_sibling(pipe):
    alone = ImagePipeline(**{**pipe.components, "sibling": None})
    with pytest.raises(InputError, match=r"draws 32×32 px, not 16×16"):
        draw(alone, height=16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": [PROMPT, " \n"]}, "empty"),
        ({"prompt": []}, "empty"),
        ({"guidance_scale": -0.1}, "guidance_scale"),
        ({"guidance_scale": float("nan")}, "guidance_scale"),
        ({"guidance_scale": 0}, "1 switches guidance off"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e-42}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"num_images_per_prompt": 0}, "num_images_per_prompt"),
        ({"output_type": "jpeg"}, "output_type"),
    ],
    ids=str,
)
def test_arguments_out_of_range(pipe, arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        draw(pipe, **arguments)
    assert "\n" not in str(caught.value)
    if "prompt" not in arguments:  # what outputs show is not looked at before the call
        with pytest.raises(InputError, match=re.escape(str(caught.value))):
            pipe.check_call(SpecConfig(), **arguments)


@pytest.mark.parametrize(
    ("config", "call", "message"),
    [
        (SpecConfig("plain"), {"height": 100}, "a multiple of 8 px; not 100×100"),
        (SpecConfig("plain"), {"height": 64}, "draws 16×16 or 32×32 px, not 64×64"),
        (SpecConfig("drafter-only"), {"height": 16}, "the drafter draws 32×32 px, not 16×16"),
        (SpecConfig("eagle"), {"height": 16}, "'eagle' reads the hidden states of 32 px"),
        (SpecConfig("judge"), {"height": 16}, "'judge' reads the hidden states of 32 px"),
        (SpecConfig("mulo-sd"), {"height": 16}, "'multiscale' draws 32 px"),
        (SpecConfig("sjd", rule="greedy"), {}, "rule 'greedy' needs temperature 0"),
    ],
    ids=str,
)
def test_what_is_refused_is_refused_before_the_call_too(pipe, config, call, message):
    pipe.enable_speculation(config)
    for refused in (pipe.check_call, lambda config, **call: pipe(PROMPT, **call)):
        with pytest.raises(InputError, match=message):
            refused(config, **call)
    pipe.check_call(config, temperature=0, guidance_scale=1)


# --- captions -------------------------------------------------------------------------------------


def test_captions_are_moved_to_the_right(pipe):
    """Features of a padded batch are those of each caption by itself, T5 run without padding."""
    with torch.no_grad():
        features, mask = encode_captions(pipe.tokenizer, pipe.text_encoder, PROMPTS, 16)
        for row, prompt in enumerate(PROMPTS):
            ids = pipe.tokenizer(prompt, return_tensors="pt").input_ids
            count = ids.shape[1]
            assert mask[row].tolist() == [False] * (16 - count) + [True] * count
            truth = pipe.text_encoder(input_ids=ids).last_hidden_state[0]
            assert torch.allclose(features[row, -count:], truth, atol=1e-12)
            assert (features[row, :-count] == 0).all()


def test_long_captions_are_cut(pipe):
    words = "red blue green star ring heart cross square circle above below left right of and a an"
    long = f"{words} {words}"
    features, mask = encode_captions(pipe.tokenizer, pipe.text_encoder, [long], 16)
    assert mask.all()
    assert features.shape == (1, 16, 32)
    shown = " ".join(words.split()[:15])  # the last place is the end of the sentence
    assert torch.equal(draw(pipe, long), draw(pipe, shown))
    assert not torch.equal(draw(pipe, long), draw(pipe, " ".join(words.split()[:14])))


def test_unknown_words_and_any_script(pipe):
    assert torch.equal(draw(pipe, "a glorp of zib"), draw(pipe, "a snark of woz"))
    assert torch.equal(draw(pipe, "  A Photo OF a red Circle "), draw(pipe))
    for prompt in (
        "ein roter Kreis 🔴",
        "红色的圆",
        "دائرة حمراء",
        "a\tred\ncircle",
        "\x00",
        "'\"\\",
    ):
        assert draw(pipe, prompt).shape == (1, 16)


# --- rounds: callback, interrupt, progress --------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=len)
def test_callback_once_a_round(pipe, method, prompts):
    speculate(pipe, method)
    seen = []

    def callback(caller, number, done, values):
        assert caller is pipe
        assert values["context"].base == values["context"].lengths.tolist()
        assert done == min(values["context"].base)
        seen.append((number, done))

    stats = pipe(
        prompts,
        generator=seeds(*range(len(prompts))),
        output_type="tokens",
        callback_on_step_end=callback,
    ).stats
    numbers, counts = zip(*seen, strict=True)
    assert numbers == tuple(range(1, len(seen) + 1))
    assert all(a < b for a, b in itertools.pairwise(counts))
    assert counts[-1] == 16
    if method in CALL_A_ROUND:
        assert len(seen) == len(stats.rounds) == max(stats.calls)
    # to ZipAR's window a row of four is a whole one, and a pair of tokens may come again or not
    if method != "aded":
        assert (stats.nfe == 16) == (method in ("plain", "drafter-only", "zipar"))


@pytest.mark.parametrize("place", ["thread", "process"])
def test_where_drafting_goes_on_changes_nothing(pipe, place):
    drawn = []
    for where in ("here", place):
        pipe.enable_speculation(SpecConfig("pearl", draft_beside=where, num_draft_tokens=2))
        out = pipe(PROMPTS, generator=seeds(1, 2, 3), output_type="tokens")
        assert out.stats.fault is None
        assert sum(out.stats.accepted) > 0
        drawn.append(out.images)
    assert torch.equal(*drawn)


@pytest.mark.parametrize("method", METHODS)
def test_callback_is_told_what_was_drafted(pipe, method):
    """Against the verdicts themselves: what stood was in the draft, as often as was counted."""
    speculate(pipe, method)
    verdicts, told = [], []

    def spy(engine):
        verify = engine.rule.verify

        def verified(draft, scores, coins):
            verdicts.append((draft, verify(draft, scores, coins)))
            return verdicts[-1][1]

        engine.rule.verify = verified

    def callback(caller, number, done, values):
        draft, verdict = verdicts[-1]
        context, drafted = values["context"], values["context"].drafted()
        for row, stood in enumerate(drafted):
            emitted = context.tokens[row, context.base[row] - len(stood) : context.base[row]]
            drafts = set(draft.tokens[row, : draft.lengths[row]].tolist())
            assert {t for t, d in zip(emitted.tolist(), stood, strict=True) if d} <= drafts
            if verdict.keep is not None:
                assert stood == verdict.keep[row, : len(stood)].tolist()
            else:
                kept = min(int(verdict.accepted[row]), len(stood))
                assert sum(stood) == kept  # a guess of the target's own token is among them
                assert stood == sorted(stood, reverse=True)
        told.append(drafted)
        assert values["stats"].emitted == context.base

    pipe.on_engine = spy
    stats = pipe(
        PROMPTS,
        generator=seeds(1, 2, 3),
        output_type="tokens",
        callback_on_step_end=callback,
    ).stats
    for row in range(3):
        everything = [stood for drafted in told for stood in drafted[row]]
        assert len(everything) == 16
        assert sum(everything) == stats.accepted[row]


@pytest.mark.parametrize("method", CALL_A_ROUND)
def test_interrupt_stops_at_once(pipe, method):
    pipe.enable_speculation(with_knobs(method, "image", num_draft_tokens=4))
    whole = draw(pipe, PROMPTS, generator=seeds(1, 2, 3))
    last = {}

    def callback(caller, number, done, values):
        caller.interrupt = number == 2
        last.update(number=number, base=values["context"].base)

    out = pipe(
        PROMPTS, generator=seeds(1, 2, 3), output_type="tokens", callback_on_step_end=callback
    )
    stats, drawn = out.stats, torch.tensor(last["base"])
    assert last["number"] == 2 == len(stats.rounds)
    assert stats.calls == [2, 2, 2]
    assert stats.emitted == last["base"]
    assert max(stats.emitted) < 16
    asked = [d + c for d, c in zip(stats.drafted, stats.calls, strict=True)]
    own = [e - a for e, a in zip(stats.emitted, stats.accepted, strict=True)]
    if method == "pearl":  # guesses are drafts that nobody reads; one that stands is no own token
        assert all(map(int.__le__, stats.target_tokens, asked))
        assert max(own) <= 2
    else:
        assert stats.target_tokens == asked
        assert own == [2, 2, 2]
    kept = torch.arange(16) < drawn[:, None]
    assert torch.equal(out.images, whole * kept)
    assert torch.equal(draw(pipe, PROMPTS, generator=seeds(1, 2, 3)), whole)  # not interrupted


@pytest.mark.parametrize("method", ["zipar", "pjd"])
def test_whole_pictures_are_broken_off(pipe, method, monkeypatch):
    """As from another thread: they are drawn in one round, and nobody is asked until its end."""
    extend, calls = GuidedDecoder.extend_at, []

    def stopped(*given):
        calls.append(1)
        pipe.interrupt = len(calls) == 2
        return extend(*given)

    speculate(pipe, method)
    whole = draw(pipe, PROMPTS)
    monkeypatch.setattr(GuidedDecoder, "extend_at", stopped)
    assert not draw(pipe, PROMPTS).any()
    assert len(calls) == 2
    monkeypatch.undo()
    assert torch.equal(draw(pipe, PROMPTS), whole)


def test_progress_bar(pipe, capsys):
    pipe.set_progress_bar_config(desc="drawing", mininterval=0)
    pipe(PROMPTS, output_type="tokens")
    shown = capsys.readouterr().err
    assert "drawing: 100%" in shown
    assert "48/48" in shown
    pipe.set_progress_bar_config(disable=True)
    pipe(PROMPTS, output_type="tokens")
    assert capsys.readouterr().err == ""


# --- switching speculation ------------------------------------------------------------------------


def test_speculation_on_and_off(pipe):
    def method() -> str:
        return pipe(PROMPT, output_type="tokens").stats.method

    plain = draw(pipe)
    assert method() == "plain"
    pipe.enable_speculation()
    assert method() == "scd"
    speculate(pipe, "sjd")
    assert method() == "sjd"
    assert not torch.equal(draw(pipe), plain)
    pipe.disable_speculation()
    assert method() == "plain"
    assert torch.equal(draw(pipe), plain)


@pytest.mark.parametrize(
    "knobs",
    [
        {"length": "heuristic"},
        {"num_draft_tokens": 1},
        {"num_draft_tokens": 40},
        {"method": "sjd", "window": 1},
        {"method": "sjd", "window": 256},
        {"method": "sjd", "jacobi_init": "uniform"},
        {"method": "sjd", "jacobi_init": "above", "window": 3},
        {"method": "scd", "jacobi_init": "above", "window": 9},
        {"method": "sjd", "length": "heuristic"},
        {"method": "draft", "drafter": "null"},
        {"method": "draft", "rule": "block"},
        {"method": "draft", "rule": "recursive"},
        {"method": "draft", "rule": "restricted", "prune_probability": 0.05},
        {"method": "early-exit", "rule": "restricted", "prune_layers": 1},
        {"method": "sjd", "rule": "block", "window": 5},
        {"method": "merged", "merge": ["lookup", "recycling"], "length": "heuristic"},
        {"method": "merged", "merge": ("tree", "dynamic-tree"), "tree_widths": (2, 1)},
        {"method": "tree", "tree_widths": (1,)},
        {"method": "tree", "tree_widths": (2, 2, 3), "siblings": "top"},
        {"method": "tree", "siblings": "independent"},
        {"method": "tree", "length": "heuristic"},
        {"method": "tree", "length": "goodput"},
        {"method": "tree", "rule": "k-seq", "siblings": "independent"},
        {"method": "draft", "length": "goodput"},
        {"method": "draft", "length": "speckv"},
        {"method": "draft", "length": "faser"},
        {"method": "draft", "length": "eos-ema"},
        {"method": "scd", "length": "faser"},
        {"method": "sjd", "length": "speckv"},
        {"method": "dynamic-tree", "length": "speckv"},
        {"method": "draft", "length": "confidence", "confidence": 0.3},
        {"method": "draft", "length": "specdec++", "rule": "block"},
        {"method": "scd", "length": "goodput"},
        {"method": "prompt-lookup", "length": "goodput", "rule": "block"},
        {"method": "token-recycling", "tree_widths": (2, 1)},
        {"method": "early-exit", "exit_layer": 1},
        {"method": "early-exit", "rule": "block", "length": "goodput"},
        {"method": "layer-skip", "num_draft_tokens": 3},
        {"method": "dynamic-tree", "siblings": "top", "tree_nodes": 7},
        {"method": "dynamic-tree", "tree_nodes": 7},
        {"method": "dynamic-tree", "tree_depth": 2, "tree_width": 3, "tree_beam": 2},
        {"method": "dynamic-tree", "rule": "k-seq", "siblings": "independent"},
        {"method": "dynamic-tree", "length": "goodput"},
        {"method": "merged", "window": 6},
        {"method": "merged", "merge": ("tree", "recycling"), "siblings": "independent"},
        {"method": "merged", "merge": ("lookup", "dynamic-tree"), "siblings": "top"},
        {"method": "merged", "merge": ("jacobi", "recycling", "lookup"), "tree_nodes": 9},
        {"method": "merged", "length": "goodput", "window": 4},
        {"method": "lantern", "drafter": "coupled-jacobi", "window": 6},
        {"method": "lantern", "siblings": "top", "neighbours": 3},
        {"method": "lantern++", "tree_widths": (2, 2), "siblings": "independent"},
        {"method": "lantern++", "drafter": "model", "length": "heuristic"},
        {"method": "gsd", "drafter": "coupled-jacobi", "group_size": 5},
        {"method": "gsd", "drafter": "gumbel-jacobi", "group_distance": 0.5},
        {"method": "cool-sd", "drafter": "coupled-jacobi", "window": 6},
        {"method": "cool-sd", "drafter": "model", "cool_nu": 0.0},
        {"method": "merged", "rule": "lantern", "window": 6},
        {"method": "mulo-sd", "rule": "token", "upsampler": "nearest", "draft_rows": 2},
    ],
    ids=str,
)
def test_knobs(pipe, knobs):
    """Every configuration draws, greedily the same picture, and drafts no more than it may."""
    config = SpecConfig(**knobs)
    greedy = draw(pipe, temperature=0)
    pipe.enable_speculation(config)
    assert torch.equal(draw(pipe, temperature=0), greedy)
    stats = pipe(PROMPTS, output_type="tokens").stats
    assert stats.emitted == [16, 16, 16]
    assert max(stats.rounds) <= config.resolve("image").draft_size(4).most_drafted


@pytest.mark.parametrize("method", ["draft", "specqd"])
def test_confidence_counts_in_greedy_pictures(pipe, method):
    """By the laws whose likeliest tokens are drafted; the picture stays plain decoding's."""
    greedy, drafted = draw(pipe, temperature=0), []
    for sure in (0.0, 1.0):
        how = dict(length="confidence", confidence=sure, max_draft_tokens=4)
        pipe.enable_speculation(SpecConfig(method, **how))
        out = pipe(PROMPT, temperature=0, output_type="tokens")
        assert torch.equal(out.images, greedy)
        drafted += out.stats.drafted
    assert drafted[1] < drafted[0]


@pytest.mark.parametrize("method", ["lantern", "lantern++"])
def test_released_lantern(pipe, method):
    """Named as on the command line, it draws; it has no greedy form."""
    _, config = parse_method(f"{method}[lantern_variant=released]")
    pipe.enable_speculation(config)
    stats = pipe(PROMPTS, output_type="tokens").stats
    assert (stats.emitted, stats.contract) == ([16, 16, 16], "lossy")
    with pytest.raises(InputError, match="at temperature 0 take 'paper'"):
        draw(pipe, temperature=0)


def test_draft_needs_a_drafter(pipe):
    alone = ImagePipeline(**{**pipe.components, "drafter": None})
    for config in (SpecConfig(), SpecConfig(method="sjd", drafter="model")):
        with pytest.raises(InputError, match="needs the component 'drafter'"):
            alone.enable_speculation(config)
    assert alone.speculation.method == "plain"
    alone.enable_speculation(SpecConfig(method="sjd"))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"method": "tree", "rule": "token"}, "judges chains"),
        ({"method": "tree", "rule": "greedy"}, "judges chains"),
        ({"drafter": "tree"}, "judges chains"),
        ({"method": "token-recycling", "rule": "block"}, "judges chains"),
        ({"method": "tree", "rule": "k-seq"}, "drawn independently"),
        (
            {"method": "token-recycling", "rule": "k-seq"},
            "drawn independently",
        ),
        ({"method": "sjd", "length": "confidence"}, "watches the tokens"),
        ({"method": "tree", "length": "specdec++"}, "watches the tokens"),
        ({"length": "confidence", "confidence": 1.5}, "from 0 to 1"),
        ({"method": "tree", "tree_widths": ()}, "1 or more"),
        ({"method": "tree", "tree_widths": (2, 0)}, "1 or more"),
        ({"method": "tree", "tree_widths": (8, 8, 8)}, "584 nodes"),
        ({"method": "tree", "siblings": "topp"}, "did you mean 'top'"),
        ({"method": "merged", "merge": ()}, "drafters to merge"),
        ({"method": "merged", "merge": ("jacobi", "jacobi")}, "must differ"),
        ({"method": "scd", "rule": "block"}, "as if nobody had looked"),
        ({"method": "scd-gumbel", "rule": "block"}, "as if nobody had looked"),
        (
            {
                "method": "merged",
                "merge": ("dynamic-tree", "lookup"),
                "tree_depth": 2,
                "tree_width": 16,
                "tree_beam": 16,
            },
            "272 nodes",
        ),
        ({"method": "early-exit", "exit_layer": 2.0}, "an integer"),
        ({"method": "merged", "merge": ("tree", "lockup")}, "did you mean 'lookup'"),
        ({"method": "merged", "rule": "k-seq"}, "drawn independently"),
        ({"method": "merged", "rule": "token"}, "judges chains"),
        ({"method": "dynamic-tree", "tree_width": 64, "tree_beam": 64}, "nodes; at most 256"),
        ({"method": "dynamic-tree", "tree_depth": 0}, "from 1 to 64"),
        ({"method": "gsd", "drafter": "tree"}, "judges chains"),
        ({"method": "cool-sd", "drafter": "dynamic-tree"}, "judges chains"),
        ({"method": "scd", "rule": "local"}, "where they are in the picture"),
        ({"method": "mulo-sd", "local_criterion": "ratio"}, "'multiscale' does not know it"),
        ({"method": "sjd", "rule": "unverified"}, "counts on a target"),
        ({"method": "zipar", "rule": "token"}, "does not draft so; use 'unverified'"),
        ({"method": "lantern++", "lantern_lambda": 0.5}, "from 1 to"),
        ({"method": "gsd", "group_size": 0}, "from 1 to"),
        ({"method": "mulo-sd", "upsampler": "pixel"}, "did you mean 'pixels'"),
    ],
    ids=str,
)
def test_what_cannot_go_together(knobs, message):
    with pytest.raises(InputError, match=message):
        SpecConfig(**knobs)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"method": "vispec"}, "writes text, and this one draws pictures"),
        ({"method": "verdict"}, "writes text, and this one draws pictures"),
        ({"method": "draft", "head": "eagle"}, "needs the component 'heads/eagle'"),
        ({"method": "draft", "draft_compressor": "divprune"}, "this one draws them"),
    ],
    ids=str,
)
def test_what_is_for_models_that_look_at_pictures(pipe, knobs, message):
    with pytest.raises(InputError, match=message):
        pipe.enable_speculation(SpecConfig(**knobs))


def test_greedy_rule_needs_temperature_0(pipe):
    pipe.enable_speculation(SpecConfig(rule="greedy"))
    with pytest.raises(InputError, match="temperature 0"):
        draw(pipe)
    assert draw(pipe, temperature=0).shape == (1, 16)


@pytest.mark.parametrize(("seconds", "warnings"), [(0.0, 1), (1e9, 0)])
def test_slower_than_plain_is_said(pipe, caplog, monkeypatch, seconds, warnings):
    monkeypatch.setattr(GuidedDecoder, "seconds_per_call", lambda self, *_, **__: seconds)
    with caplog.at_level(logging.WARNING, "mmspec"):
        draw(pipe)
        assert not caplog.records
        speculate(pipe, "sjd")
        draw(pipe)
    assert len(caplog.records) == warnings


# --- weights that change --------------------------------------------------------------------------


def edit_in_place(pipe) -> None:
    with torch.no_grad():
        pipe.transformer.layers[1].feed_forward.w2.weight.mul_(-1)


def edit_in_inference_mode(pipe) -> None:
    with torch.inference_mode():
        pipe.transformer.norm.weight.mul_(2)


def load_other_weights(pipe) -> None:
    state = pipe.transformer.state_dict()
    pipe.transformer.load_state_dict({name: value.flip(0) for name, value in state.items()})


def step_of_an_optimizer(pipe) -> None:
    head = pipe.transformer.output.weight
    head.grad = torch.randn(head.shape, generator=seeds(0)[0]).to(head)
    torch.optim.SGD([head], 1.0).step()


def replace_network(pipe) -> None:
    pipe.transformer = pipe.sibling.from_config(pipe.transformer.config).double().eval()
    torch.nn.init.normal_(pipe.transformer.output.weight, std=0.3)


EDITS = [
    edit_in_place,
    edit_in_inference_mode,
    load_other_weights,
    step_of_an_optimizer,
    replace_network,
]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_edited_weights_are_used(pipe, edit):
    before = draw(pipe, PROMPTS)
    edit(pipe)
    after = draw(pipe, PROMPTS)
    assert torch.equal(after, draw(ImagePipeline(**pipe.components), PROMPTS))
    assert not torch.equal(after, before)


def test_edited_drafter_is_used(pipe):
    def accepted(pipe) -> list[int]:
        speculate(pipe, "draft")
        return pipe(PROMPTS * 4, generator=seeds(*range(12)), output_type="tokens").stats.accepted

    before = accepted(pipe)
    pipe.drafter.load_state_dict(
        {**pipe.drafter.state_dict(), "output.weight": -pipe.drafter.output.weight}
    )
    after = accepted(pipe)
    assert after == accepted(ImagePipeline(**pipe.components)) != before


def test_unedited_weights_are_arranged_once(pipe):
    draw(pipe)
    decoder = pipe.decoder(pipe.transformer)
    draw(pipe)
    assert pipe.decoder(pipe.transformer) is decoder


@pytest.mark.parametrize("moves", [True, False])
def test_what_is_built_goes_with_its_weights(pipe, moves):
    speculate(pipe, "eagle")
    drawn = draw(pipe)
    decoder = weakref.ref(pipe.decoder(pipe.transformer))
    pipe.to("cpu")  # where it is
    assert decoder() is pipe.decoder(pipe.transformer)
    if moves:
        pipe.to(torch.float32)
    else:  # the head, which stays, was built on the target
        pipe.transformer = copy.deepcopy(pipe.transformer)
    gc.collect()
    assert decoder() is None
    assert moves or torch.equal(draw(pipe), drawn)


def test_cast(tiny_folder):
    """`.to(dtype)` after a first picture: the same as loading in that precision."""
    single = load(tiny_folder, torch.float32)
    before = draw(single, PROMPTS, temperature=0)
    assert single.to(torch.float64) is single
    assert torch.equal(draw(single, PROMPTS), draw(load(tiny_folder), PROMPTS))
    assert pytest.approx(16 * 3, abs=8) == (draw(single, PROMPTS, temperature=0) == before).sum()
    coarse = single.to(torch.bfloat16)
    assert coarse.decoder(coarse.transformer).embeddings.dtype == torch.bfloat16
    assert draw(coarse).shape == (1, 16)


def test_components_make_the_same_pipeline(pipe):
    assert set(pipe.components) == set(ImagePipeline.component_classes())
    twin = ImagePipeline(**pipe.components)
    assert torch.equal(draw(twin), draw(pipe))
    assert twin.transformer is pipe.transformer


def test_unknown_component_is_refused(pipe):
    with pytest.raises(TypeError):
        ImagePipeline(**pipe.components, scheduler=SimpleNamespace())
