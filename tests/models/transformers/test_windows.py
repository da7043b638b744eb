"""Models with sliding windows over texts many windows long: rings, and transformers' own tokens.

The oracle is `generate` of the same tiny random model in float64, a row alone and without padding:
where windows slide, transformers' own padded rows are not always numbers.
"""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import vlms

import mmspec
from mmspec import SpecConfig, disable_speculation, enable_speculation
from mmspec.engine.cache import SpreadCache, StaticCache
from mmspec.engine.ring_cache import RingCache
from mmspec.engine.warp import Warp
from mmspec.models import guided, reach
from mmspec.models.guided import GuidedDecoder
from mmspec.models.reach import Reach
from mmspec.models.setting import Setting
from mmspec.models.token_model import laws_at
from mmspec.models.transformers.probe import probed
from mmspec.models.transformers.tiny import tiny
from mmspec.pipelines.vlm.memory import Memory

WINDOW, NEW, ROWS = 6, 70, (9, 31, 24)
# windows in every layer, or in some beside full ones, and none beside a state
FAMILIES = {
    "gemma": {},
    "gemma2": {},
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "gpt_oss": {},
    "mistral": {},
    "phi3": {"pad_token_id": 0},
    "qwen3_next": {},
}
QUICK = "gemma2", "gemma3_text", "mistral"
METHODS = {
    "chain": SpecConfig("prompt-lookup"),
    "tree": SpecConfig("token-recycling", tree_widths=(2, 1)),
    "drafted chain": SpecConfig("draft"),
    "drafted tree": SpecConfig("dynamic-tree", tree_nodes=8, tree_depth=4),
}


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Configs that are tiny on purpose."""
    caplog.set_level("ERROR", "transformers")


def made(kind: str, **more):
    windowed = {} if kind in ("gemma", "qwen3_next") else {"sliding_window": WINDOW}
    sizes = {"max_position_embeddings": 256, **windowed, **FAMILIES[kind], **more}
    model = tiny(kind, torch.float64, **sizes)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model


def prompts(lengths=ROWS) -> list[list[int]]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randint(1, 30, (n,), generator=rng).tolist() for n in lengths]


def padded(rows) -> dict[str, torch.Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def alone(model, rows, new=NEW) -> list[list[int]]:
    """What transformers writes."""
    asked = {"max_new_tokens": new, "do_sample": False}
    return [model.generate(torch.tensor([row]), **asked)[0, len(row) :].tolist() for row in rows]


def spoken(model, method, drafter, rows, new=NEW) -> list[list[int]]:
    """What we write."""
    needs = method.resolve("vlm").needs
    enable_speculation(model, method, drafter if "drafter" in needs else None)
    try:
        inputs = padded(rows)
        out = model.generate(**inputs, max_new_tokens=new, do_sample=False)
        assert model.speculation_stats.fault is None, model.speculation_stats.fault
    finally:
        disable_speculation(model)
    return out[:, inputs["input_ids"].shape[1] :].tolist()


@pytest.fixture
def rings(monkeypatch):
    """The rings that generations make, and slots in all of their cache."""
    found: list[tuple[RingCache, int]] = []
    clear = GuidedDecoder._clear

    def cleared(self):
        clear(self)
        cache = self.cache
        parts = cache.parts if isinstance(cache, SpreadCache) else [cache]
        found.extend((part, self.slots) for part in parts if isinstance(part, RingCache))

    monkeypatch.setattr(GuidedDecoder, "_clear", cleared)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in FAMILIES]
)
def test_greedy_texts_are_transformers_own(kind, rings):
    """Rows of unequal lengths, prompts longer than the window, chains and trees that fall."""
    model = made(kind)
    drafter = made(
        kind,
        num_hidden_layers=2,
        **({"layer_types": model.config.layer_types[:2]} if kind == "gemma3_text" else {}),
    )
    rows = prompts()
    theirs = alone(model, rows)
    for name, method in METHODS.items():
        rings.clear()
        assert spoken(model, method, drafter, rows) == theirs, name
        windowed = kind not in ("gemma", "qwen3_next")
        assert bool(rings) == windowed
        assert all(ring.slots < 0.7 * slots for ring, slots in rings), (
            name,
            [(r.slots, s) for r, s in rings],
        )


@pytest.mark.parametrize("method", ["early-exit", "layer-skip", "pearl", "sjd", "merged", "s2d"])
def test_other_drafters(method, rings):
    """Some go back further than others, and none further than the rings keep, or it would fail."""
    model = made("mistral")
    drafter = made("mistral", num_hidden_layers=2)
    rows = prompts()
    assert spoken(model, SpecConfig(method), drafter, rows) == alone(model, rows)
    assert rings


def test_rows_that_catch_up_read_little_again():
    """A drafter that was not asked for long: rows lack unlike counts, and still read the same."""
    model = made("mistral")
    rows, drafted = prompts((12, 12)), []
    text = torch.tensor(alone(model, rows, 60))
    for method in ("batch", "alone"):
        ids = padded(rows if method == "batch" else rows[:1])
        decoder = probed(model)
        prompt = decoder.prompt(ids["input_ids"], ids["attention_mask"].bool(), 90)
        decoder.place(prompt)
        of = prompt.embedded, prompt.mask, None, Warp(), 90, 0, 3
        target = GuidedDecoder(decoder, Setting(*of))
        with torch.inference_mode():
            target.start(len(text) if method == "batch" else 1)
            own = text[: len(target.prefix)]
            assert target.reach.again == 4
            laws_at(target, own, [30, 50][: len(own)], [-1, -1][: len(own)])
            drafted.append(laws_at(target, own, [55, 56][: len(own)], [30, 50][: len(own)])[0])
    assert torch.allclose(*drafted, atol=1e-9)


def test_memory_does_not_grow_with_the_text():
    """Of windows; layers of full attention grow as they did, and so do columns."""

    def bytes_of(kind: str, slots: int) -> tuple[int, int]:
        cache = probed(made(kind)).cache(2, slots, 20)
        whole = probed(made(kind)).cache(2, slots)
        assert all(type(part) is StaticCache for part in whole.parts)
        return sum(p.nbytes for p in cache.parts if isinstance(p, RingCache)), cache.nbytes

    for kind in ("mistral", "gemma2", "gpt_oss"):
        (ring, short), (same, long) = bytes_of(kind, 100), bytes_of(kind, 900)
        assert ring == same > 0
        layers = 0 if kind == "mistral" else 2  # of full attention
        model = made(kind).config
        entry = 2 * 2 * model.num_key_value_heads * model.head_dim * 8  # keys and values of 2 rows
        column = 2 * 2 * 8
        assert long - short == 800 * (layers * entry + column)


def test_too_small_a_room_is_another_text(monkeypatch):
    """A call that goes back too far is an error; were it none, the tokens would tell."""
    model, rows = made("mistral"), prompts()
    method = SpecConfig("draft", num_draft_tokens=8)
    drafter = copy.deepcopy(model)
    drafter.model.layers[-1].mlp.down_proj.weight.data *= 1.2
    theirs = alone(model, rows)
    assert spoken(model, method, drafter, rows) == theirs
    monkeypatch.setattr(guided, "most_back", lambda scratch: 2)
    with pytest.raises((RuntimeError, AssertionError), match="a call goes back by"):
        spoken(model, method, drafter, rows)
    monkeypatch.setattr(Reach, "call", lambda self, first, count: None)
    assert spoken(model, method, drafter, rows) != theirs


def test_how_far_a_call_goes_back():
    along = Reach([5, 5], room=3)
    along.call([5, 5], 4)
    along.call([7, 5], 2)  # the last of row 1 stands at 8
    with pytest.raises(RuntimeError, match="goes back by 4 slots, and there is room for 3"):
        along.call([8, 4], 1)
    Reach([9]).call([0], 1)
    assert reach.most_back(4) == 20


def test_gemma_2_behind_a_picture():
    """PaliGemma 2: the prompt is read both ways, and longer than the window by far the answer."""
    made_of = {"model_type": "gemma2", "query_pre_attn_scalar": 8, "sliding_window": 32}
    model = vlms.made("paligemma", **made_of).double()
    inputs = vlms.asked(model, [1, 2])
    inputs["pixel_values"] = inputs["pixel_values"].double()
    theirs = vlms.greedy(model, inputs, max_new_tokens=90)
    for method in (METHODS["chain"], METHODS["tree"]):
        mmspec.enable_speculation(model, method)
        ours = model.generate(**inputs, max_new_tokens=90, do_sample=False)
        assert torch.equal(ours, theirs.sequences)
        mmspec.disable_speculation(model)


def test_rows_take_turns(rings):
    """Prompts that wait take the rows of those that are over, and their rings."""
    model, rows = made("gemma2"), prompts((9, 31, 24, 12))
    theirs = [row[: 20 + 15 * n] for n, row in enumerate(alone(model, rows))]
    ends = [row[-1] for row in theirs]
    speculation = partial(mmspec.enable_speculation, model, "prompt-lookup")
    speculation()
    try:
        generation = model.generate.__self__
        generation.at_once = 2
        out = model.generate(
            **padded(rows), max_new_tokens=NEW, do_sample=False, eos_token_id=sorted({*ends})
        )
        width = max(map(len, rows))
        expected = []
        for row in alone(model, rows):
            stop = next((n for n, token in enumerate(row) if token in ends), NEW - 1)
            expected.append(row[: stop + 1] + [0] * (NEW - stop - 1))
        got = out[:, width:].tolist()
        assert [row + [0] * (NEW - len(row)) for row in got] == expected
    finally:
        disable_speculation(model)
    assert rings


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
@pytest.mark.parametrize("method", ["prompt-lookup", "prompt-lookup[length=goodput]"])
def test_a_conversation_goes_on_in_its_ring(kind, method):
    """Turns that begin as the last one did read what is new alone, and measured calls leave it."""
    model, memory = made(kind), Memory()
    model.generation_config.eos_token_id = [*range(15)]  # so most of the room is never used
    turns = prompts((20, 9, 5))
    theirs: list[int] = []
    for turn in turns:
        theirs = [*theirs, *turn]
        theirs += alone(model, [theirs])[0]
    enable_speculation(model, method)
    model.generate.__self__.memory = memory
    ours: list[int] = []
    for turn in turns:
        ids = torch.tensor([[*ours, *turn]])
        known = max(0, len(ours) - 1)
        ours = model.generate(ids, max_new_tokens=NEW, do_sample=False)[0].tolist()
        assert memory.reused == known
    assert ours == theirs
    assert memory.reused > 3 * WINDOW
    other = [*theirs[:2], 5, *prompts((12,))[0]]  # most rings lack its beginning
    ours = model.generate(torch.tensor([other]), max_new_tokens=NEW, do_sample=False)[0].tolist()
    disable_speculation(model)
    assert memory.reused in (0, 2)
    assert ours == other + alone(model, [other])[0]
