"""Lessons of targets whose prompts are read both ways: the hidden states are the model's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import vlms

from mmspec.models.heads.published.longspec import LongSpecNetwork
from mmspec.models.heads.published.sizes import HeadSizes
from mmspec.models.transformers.prompt_inputs import process_questions
from mmspec.train.heads import last_layer
from mmspec.train.heads.last_layer import crossing
from mmspec.train.heads.teacher import Teacher

NEW = 4


@pytest.mark.parametrize("family", ["paligemma", "gemma3"])
def test_a_lesson_shows_prompts_as_the_model_reads_them(family):
    model = vlms.made(family)
    inputs = vlms.asked(model, [1, 2])
    given = {n: v for n, v in inputs.items() if n not in ("input_ids", "attention_mask")}
    teacher = Teacher(model, NEW)
    mask, lessons = inputs["attention_mask"].bool(), []
    for kinds in (inputs["token_type_ids"], None):
        given["token_type_ids"] = kinds
        with torch.inference_mode():
            prompt = teacher.decoder.prompt(inputs["input_ids"], mask, NEW, **given)
        lessons.append(teacher.lessons(prompt, prompt.images, [0, 2], 1))
    for row, (lesson, one_way) in enumerate(zip(*lessons, strict=True)):
        real = mask[row]
        own = {n: inputs[n][row : row + 1, real] for n in ("input_ids", "token_type_ids")}
        own["pixel_values"] = inputs["pixel_values"][[0] if row == 0 else [1, 2]]
        with torch.inference_mode():
            truth = model(**own, output_hidden_states=True).hidden_states[-1][0]
        shown = lesson.features[0, : len(truth)]
        assert torch.allclose(shown, truth, atol=1e-4)
        assert not torch.allclose(shown, one_way.features[0, : len(truth)], atol=1e-2)


@pytest.mark.parametrize("family", ["paligemma", "gemma3"])
def test_the_last_layer_is_read_as_the_model_reads_the_prompt(family, monkeypatch):
    first = int(family == "paligemma")  # it counts positions from 1
    monkeypatch.setattr(last_layer, "moved", lambda places, mask, most: places + first)
    model = vlms.made(family)
    inputs = vlms.asked(model, [1, 2])
    given = {n: v for n, v in inputs.items() if n not in ("input_ids", "attention_mask")}
    mask, teacher = inputs["attention_mask"].bool(), Teacher(model, NEW)
    with torch.inference_mode():
        prompt = teacher.decoder.prompt(inputs["input_ids"], mask, NEW, **given)
    (whole,) = teacher.lessons(prompt, prompt.images, [0, 2], 2)
    network = LongSpecNetwork(HeadSizes(32, 48, 4, 4, 8), window=2, block=2)
    lesson, batch = crossing(network, teacher.on_device(whole))
    for row in range(2):
        real, asked = whole.mask[row], int(mask[row].sum())
        own = {"input_ids": whole.tokens[row : row + 1, real]}
        own["input_ids"][:, :asked] = inputs["input_ids"][row, mask[row]]
        answer = own["input_ids"].shape[1] - asked  # of kind 1 for PaliGemma, 0 for Gemma 3
        kinds = inputs["token_type_ids"][row : row + 1, mask[row]]
        own["token_type_ids"] = F.pad(kinds, (0, answer), value=first)
        own["pixel_values"] = inputs["pixel_values"][[0] if row == 0 else [1, 2]]
        with torch.inference_mode():
            truth = model(**own, output_hidden_states=True, use_cache=True)
        stored = truth.past_key_values.layers[-1]
        assert torch.allclose(batch.features[row, real], truth.hidden_states[-1][0], atol=1e-4)
        for name in ("keys", "values"):
            found = getattr(lesson.last, name)[row][:, real]
            assert torch.allclose(found, getattr(stored, name)[0], atol=1e-4), name


class _Processor:
    """Gives kinds of tokens, as tokenizers do for any model."""

    chat_template, image_token = "a template", None
    tokenizer = SimpleNamespace(
        bos_token=None, eos_token=None, pad_token=None, all_special_tokens=()
    )

    def apply_chat_template(self, turns, add_generation_prompt):
        return turns[0]["content"][0]["text"]

    def __call__(self, text, **_):
        ids = torch.tensor([[3, 4, 5]] * len(text))
        kinds = {"token_type_ids": torch.zeros_like(ids)}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **kinds}


@pytest.mark.parametrize(("family", "kept"), [("paligemma", True), ("llava", False)])
def test_kinds_of_tokens_are_for_models_that_take_them(family, kept):
    made = process_questions(_Processor(), [[]], ["a b c"], vlms.made(family))
    assert ("token_type_ids" in made) == kept
