"""A tiny random LLaVA as expert: its likelihoods by hand, its answers as `generate` gives them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BatchFeature,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from mmspec.errors import InputError
from mmspec.pipelines.verdict.expert import TransformersExpert
from mmspec.pipelines.verdict.verdict import SpeculativeVerdict

WORDS = [
    "[PAD]",
    "[END]",
    "<image>",
    "USER",
    "ASSISTANT",
    "what",
    "colour",
    "red",
    "blue",
    "green",
    "a",
    "big",
    "circle",
    "Think",
    "?",
]
CHAT = (
    "{% for m in messages %}USER {% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image> {% else %}{{ c['text'] }} {% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}ASSISTANT {% endif %}"
)
ANSWERS = ["red", "a big blue circle", "green green"]


@pytest.fixture(scope="module")
def processor():
    vocabulary = {word: n for n, word in enumerate(WORDS)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", eos_token="[END]", unk_token="?"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    return LlavaProcessor(
        CLIPImageProcessor(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8}),
        tokenizer,
        patch_size=4,
        vision_feature_select_strategy="default",
        chat_template=CHAT,
        num_additional_image_tokens=1,
    )


def llava(seed=0):
    sizes = dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_hidden_layers=2)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlavaForConditionalGeneration(
            LlavaConfig(
                vision_config=CLIPVisionConfig(**sizes, image_size=8, patch_size=4),
                text_config=LlamaConfig(
                    **sizes, vocab_size=len(WORDS), eos_token_id=1, pad_token_id=0
                ),
                image_token_index=2,
            )
        ).eval()
        for p in model.parameters():
            if p.ndim > 1:
                torch.nn.init.normal_(p, std=0.5)
    model.generation_config.eos_token_id = 1
    model.generation_config.pad_token_id = 0
    return model


def picture(seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@torch.no_grad()
def by_hand(model, processor, images, question, answer):
    """One answer, one forward pass, one token after the other."""
    text = "USER " + "<image> " * len(images) + question + " ASSISTANT " + answer
    inputs = processor(images=images, text=text, return_tensors="pt")
    logits = model(**inputs).logits[0]
    ids, count = inputs["input_ids"][0], len(answer.split())
    total = 0.0
    for place in range(len(ids) - count, len(ids)):
        law = logits[place - 1].exp() / logits[place - 1].exp().sum()
        total -= law[ids[place]].log().item()
    return total / count


@pytest.mark.parametrize("count", [1, 2])
def test_nll_is_by_hand(processor, count):
    model = llava()
    images = [picture(n) for n in range(count)]
    expert = TransformersExpert(model, processor, "tiny")
    made = expert.nll(images if count > 1 else images[0], "what colour", ANSWERS)
    want = [by_hand(model, processor, images, "what colour", text) for text in ANSWERS]
    assert made == pytest.approx(want, abs=1e-4)
    assert len(set(made)) == 3
    assert expert.tokens == 1 + 4 + 2
    # alone as among others, and of another picture it is another
    alone = [expert.nll(images, "what colour", [text])[0] for text in ANSWERS]
    assert alone == pytest.approx(made, abs=1e-4)
    other = expert.nll([picture(9)] * count, "what colour", ANSWERS)
    assert max(abs(a - b) for a, b in zip(made, other, strict=True)) > 1e-3


def test_answers_are_those_of_generate(processor):
    model = llava()
    expert = TransformersExpert(model, processor, answer_tokens=5, reason_tokens=9)
    assert expert.name == "LlavaForConditionalGeneration"
    image = picture(0)
    for ask, question, limit in (
        (expert.answer, "what colour", 5),
        (expert.reason, "what colour", 9),
    ):
        before = expert.tokens
        made = ask(image, question)
        text = question
        if limit == 9:
            text += "\nThink step by step about the image, then give the answer."
        inputs = processor(
            images=image, text=f"USER <image> {text} ASSISTANT ", return_tensors="pt"
        )
        with torch.no_grad():
            out = model.generate(**inputs, do_sample=False, max_new_tokens=limit)
        new = out[0, inputs["input_ids"].shape[1] :]
        assert made == processor.tokenizer.decode(new, skip_special_tokens=True).strip()
        assert expert.tokens - before == len(new)


def test_a_verdict_of_transformers_models(processor):
    experts = [
        TransformersExpert(llava(seed), processor, f"tiny {seed}", 4, 6) for seed in range(4)
    ]
    judge = TransformersExpert(llava(7), processor, "judge", 4)
    made = SpeculativeVerdict(experts, judge)(picture(0), "what colour")
    heard = [opinion for opinion in made.opinions if opinion.error is None]
    assert len(made.chosen) == min(3, len(heard))
    for a in heard:
        want = sum(
            abs(
                by_hand(b.model, processor, [picture(0)], "what colour", a.answer)
                - by_hand(b.model, processor, [picture(0)], "what colour", own.answer)
            )
            for b, own in zip(experts, made.opinions, strict=True)
            if own.error is None and own is not a
        )
        assert a.score == pytest.approx(want, rel=1e-5)  # sums of logarithms, in float32
    assert len(heard) >= 2
    assert made.cost.tokens == judge.tokens > 0


def test_what_is_refused(processor):
    model = llava()
    with pytest.raises(InputError, match="can't score an empty answer"):
        TransformersExpert(model, processor).nll(picture(0), "what colour", ["red", ""])
    with pytest.raises(InputError, match=r"call model.eval\(\) first"):
        TransformersExpert(llava().train(), processor)
    bare = LlavaProcessor(processor.image_processor, processor.tokenizer, patch_size=4)
    with pytest.raises(InputError, match="LlavaProcessor has no chat template"):
        TransformersExpert(model, bare)


class PackedProcessor:
    """What Qwen's processor hands over, for one picture of 4 × 4 patches, that is 2 × 2 tokens."""

    chat_template = CHAT

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def apply_chat_template(self, turn, add_generation_prompt):
        return "USER <image> " + turn[0]["content"][-1]["text"] + " ASSISTANT"

    def __call__(self, images, text, return_tensors, **how):
        words = text[0].replace("<image>", " ".join(["<image>"] * 4))
        ids = self.tokenizer(words, return_tensors="pt")["input_ids"]
        seed = int(np.asarray(images[0][0]).sum())
        return BatchFeature(
            {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "mm_token_type_ids": (ids == 2).int(),
                "pixel_values": torch.randn(16, 12, generator=torch.Generator().manual_seed(seed)),
                "image_grid_thw": torch.tensor([[1, 4, 4]]),
            }
        )


@torch.no_grad()
def test_nll_of_packed_pictures(processor):
    """Qwen2-VL: patches of all rows along one axis, positions on three."""
    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
    vision = dict(depth=2, embed_dim=8, num_heads=2, patch_size=2, temporal_patch_size=1)
    rope = dict(rope_type="default", mrope_section=[2, 1, 1], rope_theta=1e4)
    text = dict(sizes, intermediate_size=24, num_key_value_heads=2, vocab_size=len(WORDS))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2VLForConditionalGeneration(
            Qwen2VLConfig(
                vision_config=dict(vision, hidden_size=16),
                text_config=dict(text, rope_parameters=rope),
                image_token_id=2,
            )
        ).eval()
        for p in model.parameters():
            if p.ndim > 1:
                torch.nn.init.normal_(p, std=0.5)
    packed = PackedProcessor(processor.tokenizer)
    image = picture(0)
    made = TransformersExpert(model, packed).nll(image, "what colour", ANSWERS)
    for text, value in zip(ANSWERS, made, strict=True):
        prompt = packed([[image]], ["USER <image> what colour ASSISTANT " + text], "pt")
        logits, ids = model(**prompt).logits[0], prompt["input_ids"][0]
        positions = range(len(ids) - len(text.split()), len(ids))
        laws = [logits[place - 1].log_softmax(-1)[ids[place]].item() for place in positions]
        assert value == pytest.approx(-sum(laws) / len(laws), abs=1e-5)
