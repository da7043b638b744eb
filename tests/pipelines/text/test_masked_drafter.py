"""Masked models draft for language models and for those that see: `deer` and its kind."""

from __future__ import annotations

import json
import shutil

import answering
import pytest
import texts
import torch
from PIL import Image
from processors import processor
from tokenizers_of_two_kinds import sentence_piece
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

import mmspec
from mmspec import SpecConfig, enable_speculation
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.pipelines.model_folders import first_method, runnable_in

PROMPTS = ["the cat saw", "the dog and the cat saw the dog"]
METHODS = [
    "deer",
    "deer-tree",
    "deer[block_length=3]",
    "deer[siblings=top,draft_steps=3]",
    "deer-tree[siblings=top]",
    "deer[length=goodput]",
    "diffuspec-masked",
    "diffuspec-masked[num_draft_tokens=5,path_beam=2,length=eos-ema]",
]


def masked(words, seed=1, **form):
    """A model with two tokens more than the tokenizer has: a separator and a mask."""
    model = texts.model(words, seed)
    count = len(words)
    model.resize_token_embeddings(count + 2, mean_resizing=False)
    given = {"mask_token_id": count + 1, "sep_token_id": count, **form}
    for name, value in given.items():
        setattr(model.config, name, value)
    return model


@pytest.fixture(scope="module")
def words():
    return texts.tokenizer()


@pytest.fixture(scope="module")
def pipe(words):
    return mmspec.TextPipeline(texts.model(words), words, drafter=masked(words, 0))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_greedy_text_is_the_models_own(pipe, method, dtype):
    pipe.to(dtype)
    pipe.enable_speculation("plain")
    plain = pipe(PROMPTS, max_new_tokens=20)
    pipe.enable_speculation(method)
    for size in (None, 1):
        out = pipe(PROMPTS, max_new_tokens=20, batch_size=size)
        assert out.stats.fault is None
        assert sum(out.stats.drafted) > 0
        if dtype == torch.float64:
            assert out.tokens == plain.tokens


def test_on_rounded_weights(pipe):
    pipe.to(torch.float32)
    pipe.enable_speculation("deer[draft_weights=int8]")
    out = pipe(PROMPTS, max_new_tokens=20)
    assert out.stats.fault is None
    assert sum(out.stats.drafted) > 0


@pytest.mark.parametrize("method", [*METHODS[:4], "diffuspec-masked"])
@pytest.mark.parametrize("form", [{}, {"prefix_reading": "whole", "shifted_logits": True}], ids=str)
def test_a_seed_draws_the_same_alone_and_in_a_batch(words, method, form):
    pipe = mmspec.TextPipeline(texts.model(words), words, drafter=masked(words, **form))
    pipe.enable_speculation(method)
    texts.check_seeds(pipe, PROMPTS)


@pytest.mark.parametrize("method", ["deer", "deer-tree", "diffuspec-masked"])
def test_guidance(words, method):
    """Conditional and unconditional rows of the masked model, too."""
    target, drafter = texts.model(words), masked(words)
    ids = torch.tensor([[0, 5, 9, 4]])
    how = dict(
        max_new_tokens=16, do_sample=False, guidance_scale=1.5, negative_prompt_ids=ids[:, :2]
    )
    plain = target.generate(ids, **how)
    enable_speculation(target, method, drafter=drafter)
    assert torch.equal(target.generate(ids, **how), plain)
    assert target.speculation_stats.fault is None


def test_it_is_the_method_of_a_masked_drafter(words, tmp_path):
    """Where nobody names one; a folder brings the drafter along."""
    target = texts.model(words)
    enable_speculation(target, drafter=masked(words))
    target.generate(torch.tensor([[0, 5, 9]]), max_new_tokens=4)
    assert target.speculation_stats.method == "deer"
    pipe = mmspec.TextPipeline(texts.model(words), words, drafter=masked(words))
    pipe.save_pretrained(tmp_path / "saved")
    assert first_method(tmp_path / "saved", "vlm") == "deer"
    plain = mmspec.TextPipeline(texts.model(words), words, drafter=texts.model(words))
    plain.save_pretrained(tmp_path / "plain")
    assert first_method(tmp_path / "plain", "vlm") == "draft"
    assert "deer" not in runnable_in(tmp_path / "plain", "vlm")


def test_command(words, tmp_path, capsys):
    pipe = mmspec.TextPipeline(texts.model(words), words, drafter=masked(words))
    pipe.save_pretrained(tmp_path / "saved")
    call = ["chat", "the cat saw", "--model", str(tmp_path / "saved"), "--max-new-tokens", "6"]
    assert main([*call, "--block-length", "4", "--json"]) == 0
    assert '"deer"' in capsys.readouterr().out
    assert main([*call, "--method", "deer", "--draft-steps", "2"]) == 2
    assert "use siblings 'top'" in capsys.readouterr().err


# --- published layouts ----------------------------------------------------------------------------

SIZES = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=512,
    tie_word_embeddings=False,
)
LAYOUTS = {
    "Dream": (Qwen2Config, Qwen2ForCausalLM, "DreamModel", True, "whole"),
    "sdar": (Qwen3Config, Qwen3ForCausalLM, "SDARForCausalLM", False, "causal"),
    "a2d-qwen3": (Qwen3Config, Qwen3ForCausalLM, "A2DQwen3LMHeadModel", False, "whole"),
}


def published(folder, layout, words):
    """A drafter's folder as it is published: another family's name, code of its own beside it."""
    config, kind, name, *_ = LAYOUTS[layout]
    kind(config(**SIZES, vocab_size=len(words) + 1)).save_pretrained(folder)
    told = json.loads((folder / "config.json").read_text())
    told |= {
        "model_type": layout,
        "architectures": [name],
        "auto_map": {"AutoModel": f"modeling.{name}"},
        "mask_token_id": len(words),
    }
    (folder / "config.json").write_text(json.dumps(told))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_layouts_draft(words, tmp_path, layout):
    """Loader and drafts; weights are random. DiffuSpec's drafter is a Dream."""
    mmspec.TextPipeline(texts.model(words), words).save_pretrained(tmp_path)
    published(tmp_path / "drafter", layout, words)
    assert first_method(tmp_path, "vlm") == "deer"
    pipe = mmspec.TextPipeline.from_pretrained(tmp_path, dtype="float64")
    *_, shifted, reading = LAYOUTS[layout]
    told = pipe.drafter.config
    assert (told.shifted_logits, told.prefix_reading) == (shifted, reading)
    pipe.enable_speculation("plain")
    plain = pipe(PROMPTS, max_new_tokens=12)
    for method in ("deer", "diffuspec-masked"):
        pipe.enable_speculation(method)
        out = pipe(PROMPTS, max_new_tokens=12)
        assert out.tokens == plain.tokens
        assert out.stats.fault is None
    pipe.save_pretrained(tmp_path / "again")
    again = mmspec.TextPipeline.from_pretrained(tmp_path / "again").drafter.config
    assert (again.mask_token_id, again.shifted_logits) == (len(words), shifted)


def test_a_masked_model_does_not_answer(words, tmp_path):
    published(tmp_path, "Dream", words)
    words.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"is a masked language model .*drafts here"):
        mmspec.TextPipeline.from_pretrained(tmp_path)


# --- models that see ------------------------------------------------------------------------------


ASKS = ["what is it?", "how many are there?"]
PICTURES = [Image.new("RGB", (20, 24), "red"), [Image.new("RGB", (16, 16), "blue")] * 2]


@pytest.fixture(scope="module")
def seeing():
    made = processor("llava")
    image = made.tokenizer.convert_tokens_to_ids("<image>")
    model = answering.model(2, 0, words=len(made.tokenizer), image=image).double()
    return mmspec.VlmPipeline(model, made, drafter=masked(made.tokenizer))


def check_seeing(pipe, method):
    pipe.enable_speculation("plain")
    plain = pipe(ASKS, PICTURES, max_new_tokens=16)
    pipe.enable_speculation(method)
    out = pipe(ASKS, PICTURES, max_new_tokens=16)
    assert out.tokens == plain.tokens
    assert out.stats.fault is None
    assert out.stats.draft_visual_tokens == []
    assert sum(out.stats.drafted) > 0


@pytest.mark.parametrize("method", [*METHODS[:3], "diffuspec-masked"])
def test_for_a_model_that_sees(seeing, method):
    """On the text alone."""
    check_seeing(seeing, method)


def test_a_folder_of_a_model_that_sees(seeing, tmp_path):
    """With a published masked model as its drafter."""
    seeing.save_pretrained(tmp_path)
    shutil.rmtree(tmp_path / "drafter")
    published(tmp_path / "drafter", "sdar", seeing.processor.tokenizer)
    check_seeing(mmspec.VlmPipeline.from_pretrained(tmp_path, dtype="float64"), "deer")


def test_other_words_are_refused(words):
    others = sentence_piece(120)
    pipe = mmspec.TextPipeline(
        texts.model(words), words, drafter=masked(others), drafter_tokenizer=others
    )
    pipe.enable_speculation("deer")
    with pytest.raises(InputError, match=r"masked drafter is .*of the target's words"):
        pipe(PROMPTS[0], max_new_tokens=4)


def test_a_drafter_of_single_tokens_is_refused(words):
    pipe = mmspec.TextPipeline(texts.model(words), words, drafter=texts.model(words))
    with pytest.raises(InputError, match="is no masked language model"):
        pipe.enable_speculation(SpecConfig("deer"))
