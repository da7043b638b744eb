"""Recipe of a vision-language model around a language model that was trained on texts of all kinds.

A projector turns what the embedded vision tower sees into inputs of the language model, as in LLaVA
(Liu et al. 2023), and low-rank changes of its linear layers (LoRA, Hu et al. 2021) let it answer
about them. Both learn together; tower and language model stay as they are.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import AddedToken
from torch import nn
from transformers import (
    CLIPVisionModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
)

from ...errors import InputError
from ...files import atomic_folder
from ...models.embedded import embedded_folder
from ...models.loading import load_component
from ...models.packaged import PACKAGED, packaged_folder
from ...models.transformers.text_folder import load_text
from ..card import write_card
from ..patch_reader import PatchReader
from ..trainer import TrainConfig
from .recipe import VlmRecipe, build_processor

IMAGE = "<image>"
RANK = 8  # of the changes; they are scaled by 2
# in front of a language model's own template: of a content in parts it makes one text
_IN_PARTS = """\
{%- set told = namespace(messages=[]) -%}
{%- for message in messages -%}
{%- set said = namespace(text='') -%}
{%- if message['content'] is string -%}{%- set said.text = message['content'] -%}
{%- else -%}
{%- for part in message['content'] -%}
{%- set said.text = said.text + ('<image>' if part['type'] == 'image' else part['text']) -%}
{%- endfor -%}
{%- endif -%}
{%- set told.messages = told.messages + [{'role': message['role'], 'content': said.text}] -%}
{%- endfor -%}
{%- set messages = told.messages -%}
"""


class Adapted(nn.Module):
    """Parts of a vision-language model that learn, and a reader of its patches.

    The frozen weights are no part of this module: they are neither averaged nor stored.

    Attributes:
        whole: the model with its changes.
    """

    def __init__(self, whole: PeftModel, reader: PatchReader) -> None:
        super().__init__()
        self._whole = (whole,)
        self.learned = nn.ModuleList(
            part
            for part in whole.modules()
            if any(weight.requires_grad for weight in part.parameters(recurse=False))
        )
        self.reader = reader

    @property
    def whole(self) -> PeftModel:
        return self._whole[0]

    @property
    def vlm(self) -> LlavaForConditionalGeneration:
        """The model inside, which answers with its changes."""
        vlm: LlavaForConditionalGeneration = self.whole.get_base_model()
        return vlm


class VlmAdapterRecipe(VlmRecipe):
    """Trains a projector and low-rank changes of a language model on questions of the shapes world.

    The folder receives the whole model, ready for `VlmPipeline`, and in `adapter` what was learned
    alone, in the layout of the package `peft`.

    Args:
        config, pipeline, rate: see `VlmRecipe`.
        language: the language model: a folder in transformers' layout, whose tokenizer has a chat
            template, or the name of a packaged one, such as "smollm2".

    Raises:
        InputError: there is no such model, it has no chat template, or LLaVA's class would change
            what it says.
    """

    adamw = 0.0

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        language: str | Path = "smollm2",
        rate: float = 1e-3,
    ) -> None:
        self.language = str(language)
        packaged = language in PACKAGED
        folder = packaged_folder(str(language)) if packaged else Path(language)
        if folder.resolve() == pipeline.resolve():
            raise InputError(
                f"{folder} is the language model's own folder; give another --pipeline"
            )
        parts = load_text(folder, torch.float32)
        model, tokenizer = parts["model"], parts["tokenizer"]
        if tokenizer.chat_template is None:
            raise InputError(f"the tokenizer in {folder} has no chat template; give it one")
        tower = load_component(
            LlavaForConditionalGeneration, embedded_folder("vlm"), torch.float32
        ).model.vision_tower
        vlm = around(model, tower, tokenizer)
        sizes = tower.config.image_size, tower.config.patch_size
        ends = vlm.generation_config.eos_token_id
        processor = build_processor(tokenizer, *sizes)
        super().__init__(config, pipeline, rate, processor, ends=ends)
        vlm.config.image_seq_length = self.places
        self.model = Adapted(changed(vlm.to(config.device)), self.reader_of(vlm))

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, Adapted)
        whole = copy.deepcopy(model.whole)
        merged = whole.merge_and_unload().half()
        with atomic_folder(self.pipeline) as part:
            merged.save_pretrained(part)
            self.processor.save_pretrained(part)
        with atomic_folder(self.pipeline / "adapter") as part:
            model.whole.half().save_pretrained(str(part))
        write_card(
            self.pipeline,
            title=f"Vision-language model of the shapes world around {self.language}",
            purpose="answers questions about scenes and charts, and describes them, in the words "
            "of a language model that was trained on texts of all kinds",
            limits="anything but the shapes world and its charts",
            record={"component": "adapter", **record},
        )


def around(
    language: PreTrainedModel, tower: CLIPVisionModel, tokenizer: Any
) -> LlavaForConditionalGeneration:
    """A LLaVA model of a tower and a language model, with a projector of random weights.

    `tokenizer` receives a token for places of pictures, and a chat template that knows pictures.

    Raises:
        InputError: LLaVA's class would change what the language model says.
    """
    ids = torch.arange(min(8, language.config.vocab_size))[None]
    with torch.no_grad():
        said = language(input_ids=ids).logits
    tokenizer.add_tokens([AddedToken(IMAGE, special=True, normalized=False)], special_tokens=True)
    tokenizer.chat_template = _IN_PARTS + tokenizer.chat_template
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    known = language.config.vocab_size
    if len(tokenizer) > known:
        language.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        for layer in (language.get_input_embeddings(), language.get_output_embeddings()):
            with torch.no_grad():
                layer.weight[known:] = layer.weight[:known].mean(0)
    config = LlavaConfig(
        vision_config=tower.config,
        text_config=language.config,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        vision_feature_layer=-1,
        tie_word_embeddings=language.config.tie_word_embeddings,
        bos_token_id=language.config.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    vlm = LlavaForConditionalGeneration(config)
    vlm.model.vision_tower = tower
    vlm.model.language_model = language.base_model
    vlm.lm_head = language.get_output_embeddings()
    vlm.tie_weights()
    own = language.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])} - {None}
    vlm.generation_config.eos_token_id = sorted(ends)
    with torch.no_grad():
        told = vlm.eval()(input_ids=ids).logits[..., : said.shape[-1]]
    if getattr(vlm.lm_head, "bias", None) is not None or not torch.allclose(told, said, rtol=1e-3):
        raise InputError(
            f"{type(language).__name__} does more with its hidden states than LLaVA's class does; "
            "take another language model"
        )
    return vlm


def changed(vlm: LlavaForConditionalGeneration) -> PeftModel:
    """The model with low-rank changes of its language model: they and the projector can learn."""
    linear = {
        name.rpartition(".")[2]
        for name, part in vlm.model.language_model.named_modules()
        if isinstance(part, nn.Linear)
    }
    config = LoraConfig(
        r=RANK,
        lora_alpha=2 * RANK,
        target_modules=rf"model\.language_model\..*\.({'|'.join(sorted(linear))})",
        modules_to_save=["multi_modal_projector"],
    )
    return get_peft_model(vlm, config)
