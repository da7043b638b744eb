"""MuLo-SD, its up-sampler alone, and ZipAR in the image pipeline, on a small random model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mmspec import ImagePipeline, SpecConfig
from mmspec.draft.guarded import GuardedDrafter
from mmspec.draft.image.multiscale import MultiScaleDrafter
from mmspec.draft.jacobi.coupled import CoupledJacobiDrafter
from mmspec.engine.length.guard import Guard
from mmspec.errors import InputError
from mmspec.models.llamagen.upsampler import LatentUpsampler, nearest

PROMPTS = ["a photo of a red circle", "a photo of three stars", "a photo of a blue square"]
SETTINGS = [
    {"method": "mulo-sd"},
    {"method": "mulo-sd", "local_radius": 1, "local_threshold": 0.9, "draft_rows": 2},
    {"method": "mulo-sd", "upsampler": "pixels", "draft_rows": 1, "local_window": 16},
    {"method": "mulo-sd", "upsampler": "nearest", "rule": "token", "draft_rows": 2},
    {"method": "upsample-only"},
    {"method": "zipar", "zipar_window": 2},
]


@pytest.fixture
def pipe(tiny_folder) -> ImagePipeline:
    made = ImagePipeline.from_pretrained(tiny_folder, dtype=torch.float64)
    made.set_progress_bar_config(disable=True)
    return made


def draw(pipe, prompts, first=0, **call):
    """Tokens `[B, 16]` and stats."""
    generators = [torch.Generator().manual_seed(first + i) for i in range(len(prompts))]
    call = {"generator": generators, "output_type": "tokens", "return_dict": False, **call}
    return pipe(prompts, **call)


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_batch_is_its_pictures_alone(pipe, settings, guidance):
    pipe.enable_speculation(SpecConfig(**settings))
    together, stats = draw(pipe, PROMPTS, guidance_scale=guidance)
    assert stats.fault is None
    alone = [draw(pipe, [p], i, guidance_scale=guidance) for i, p in enumerate(PROMPTS)]
    assert torch.equal(together, torch.cat([tokens for tokens, _ in alone]))
    for name in ("calls", "sibling_calls", "emitted", "accepted", "target_tokens"):
        assert getattr(stats, name) == [n for _, s in alone for n in getattr(s, name)]


def test_counters(pipe):
    def stats(**settings):
        pipe.enable_speculation(SpecConfig(**settings))
        return draw(pipe, PROMPTS)[1]

    alone = stats(method="upsample-only")
    assert (alone.nfe, alone.contract, alone.emitted) == (0, "lossy", [16] * 3)
    assert alone.mean_acceptance_length == 0
    assert all(1 <= n <= 4 for n in alone.sibling_calls)  # four tokens are what it draws
    pipe.enable_speculation(SpecConfig(method="mulo-sd"))
    sure = stats(method="mulo-sd", local_threshold=1.0, local_window=16)
    assert sure.contract == "lossy"
    assert sure.sibling_calls == alone.sibling_calls
    easy = stats(method="mulo-sd", local_threshold=0.0)
    assert sum(easy.calls) < sum(sure.calls)
    assert sure.accepted < easy.accepted
    assert easy.alone == 0
    rows = stats(method="zipar", zipar_window=2)
    assert (rows.calls, rows.sibling_calls) == ([4 + 2 * 3] * 3, [])


def test_the_plan_is_the_siblings_picture(pipe):
    """Greedy under the knobs of the draft, its codes four times each."""
    pipe.disable_speculation()
    small, _ = draw(pipe, PROMPTS, height=16, guidance_scale=3.0, temperature=0)
    settings = {"upsampler": "nearest", "draft_guidance": 3.0, "draft_temperature": 0.0}
    pipe.enable_speculation(SpecConfig(method="upsample-only", **settings))
    tokens, _ = draw(pipe, PROMPTS, guidance_scale=2.0)
    assert torch.equal(tokens, nearest(small, SimpleNamespace(rows=2, columns=2)))
    call = {"negative_prompt": "a blue star"}
    tokens, _ = draw(pipe, PROMPTS, guidance_scale=2.0, **call)
    pipe.disable_speculation()
    small, _ = draw(pipe, PROMPTS, height=16, guidance_scale=3.0, temperature=0, **call)
    assert torch.equal(tokens, nearest(small, SimpleNamespace(rows=2, columns=2)))
    # without guidance there are no unconditional rows to guide by
    pipe.disable_speculation()
    small, _ = draw(pipe, PROMPTS, height=16, guidance_scale=1.0, temperature=0)
    pipe.enable_speculation(SpecConfig(method="upsample-only", **settings))
    tokens, _ = draw(pipe, PROMPTS, guidance_scale=1.0)
    assert torch.equal(tokens, nearest(small, SimpleNamespace(rows=2, columns=2)))


@pytest.mark.parametrize("upsampler", ["learned", "pixels", "nearest"])
@pytest.mark.parametrize("draft_rows", [1, 3, 16])
def test_an_exact_rule_keeps_greedy_decoding(pipe, upsampler, draft_rows):
    plain, _ = draw(pipe, PROMPTS, temperature=0)
    settings = {"upsampler": upsampler, "draft_rows": draft_rows}
    pipe.enable_speculation(SpecConfig(method="mulo-sd", rule="token", **settings))
    tokens, stats = draw(pipe, PROMPTS, temperature=0)
    assert torch.equal(tokens, plain)
    assert stats.fault is None
    assert stats.contract == "exact-greedy"


def test_zipar_with_a_whole_row_is_greedy_decoding(pipe):
    plain, _ = draw(pipe, PROMPTS, temperature=0)
    pipe.enable_speculation(SpecConfig(method="zipar", zipar_window=4))
    assert torch.equal(draw(pipe, PROMPTS, temperature=0)[0], plain)


@pytest.mark.parametrize("method", ["mulo-sd", "upsample-only"])
def test_sizes_that_it_does_not_draw(pipe, method):
    pipe.enable_speculation(SpecConfig(method=method))
    for size, match in ((16, "draws 32 px"), (24, "draws 16×16 or 32×32 px")):
        with pytest.raises(InputError, match=match) as caught:
            draw(pipe, PROMPTS, height=size)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "settings"),
    [
        ("sibling", {"method": "mulo-sd"}),
        ("upsampler", {"method": "mulo-sd"}),
        ("upsampler", {"method": "upsample-only"}),
    ],
    ids=str,
)
def test_missing_components(pipe, missing, settings):
    without = ImagePipeline(**{**pipe.components, missing: None})
    with pytest.raises(InputError, match=f"needs the component '{missing}'"):
        without.enable_speculation(SpecConfig(**settings))
    if missing == "upsampler":
        without.set_progress_bar_config(disable=True)
        without.enable_speculation(SpecConfig(**settings, upsampler="pixels"))
        assert draw(without, PROMPTS)[0].shape == (3, 16)


def test_an_upsampler_of_another_codebook(pipe):
    other = LatentUpsampler(codebook_size=64, width=32, depth=1)
    with pytest.raises(InputError, match=r"codebook \[64, 8\]"):
        ImagePipeline(**{**pipe.components, "upsampler": other})


def test_interrupted_between_rows(pipe):
    pipe.enable_speculation(SpecConfig(method="mulo-sd", draft_rows=1))
    whole, _ = draw(pipe, PROMPTS)
    seen = []

    def stop(pipe, number, done, values):
        seen.append((number, done))
        pipe.interrupt = number == 2

    part, stats = draw(pipe, PROMPTS, callback_on_step_end=stop)
    assert seen == [(1, 4), (2, 8)]
    assert torch.equal(part[:, :8], whole[:, :8])
    assert not part[:, 8:].any()
    assert stats.emitted == [8] * 3


def test_a_failing_picture_is_no_reason_to_stop(pipe, monkeypatch):
    """With a target there is plain decoding to go on with; without one the error is the answer."""

    def fail(*_):
        raise RuntimeError("no picture")

    monkeypatch.setattr(MultiScaleDrafter, "propose", fail)
    engines = []
    pipe.on_engine = engines.append
    pipe.enable_speculation(SpecConfig(method="mulo-sd"))
    _, stats = draw(pipe, PROMPTS)
    assert isinstance(engines[0].drafter, GuardedDrafter)
    assert "no picture" in stats.fault
    assert stats.emitted == [16] * 3
    pipe.enable_speculation(SpecConfig(method="upsample-only"))
    with pytest.raises(RuntimeError, match="no picture"):
        draw(pipe, PROMPTS)


@pytest.mark.parametrize("method", ["mulo-sd", "upsample-only"])
def test_an_interrupt_ends_the_small_picture(pipe, method, monkeypatch):
    """Behind the sibling's first round, and nothing large is drawn; the next picture is whole."""
    pipe.enable_speculation(SpecConfig(method=method))
    whole, _ = draw(pipe, PROMPTS)
    propose, rounds = CoupledJacobiDrafter.propose, []

    def stopped(*given):
        rounds.append(1)
        pipe.interrupt = True
        return propose(*given)

    with monkeypatch.context() as patch:
        patch.setattr(CoupledJacobiDrafter, "propose", stopped)
        _, stats = draw(pipe, PROMPTS)
    assert (len(rounds), stats.emitted, stats.fault) == (1, [0] * 3, None)
    assert torch.equal(draw(pipe, PROMPTS)[0], whole)


def test_a_guard_hears_of_the_picture_alone(pipe, monkeypatch):
    """Not of the small one that the sibling draws."""
    told = []
    monkeypatch.setattr(Guard, "told", lambda self, rows, tokens, *more: told.append(tokens))
    pipe.enable_speculation(SpecConfig("mulo-sd", rule="token", length="auto"))
    draw(pipe, PROMPTS[:1], temperature=0)
    assert sum(told) == 16
