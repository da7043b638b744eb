"""Drafts within a memory budget: what is allocated stays in it, and what comes out is the same."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import texts
import torch
import vlms
from toy_vlm import tiny_head

import mmspec
from mmspec import ImagePipeline, InputError, SpecConfig
from mmspec.engine.laws import Categorical, WithoutReplacement
from mmspec.methods import config_of, serving
from mmspec.models.guided import GuidedDecoder
from mmspec.models.target import TokenTarget
from mmspec.models.transformers.tiny import tiny

NEW = 16  # tokens, of a picture as well
RESOLVED = {
    (kind, name): SpecConfig(name).resolve(kind)
    for kind in ("vlm", "image")
    for name in serving(kind)
}
JUDGED = {key: one for key, one in RESOLVED.items() if one.drafts and not one.unverified}
THERE = {"drafter", "masked", "masked-target"}
OF_TEXT = {name: one for (kind, name), one in JUDGED.items() if kind == "vlm"}
# steps are another text than plain's
TEXT = [n for n, one in OF_TEXT.items() if {*one.needs} <= THERE and not one.rule.routes]
IMAGE = [n for (kind, n), one in JUDGED.items() if kind == "image" and "sibling" not in one.needs]


def allocated(cache) -> int:
    """Bytes of a cache, those of rows that have ended included."""
    return sum(part._all[0].nbytes for part in getattr(cache, "parts", [cache]))


@pytest.fixture
def added(monkeypatch):
    """Bytes of keys and values, and the most of laws at a time, as they really are."""
    networks, laws = [], [0]
    reserve, score = GuidedDecoder.reserve, TokenTarget.score

    def reserved(self, scratch):
        networks.append(self)
        reserve(self, scratch)

    def scored(self, context, draft):
        scores = score(self, context, draft)
        bytes_ = scores.laws[:, : draft.nodes].nbytes  # plain decoding has one law, too
        if scores.early is not None:
            bytes_ += scores.early[:, : draft.nodes].nbytes
        if isinstance(draft.law, Categorical | WithoutReplacement) and draft.nodes:
            bytes_ += draft.law.probs.nbytes
        laws[0] = max(laws[0], bytes_)
        return scores

    monkeypatch.setattr(GuidedDecoder, "reserve", reserved)
    monkeypatch.setattr(TokenTarget, "score", scored)

    def read():
        at_work = [n for n in networks if n.cache is not None and n.limit == NEW]  # not tried out
        caches = {id(n.cache): allocated(n.cache) for n in at_work}
        told = SimpleNamespace(caches=sum(caches.values()), laws=laws[0])
        networks.clear()
        laws[0] = 0
        return told

    return read


def check_budgets(speculated, added, config: SpecConfig) -> None:
    """Text or pictures within several budgets are the plain ones, and a byte less is refused."""
    plain = speculated(None)
    without = added().caches
    assert speculated(config) == plain
    all_of_it = added()
    with pytest.raises(InputError, match="holds no draft of method") as caught:
        speculated(config.replace(memory_budget=1))
    assert "\n" not in str(caught.value)
    least = int(re.search(r"memory_budget=(\d+) or more", str(caught.value)).group(1))
    with pytest.raises(InputError, match="holds no draft of method"):
        speculated(config.replace(memory_budget=least - 1))
    added()
    taken = []
    for budget in (least, least + (all_of_it.caches - without) // 3, 10**9):
        assert speculated(config.replace(memory_budget=budget)) == plain
        told = added()
        taken.append(told.caches - without + told.laws)
        assert taken[-1] <= budget
    assert taken == sorted(taken)
    assert taken[-1] == all_of_it.caches - without + all_of_it.laws


@pytest.mark.parametrize("method", TEXT)
def test_text(added, method):
    words, small = texts.tokenizer(), texts.model(texts.tokenizer(), seed=1)
    small.config.mask_token_id = 1
    pipe = mmspec.TextPipeline(texts.model(words), words, drafter=small)
    if "masked-target" in RESOLVED["vlm", method].needs:
        pipe.model.config.mask_token_id = 1
    pipe.to(torch.float32 if RESOLVED["vlm", method].rounds else torch.float64)

    def speculated(config):
        pipe.enable_speculation(config or SpecConfig("plain"))
        return pipe(["the cat saw the", "the dog"], max_new_tokens=NEW, temperature=0).tokens

    # a router that does not always verify lets another text stand
    reads = RESOLVED["vlm", method].options
    check_budgets(
        speculated,
        added,
        SpecConfig(method, **({"verify_policy": "always"} if "verify_policy" in reads else {})),
    )


@pytest.mark.parametrize(
    "name", ["eagle", "vispec", "flash", "falcon", "dflash", "hydra", "medusa", "longspec", None]
)
def test_heads_and_pictures(added, name):
    model = vlms.made("llava")
    inputs = vlms.asked(model, [1, 2, 0])
    parts = {"drafter": vlms.made("llava", seed=1)} if name is None else {}
    if name is not None:
        parts["head"] = tiny_head(name, model)

    def speculated(config):
        mmspec.enable_speculation(model, config or "plain", **(parts if config else {}))
        out = model.generate(**inputs, max_new_tokens=NEW, do_sample=False).tolist()
        mmspec.disable_speculation(model)
        return out

    check_budgets(speculated, added, SpecConfig("draft" if name is None else parts["head"].method))


@pytest.mark.parametrize("method", [*IMAGE, "draft[rule=restricted]", "prompt-lookup[rule=block]"])
def test_pictures(added, tiny_folder, method):
    one = config_of(method).resolve("image")
    dtype = torch.float32 if one.rounds else torch.float64
    pipe = ImagePipeline.from_pretrained(tiny_folder, dtype=dtype)
    pipe.set_progress_bar_config(disable=True)

    def speculated(config):
        pipe.enable_speculation(config or SpecConfig("plain"))
        told = dict(temperature=0, output_type="tokens", num_images_per_prompt=2)
        return pipe("a photo of a red circle", **told).images.tolist()

    if one.contract == "exact":
        check_budgets(speculated, added, config_of(method))


def test_a_drafter_that_keeps_all_slots_of_its_windows_is_counted_so(added):
    """Its exits catch up from far behind."""
    sizes = {"max_position_embeddings": 256}
    model = tiny("llama", torch.float64, **sizes)
    drafter = tiny("mistral", torch.float64, sliding_window=6, **sizes)
    model.generation_config.eos_token_id = None
    ids = torch.randint(3, 30, (1, 120), generator=torch.Generator().manual_seed(0))

    def speculated(config):
        mmspec.enable_speculation(model, config or "plain", drafter if config else None)
        out = model.generate(ids, max_new_tokens=NEW, do_sample=False).tolist()
        mmspec.disable_speculation(model)
        return out

    check_budgets(speculated, added, SpecConfig("s2d"))
