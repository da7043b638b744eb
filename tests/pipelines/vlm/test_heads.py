"""Draft heads beside transformers' own models: the text is the model's, whatever the head says."""

from __future__ import annotations

import pytest
import torch
import vlms
from toy_vlm import TRAINED, tiny_head
from transformers import LlamaConfig, LlamaForCausalLM
from vlms import IMAGE, NEW, QWEN, SHARED, agree, asked, greedy, made

import mmspec
from mmspec import SpecConfig
from mmspec.engine.warp import Warp
from mmspec.errors import InputError
from mmspec.methods import parts
from mmspec.methods.parts.heads import BRANCHES
from mmspec.models.guided import GuidedDecoder

RAGGED = [1, 2, 0]  # pictures of every row
TREE = {
    "drafter": "dynamic-tree",
    "rule": "recursive",
    "siblings": "top",
    "tree_depth": 6,
    "tree_nodes": 16,
}


@pytest.fixture(scope="module")
def known():
    """A model of a family, made when first asked for, and what it answers by itself."""
    models = {}

    def get(family: str):
        if family not in models:
            model = made(family)
            inputs = asked(model, RAGGED)
            models[family] = model, inputs, greedy(model, inputs)
        return models[family]

    yield get
    for model, _, _ in models.values():
        mmspec.disable_speculation(model)


def head_of(name: str, model, seed: int = 3):
    return tiny_head(name, model, seed).float().eval()


def answered(model, inputs, config, head, **how):
    """Tokens and counters of a greedy batch, unless `how` says otherwise."""
    mmspec.enable_speculation(model, config, head=head)
    try:
        out = model.generate(**inputs, **{"max_new_tokens": NEW, "do_sample": False, **how})
        return out, model.speculation_stats
    finally:
        mmspec.disable_speculation(model)


@pytest.mark.parametrize(
    ("name", "columns"),
    [("medusa", 1), ("hydra", 1), ("eagle", None), ("dflash", None), ("longspec", 0)],
)
def test_a_prompt_leaves_the_states_that_a_head_reads(known, monkeypatch, name, columns):
    """Heads without a cache read those in front of the last token; LongSpec reads none."""
    model, inputs, theirs = known("llava")
    found, made_ = [], GuidedDecoder.start

    def start(self, rows):
        made_(self, rows)
        if type(self) is GuidedDecoder:
            found.append((0 if self.hidden is None else self.hidden.shape[1], self.offset - 1))

    monkeypatch.setattr(GuidedDecoder, "start", start)
    out, stats = answered(model, inputs, name, head_of(name, model), prefill_chunk_size=16)
    assert agree(out, theirs)
    assert stats.fault is None
    assert min(stats.drafted) > 0
    left, read = max(found)  # plain decoding, which it is compared with, leaves none
    assert left == (read if columns is None else columns)


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
@pytest.mark.parametrize("name", TRAINED)
def test_greedy_text_is_transformers_own(known, family, name):
    model, inputs, theirs = known(family)
    ours, stats = answered(model, inputs, SpecConfig(name), head_of(name, model))
    assert agree(ours, theirs)
    assert stats.fault is None
    assert stats.method == name
    assert stats.contract == "exact-greedy"
    assert min(stats.drafted) > 0
    assert stats.visual_tokens == (inputs["input_ids"] == IMAGE).sum(1).tolist()


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
@pytest.mark.parametrize("name", [n for n in TRAINED if not parts("head")[n].blocks])
def test_and_so_it_is_by_trees(known, family, name):
    model, inputs, theirs = known(family)
    ours, stats = answered(model, inputs, SpecConfig(name, **TREE), head_of(name, model))
    assert agree(ours, theirs)
    assert stats.fault is None
    assert stats.contract == "exact"
    assert sum(stats.accepted) > 0


@pytest.mark.parametrize("family", [f for f in (*SHARED, *QWEN) if f not in ("llava", "qwen3_vl")])
def test_every_family(known, family):
    model, inputs, theirs = known(family)
    head = head_of("vispec", model)
    ours, stats = answered(model, inputs, SpecConfig("vispec", **TREE), head)
    assert agree(ours, theirs)
    assert stats.fault is None
    assert sum(stats.accepted) > 0


@pytest.mark.parametrize("name", ["eagle", "specvlm", "hydra", "flash", "dflash"])
def test_models_of_text_alone(name):
    config = LlamaConfig(**{**vlms.text_sizes(), "num_hidden_layers": 2})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    inputs = {"input_ids": torch.tensor([[0, 0, 3, 1], [7, 9, 2, 5]])}
    inputs["attention_mask"] = (inputs["input_ids"] > 0).long()
    wanted = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    ours, stats = answered(model, inputs, None, head_of(name, model))
    assert torch.equal(ours, wanted)
    assert stats.method == name  # the head says which
    assert stats.fault is None
    assert stats.visual_tokens == []


@pytest.mark.parametrize(
    "text",
    [
        {"rule": "block", "length": "heuristic"},
        {"drafter": "tree", "rule": "recursive", "tree_widths": (2, 2, 1)},
        {"drafter": "dynamic-tree", "rule": "recursive", "tree_nodes": 7},
        {**TREE, "tree_depth": 7, "tree_width": 10, "tree_beam": 10, "tree_nodes": 60},  # published
    ],
    ids=str,
)
def test_a_head_in_other_shapes(known, text):
    model, inputs, theirs = known("llava")
    config = SpecConfig("vispec", **text)
    ours, stats = answered(model, inputs, config, head_of("vispec", model))
    assert agree(ours, theirs)
    assert stats.fault is None
    assert sum(stats.accepted) > 0
    drawn, stats = answered(
        model, inputs, config, head_of("vispec", model), do_sample=True, temperature=0.7
    )
    assert stats.fault is None
    assert stats.contract == "exact"
    assert drawn.shape == ours.shape


def test_a_tree_is_of_the_heads_own_ranking(known, monkeypatch):
    """Greedily the target's law is one token; siblings are the head's likeliest all the same."""
    seen = []
    law = Warp.__call__
    monkeypatch.setattr(
        Warp, "__call__", lambda self, x: seen.append(self.temperature) or law(self, x)
    )
    model, inputs, _ = known("llava")
    answered(model, inputs, SpecConfig("eagle", **TREE), head_of("eagle", model))
    assert set(seen) == {0.0, 1.0}
    seen.clear()
    answered(model, inputs, SpecConfig("eagle"), head_of("eagle", model))
    assert set(seen) == {0.0}


# --- what a head makes of pictures ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("branch", "left"),
    [
        ("whole", 9),
        ("pruning", 3),  # runs of 4 of 9 columns
        ("pooling", 3),
        ("convolution", 3),
        ("resampler", 2),
        ("text-only", 0),
    ],
)
def test_branches_are_chosen_by_name(known, branch, left):
    model, inputs, theirs = known("llava")
    config = SpecConfig("specvlm", branch=branch)
    head = head_of("specvlm", model)
    ours, stats = answered(model, inputs, config, head)
    assert agree(ours, theirs)
    assert stats.visual_tokens == [9, 18, 0]
    assert stats.draft_visual_tokens == [left, 2 * left, 0]
    chosen = [] if branch == "whole" else [{branch: 1.0}] * 3
    assert stats.branches == chosen
    # and with no branch named it is again as it was saved
    _, stats = answered(model, inputs, SpecConfig("specvlm"), head)
    assert head.network.choose == head.network.saved == "gate"
    assert all(len(row) == 1 and set(row) <= set(BRANCHES) for row in stats.branches)
    told = stats.as_dict()
    assert told["visual_tokens_per_sample"] == 9
    assert told["branches"] == stats.branches


def test_the_gate_says_what_it_chose_question_by_question(known):
    """As the network itself does, of the same questions."""
    model, inputs, _ = known("llava")
    for seed in range(8):
        head = head_of("specvlm", model, seed)
        _, stats = answered(model, inputs, SpecConfig("specvlm"), head)
        chosen = [next(iter(row)) for row in stats.branches]
        words = inputs["input_ids"]
        for row, name in enumerate(chosen):
            real = words[row][(words[row] != IMAGE) & (inputs["attention_mask"][row] > 0)]
            embedded = model.get_input_embeddings()(real)
            question = torch.nn.functional.rms_norm(embedded, embedded.shape[-1:]).mean(0)
            assert BRANCHES[int(head.network.gate(question).argmax())] == name


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "head", "said"),
    [
        (SpecConfig("vispec"), None, "mmspec train vlm-head --method vispec --pipeline FOLDER"),
        (SpecConfig("vispec"), "eagle", "needs a head of 'vispec', and this is one of 'eagle'"),
        (SpecConfig("prompt-lookup"), "eagle", "has no draft head"),
        (SpecConfig("mulo-sd"), None, "draws pictures, and this one writes text"),
        (SpecConfig("verdict"), None, "mmspec ask --method verdict --expert FOLDER"),
        (SpecConfig("draft"), None, "needs a draft model"),
        (
            SpecConfig("reflection"),
            None,
            "pictures of continuous tokens, and this one writes",
        ),
    ],
)
def test_what_a_model_refuses(known, config, head, said):
    model, _, _ = known("llava")
    with pytest.raises(InputError, match=said) as caught:
        mmspec.enable_speculation(model, config, head=head and head_of(head, model))
    assert "\n" not in str(caught.value)


def test_a_head_of_another_target(known):
    model, other = known("llava")[0], made("llava", seed=1)
    with pytest.raises(InputError, match="other weights in its output layer"):
        mmspec.enable_speculation(model, head=head_of("eagle", other))
    with pytest.raises(InputError, match="model_type"):
        mmspec.enable_speculation(known("qwen3_vl")[0], head=head_of("eagle", model))


def test_a_head_in_training_mode(known):
    model = known("llava")[0]
    head = head_of("eagle", model).train()
    with pytest.raises(InputError, match=r"call head\.eval\(\) first"):
        mmspec.enable_speculation(model, head=head)


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"method": "vispec", "head": "vispex"}, "did you mean 'vispec'"),
        ({"method": "vispec", "drafter": "lookup"}, "'lookup' has no use for head 'vispec'"),
        ({"method": "flash", "drafter": "tree", "rule": "recursive"}, "use 'block'"),
        ({"method": "vispec", "drafter": "block"}, "judges chains|no use for head"),
        ({"drafter": "block"}, "'block' needs a head"),
        ({"method": "vispec", "branch": "pooling"}, "branch is a setting of 'specvlm'"),
        ({"method": "specvlm", "branch": "poling"}, "did you mean 'pooling'"),
        ({"method": "vispec", "draft_compressor": "divprune"}, "draft_compressor shortens"),
        ({"draft_compressor": "divprun"}, "did you mean 'divprune'"),
        ({"draft_compressor": "divprune", "draft_keep": 0}, "draft_keep must be above 0"),
        ({"draft_compressor": "divprune", "draft_keep": 1.5}, "above 0 and at most 1, not 1.5"),
    ],
    ids=str,
)
def test_what_cannot_go_together(knobs, said):
    with pytest.raises(InputError, match=said):
        SpecConfig(**knobs)
