"""LongSpec over a target's cache: bounded memory, roll-back, positions, what is refused."""

from __future__ import annotations

from contextlib import nullcontext

import folders
import pytest
import torch
import vlms
from head_twins import Twin, head_of
from toy_vlm import ROWS, guided_vlm, tiny_head, tiny_llava
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from watched_drafts import Watched

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.feature.feature_model import EagleDrafter
from mmspec.draft.feature.head_model import head_model
from mmspec.draft.feature.longspec import LongSpecModel
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.errors import InputError
from mmspec.models.heads.formats.files import HeadFiles
from mmspec.models.heads.formats.registry import read_head
from mmspec.models.heads.loading import load_head
from mmspec.models.heads.published.attention import rotate
from mmspec.models.heads.published.last_entries import LastEntries, whole_pass
from mmspec.models.loading import cast
from mmspec.models.target import TokenTarget
from mmspec.models.transformers.prompted import prompted

SMALL = dict(
    vocab_size=12,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    pad_token_id=0,
    max_position_embeddings=128,
)


def generation(head, limit, rows=ROWS, twin=None, scratch=4):
    """A whole generation of chains of three tokens; the context, drafter and counters."""
    model = tiny_llava()
    target, prompt, images = guided_vlm(model, rows, limit=limit, scratch=scratch)
    drafts = head_model(head, target, images)
    drafter = EagleDrafter(drafts, ModelDrafter(drafts))
    if twin is not None:
        drafter = Watched(drafter, Twin("longspec", model, prompt, *twin))
    coins = ProductionCoins([7 + len(row) for row in rows])
    engine = Engine(TokenTarget(target), drafter, TokenRule(), ConstantLength(3), coins)
    stats = SpecStats()
    with torch.no_grad(), target.decoder.repacked():
        context = run(engine, len(rows), limit, stats)
    return context, drafter, drafts, stats


@pytest.fixture(autouse=True)
def seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def test_after_rejections_drafts_are_those_from_scratch(tmp_path):
    """Rows come apart and the ring turns over; the twin reads the whole text anew every time."""
    head, *twin = head_of("longspec", tmp_path / "head")
    _, watched, drafts, stats = generation(head, 24, twin=twin)
    assert 0 < sum(stats.accepted) < sum(stats.drafted)
    assert drafts.columns == 3 + 4 + 1
    assert watched.worst < 1e-9


def test_hazard_a_ring_smaller_than_its_window(tmp_path, monkeypatch):
    """Entries that the window still reads would be written over: the twin notices."""
    head, *twin = head_of("longspec", tmp_path / "head")
    monkeypatch.setattr(LongSpecModel, "columns", property(lambda model: model.window - 1))
    assert generation(head, 12, twin=twin)[1].worst > 1e-6


def test_own_memory_does_not_grow_with_the_text():
    head, sizes = tiny_head("longspec", tiny_llava()), set()
    for rows, limit in (([[1, 2]], 4), ([[1, 2]], 60), ([["picture", 1] * 3], 4)):
        _, _, drafts, _ = generation(head, limit, rows)
        sizes.add(drafts.cache.nbytes)
        assert drafts._features.numel() == 0
    # keys and values of two heads of four numbers, in float64
    assert sizes == {2 * 2 * 4 * 8 * (4 + 4 + 1)}


def test_samples_that_come_and_go(tmp_path):
    """Rows that end leave the target's cache, and the others draft as before."""
    head, *twin = head_of("longspec", tmp_path / "head")
    model = tiny_llava()
    target, prompt, images = guided_vlm(model, limit=16)
    drafts = head_model(head, target, images)
    drafter = Watched(
        EagleDrafter(drafts, ModelDrafter(drafts)), Twin("longspec", model, prompt, *twin)
    )
    coins = ProductionCoins([1, 2, 3])
    engine = Engine(TokenTarget(target), drafter, TokenRule(), ConstantLength(3), coins, eos=(2, 4))
    with torch.no_grad():
        context = run(engine, len(ROWS), 16, SpecStats())
    assert len(set(context.base)) > 1
    assert target.running.numbers is not None
    assert drafter.worst < 1e-9


def test_keys_that_a_processor_has_in_another_order():
    """In float32 layers run rearranged, keys side by side: greedy drafts stay what they are."""
    model = tiny_llava().float()
    for module in [*model.modules()]:
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.RMSNorm:  # as transformers has it, or nothing is rearranged
                norm = LlamaRMSNorm(len(child.weight), child.eps)
                norm.weight = child.weight
                setattr(module, name, norm)
    head = cast(tiny_head("longspec", tiny_llava()), torch.float32)
    drafts = []
    for packed in (True, False):
        target, _, images = guided_vlm(model, [[1, 2, 3, 4, 5]], limit=4)
        own = head_model(head, target, images)
        context = Context.empty(1, 4)
        with torch.no_grad(), target.decoder.repacked() if packed else nullcontext():
            assert (target.decoder._rearranged is not None) == packed
            target.start(1)
            own.context = context
            own.start(1)
            drafts.append(own.extend(context.last, [-1]))
    assert torch.allclose(*drafts, atol=1e-5)


def test_a_head_of_ours_is_saved_and_read(tmp_path):
    """It drafts as before; the authors' layout has a projection and no norm more."""
    head = tiny_head("longspec", tiny_llava())
    head.save_pretrained(tmp_path / "head")
    again = load_head(tmp_path / "head", torch.float64).eval()
    assert (again.method, again.network.window, again.network.block) == ("longspec", 4, 3)
    first, second = (generation(one, 8)[0].tokens for one in (head, again))
    assert torch.equal(first, second)
    files = HeadFiles.read(tmp_path / "head")
    theirs = HeadFiles.read(folders.longspec(tmp_path / "theirs")[0])
    unread = {"cross_attn.k_proj.weight", "cross_attn.v_proj.weight"}
    assert theirs.tensors.keys() - unread == files.tensors.keys() - {"norm.weight"}
    del files.tensors["cross_attn.o_proj.weight"]
    with pytest.raises(InputError, match=r"missing tensor cross_attn.o_proj.weight"):
        read_head(files)


def test_the_released_verification_changes_the_law():
    """A likeliest token judged as if it were drawn, and the target's whole law after it fell."""
    p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1])
    stands = float((p[0] / q[0]).clamp_max(1))
    first = stands + (1 - stands) * float(p[0])
    assert first - float(p[0]) == pytest.approx(0.2777, abs=1e-3)


# --- targets --------------------------------------------------------------------------------------

POSITIONS = [0, 1, 17, 100]
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "llama3": lambda: LlamaForCausalLM(
        LlamaConfig(
            **SMALL,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        )
    ),
    "yarn": lambda: LlamaForCausalLM(
        LlamaConfig(
            **SMALL,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        )
    ),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8)),
    "phi3": lambda: Phi3ForCausalLM(
        Phi3Config(**SMALL, rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5})
    ),
}
REFUSED = {
    "sliding": (
        lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=8)),
        "sliding window",
    ),
    "gpt2": (
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=12, n_embd=16, n_layer=2, n_head=4)),
        "",
    ),
    "alibi": (lambda: BloomForCausalLM(BloomConfig(vocab_size=12, hidden_size=16, n_layer=2)), ""),
    "mla": (
        lambda: DeepseekV3ForCausalLM(
            DeepseekV3Config(
                **{**SMALL, "num_key_value_heads": 4},
                q_lora_rank=8,
                kv_lora_rank=8,
                qk_rope_head_dim=4,
                qk_nope_head_dim=4,
                v_head_dim=4,
                first_k_dense_replace=2,
                moe_intermediate_size=8,
                n_routed_experts=4,
                num_experts_per_tok=2,
                n_group=1,
                topk_group=1,
            )
        ),
        "",
    ),
    "linear": (
        lambda: Qwen3NextForCausalLM(
            Qwen3NextConfig(
                **SMALL,
                head_dim=8,
                layer_types=["full_attention", "linear_attention"],
                linear_num_value_heads=2,
                linear_num_key_heads=2,
                linear_key_head_dim=8,
                linear_value_head_dim=8,
                num_experts=2,
                num_experts_per_tok=1,
                moe_intermediate_size=8,
                shared_expert_intermediate_size=8,
            )
        ),
        "",
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_keys_that_it_can_meet(name):
    """Positions are turned as the target's own module turns them."""
    decoder = prompted(FAMILIES[name]().eval())
    last = LastEntries(decoder)
    assert (last.kv_heads, last.head_dim) == (2, 8 if name == "qwen3" else 4)
    positions = torch.tensor([POSITIONS])
    theirs = decoder.body.rotary_emb(torch.zeros(1), positions)
    ours = last.rotary(positions, torch.float32)
    assert torch.allclose(torch.stack(ours), torch.stack(theirs), atol=1e-5)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_positions_on_three_axes(family):
    """Each axis turns the numbers that the target's own layers let it turn."""
    decoder = prompted(vlms.made(family))
    last = LastEntries(decoder)
    positions = torch.tensor([[POSITIONS], [[3, 9, 2, 40]], [[7, 5, 8, 11]]])
    x = torch.randn(1, 4, decoder.embeddings.shape[1])
    alone = torch.eye(4).bool()  # every column reads itself, so that keys differ by their turns
    mask = torch.zeros(1, 1, 4, 4).masked_fill(~alone, -torch.inf)
    still, moved = (
        whole_pass(decoder, x, at, mask)[1].transpose(1, 2) for at in (0 * positions, positions)
    )
    turned = rotate(still, last.rotary(positions, torch.float32))
    assert torch.allclose(turned, moved, atol=1e-5)
    assert float((still - moved).detach().abs().max()) > 0.01


@pytest.mark.parametrize("name", REFUSED)
def test_keys_that_are_not_plain_are_refused(name):
    make, said = REFUSED[name]
    with pytest.raises(InputError, match=said or "no plain rotary keys") as error:
        LastEntries(prompted(make().eval()))
    assert "\n" not in str(error.value)


def test_a_head_of_other_heads_is_refused(tmp_path):
    small = dict(num_attention_heads=8, num_key_value_heads=4, head_dim=2)
    folder, *_ = folders.longspec(tmp_path / "head", **small)
    head = read_head(HeadFiles.read(folder)).double().eval()
    target, _, images = guided_vlm(tiny_llava())
    with pytest.raises(InputError, match="8 heads of 2 numbers, and the target stores keys of 2"):
        head_model(head, target, images)
