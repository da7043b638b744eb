"""A vision-language model around a language model that stays as it is."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import texts
import torch
from packed_rows import check_packed_rows
from peft import PeftModel
from safetensors.torch import load_file
from tokenizers import processors
from transformers import (
    AutoProcessor,
    AutoTokenizer,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from mmspec import SpecConfig, VlmPipeline
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.models.transformers.text_folder import load_text
from mmspec.train import recipes
from mmspec.train.trainer import TrainConfig, Trainer
from mmspec.train.vlm import recipe as vlm_recipe
from mmspec.train.vlm.adapter import VlmAdapterRecipe, around, changed
from mmspec.train.vlm.recipe import answer_all, token_losses
from mmspec.worlds.shapes.exchanges import held_out_questions


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(vlm_recipe, "QUESTIONS", 1)
    monkeypatch.setattr(vlm_recipe, "DESCRIPTIONS", 1)
    monkeypatch.setattr(vlm_recipe, "BATCH", 4)
    monkeypatch.setattr(vlm_recipe, "LIMITS", {"short": 2, "long": 3})


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """A tiny Llama of random weights with a chat template, of a length that holds a picture."""
    path = tmp_path_factory.mktemp("language")
    words = texts.tokenizer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "POSITIONS", 4096)
        texts.model(words).float().save_pretrained(path)
    words.save_pretrained(path)
    return path


def recipe_in(folder, language, rate=1e-3):
    config = TrainConfig(folder / "training", steps=3, batch_size=1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return VlmAdapterRecipe(config, folder, str(language), rate)


def moved(recipe):
    """The recipe after every weight that can learn was changed."""
    with torch.no_grad():
        for weight in recipe.model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    return recipe


def test_text_alone_is_answered_as_before(tmp_path, language):
    """Until something is learned, and without a picture, the language model says what it said."""
    vlm = recipe_in(tmp_path, language).model.vlm
    before = load_text(language, torch.float32)["model"]
    ids = torch.randint(3, before.config.vocab_size, (2, 9))
    with torch.no_grad():
        said, expected = vlm(input_ids=ids).logits, before(input_ids=ids).logits
    torch.testing.assert_close(said[..., : expected.shape[-1]], expected)
    assert said.shape[-1] == expected.shape[-1] + 1  # the place of a picture


def test_messages_of_text_look_as_before(tmp_path, language):
    processor = recipe_in(tmp_path, language).processor
    told = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "The cat."},
    ]
    in_parts = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in told]
    before = AutoTokenizer.from_pretrained(language)
    for start in (False, True):
        expected = before.apply_chat_template(told, tokenize=False, add_generation_prompt=start)
        for messages in (told, in_parts):
            said = processor.apply_chat_template(messages, add_generation_prompt=start)
            assert said == expected
    content = [{"type": "image"}, {"type": "text", "text": "Who?"}]
    said = processor.apply_chat_template([{"role": "user", "content": content}])
    assert said == "<|im_start|>user\n<image>Who?<|im_end|>\n"


@pytest.mark.parametrize("verdict", [False, True])
def test_a_packed_row_is_its_questions_one_by_one(tmp_path, language, verdict):
    recipe = moved(recipe_in(tmp_path, language))
    check_packed_rows(recipe.model.vlm, recipe.processor, verdict)


def test_what_is_frozen_stays(tmp_path, language):
    recipe = recipe_in(tmp_path, language)
    whole = recipe.model.whole
    learned = {id(weight) for weight in recipe.model.parameters()}
    frozen = {n: w.clone() for n, w in whole.named_parameters() if id(w) not in learned}
    before = {name: weight.clone() for name, weight in recipe.model.state_dict().items()}
    Trainer(recipe, recipe.config).run()
    after = dict(whole.named_parameters())
    assert all(torch.equal(after[name], weight) for name, weight in frozen.items())
    names = {name.partition("base_model.model.")[2] for name in frozen}
    assert any("language_model.embed_tokens" in name for name in names)
    assert any("vision_tower" in name for name in names)
    trained = recipe.model.state_dict()
    assert all(not torch.equal(trained[name], weight) for name, weight in before.items())
    state = torch.load(recipe.config.out / "checkpoint.pt", weights_only=True)
    assert state["model"].keys() == before.keys()


def test_the_average_answers_by_its_own_weights(tmp_path, language):
    """Of an average, which is a copy, the changes that answer are those that are averaged."""
    recipe = recipe_in(tmp_path, language)
    trainer = Trainer(recipe, recipe.config)
    batch = recipe.draw(np.random.default_rng(0), 0)
    with torch.no_grad():
        first = token_losses(recipe.model.vlm, batch)[0]
        moved(recipe)
        other = token_losses(recipe.model.vlm, batch)[0]
        average = trainer.average.module
        assert torch.equal(token_losses(average.vlm, batch)[0], first)
        average.load_state_dict(recipe.model.state_dict())
        assert torch.equal(token_losses(average.vlm, batch)[0], other)
    assert not torch.equal(first, other)


def test_what_is_written_is_what_was_learned(tmp_path, language):
    """The whole model, the changes alone over the language model, and the recipe's own: all one."""
    folder = tmp_path / "vlm"
    recipe = moved(recipe_in(folder, language, rate=0.0))
    batch = recipe.draw(np.random.default_rng(1), 0)
    Trainer(recipe, recipe.config).run()
    with torch.no_grad():
        expected = token_losses(recipe.model.vlm.float(), batch)[0]
        model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        torch.testing.assert_close(token_losses(model, batch)[0], expected, atol=2e-2, rtol=1e-2)
        fresh = recipe_in(tmp_path / "other", language)
        base = around_of(language, fresh)
        adapted = PeftModel.from_pretrained(base, folder / "adapter").get_base_model()
        alone = token_losses(adapted.float(), batch)[0]
        torch.testing.assert_close(alone, expected, atol=2e-2, rtol=1e-2)
        assert not torch.allclose(token_losses(fresh.model.vlm, batch)[0], expected, atol=0.1)
    weights = load_file(folder / "adapter" / "adapter_model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.float16}
    assert sum(value.numel() for value in weights.values()) == sum(
        weight.numel() for weight in recipe.model.learned.parameters()
    )
    assert json.loads((folder / "training.json").read_text())["component"] == "adapter"


def around_of(language, recipe):
    parts = load_text(language, torch.float32)
    return around(parts["model"], recipe.model.vlm.model.vision_tower, parts["tokenizer"])


def test_from_the_command_to_a_pipeline(tmp_path, language, capsys):
    folder = tmp_path / "vlm"
    command = ["train", "vlm-adapter", "--language", str(language), "--pipeline", str(folder)]
    with torch.random.fork_rng():
        assert main([*command, "--steps", "2", "--batch-size", "1", "--workers", "0"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert 0 <= record["held_out"]["held_out_accuracy"] <= 1
    pipe = VlmPipeline.from_pretrained(folder)
    lines = list(held_out_questions(1))[:3]
    asked = [line.question for line in lines]
    processor = AutoProcessor.from_pretrained(folder)
    expected = answer_all(pipe.model, processor, lines, 12)
    pictures = vlm_recipe.pictures_of(lines, recipe_in(folder, language).side)
    for method in ("plain", "prompt-lookup"):
        pipe.enable_speculation(SpecConfig(method))
        assert pipe(asked, pictures, max_new_tokens=12).text == expected
    # it goes on where it was
    with torch.random.fork_rng():
        assert main([*command, "--steps", "3", "--batch-size", "1", "--workers", "0"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["step"] == 3


def test_a_resumed_run_is_an_unbroken_one(tmp_path, language):
    def trainer(name):
        recipe = recipe_in(tmp_path / name, language)
        return Trainer(recipe, replace(recipe.config, save_minutes=0.0))

    whole, broken = trainer("whole"), trainer("broken")
    whole.run()
    loss = broken.recipe.loss

    def failing(batch, rng, step):
        if step == 2:
            raise KeyboardInterrupt
        return loss(batch, rng, step)

    broken.recipe.loss = failing
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    again = trainer("broken")
    again.run()
    both = zip(again.model.state_dict().values(), whole.model.state_dict().values(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in both)


def test_a_start_token_that_the_template_does_not_write(tmp_path, language):
    """What such a tokenizer puts in front of a prompt is in front of what is learned."""
    own = shutil.copytree(language, tmp_path / "language")
    words = AutoTokenizer.from_pretrained(own)
    start = words.bos_token
    words.chat_template = words.chat_template.replace("<|im_start|>", "")
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A", special_tokens=[(start, words.bos_token_id)]
    )
    words.save_pretrained(own)
    recipe = moved(recipe_in(tmp_path / "vlm", own))
    assert recipe.turns.before[0] == words.bos_token_id
    check_packed_rows(recipe.model.vlm, recipe.processor)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}{{ m['content'] | upper }}</s>{% endfor %}", "as they are"),
        ("{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}", "as they are"),
        ("{% for m in messages %}{{ m['content'] }} and{% endfor %}", "no token that stops"),
    ],
)
def test_templates_that_hide_words_or_ends(tmp_path, language, template, message):
    own = shutil.copytree(language, tmp_path / "language")
    (own / "chat_template.jinja").write_text(template)
    with pytest.raises(InputError, match=message):
        recipe_in(tmp_path / "vlm", own)


def test_a_model_that_scales_its_logits_is_refused(tmp_path, language):
    """LLaVA's class would leave the scale out."""
    own = shutil.copytree(language, tmp_path / "language")
    config = json.loads((own / "config.json").read_text())
    config |= {"model_type": "granite", "architectures": ["GraniteForCausalLM"]}
    (own / "config.json").write_text(json.dumps(config | {"logits_scaling": 8.0}))
    with pytest.raises(InputError, match="GraniteForCausalLM does more with its hidden states"):
        recipe_in(tmp_path / "vlm", own)


def test_the_language_model_is_not_written_over(language):
    with pytest.raises(InputError, match="the language model's own folder"):
        recipe_in(language, language)


def test_bad_language_models(tmp_path, language):
    with pytest.raises(InputError, match="nothing"):
        recipe_in(tmp_path, tmp_path / "nothing")
    silent = shutil.copytree(language, tmp_path / "silent")
    (silent / "chat_template.jinja").unlink()
    with pytest.raises(InputError, match="no chat template"):
        recipe_in(tmp_path, silent)
    with pytest.raises(InputError, match="is for one stage: adapter of vlm-adapter"):
        recipes.train("vlm", tmp_path, stage="target", language="smollm2")


def test_size_over_smollm2():
    """What is learned over SmolLM2-135M takes 6 MB, of 8 that it may, in two bytes a number."""
    with torch.device("meta"):
        text = LlamaConfig(
            vocab_size=49153,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            tie_word_embeddings=True,
        )
        vision = {"hidden_size": 192, "num_attention_heads": 3, "num_hidden_layers": 3}
        whole = changed(
            LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text))
        )
    learned = sum(weight.numel() for weight in whole.parameters() if weight.requires_grad)
    assert round(2 * learned / 1e6) == 6  # as the training page says
