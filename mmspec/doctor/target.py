"""The target of a draft head: a causal or vision-language model, and prompts for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ..errors import InputError, reason
from ..files import read_object
from ..models.embedded import MODELS, readable
from ..models.loading import load_component
from ..models.tokenizer_folder import load_words
from ..models.transformers.probe import probed
from ..models.transformers.prompt_inputs import process_questions
from ..models.transformers.prompted import DECODERS, EncodedPrompt, PromptedDecoder
from ..models.transformers.vlm_folder import load_vlm
from ..picture import open_picture
from ..pipelines.model_folders import locate
from ..worlds.shapes.exchanges import draw, held_out_descriptions

PLAIN = (
    "Explain in a few sentences how a rainbow comes about.",
    "Write a short story about a fox who learns to count.",
    "List five uses of a paper clip, with a reason each.",
    "What does a compiler do? Answer for a child of ten.",
)
DESCRIBE = ("Describe this picture in detail.", "What can be seen here, and where?")
SIDE = 336  # px of drawn pictures
ASKED = 4  # questions of the shapes world
MASKS = 12  # tokens that are tried as a mask


@dataclass
class Target:
    """A model that a head drafts for.

    Attributes:
        folder: of its files.
        model: of transformers, in evaluation mode.
        tokenizer: its own; None: the folder holds none.
        processor: of a model that sees; None: it does not.
        decoder: the model as a target, tried out.
    """

    folder: Path
    model: PreTrainedModel
    tokenizer: Any
    processor: Any
    decoder: PromptedDecoder

    @classmethod
    def load(cls, name: str | None, dtype: torch.dtype, device: str = "cpu") -> Target:
        """The target of a folder, a hub id, or the name of an embedded model.

        Raises:
            InputError: there is no such model, or it can't speculate.
        """
        if (
            name is not None
            and not Path(name).exists()
            and (MODELS / name / "config.json").exists()
        ):
            name = f"embedded-{name}"
        folder = readable(locate(name, "vlm"))
        kind = str(read_object(folder / "config.json").get("model_type"))
        if kind in DECODERS.names():
            parts = load_vlm(folder, dtype)
            model, processor = parts["model"], parts["processor"]
            tokenizer = processor.tokenizer
        else:
            model, processor, tokenizer = _causal(folder, kind, dtype), None, _tokenizer(folder)
        model = model.to(device).requires_grad_(False)
        return cls(folder, model, tokenizer, processor, probed(model))

    @property
    def layers(self) -> int:
        """Decoder layers of the language model."""
        return len(self.decoder.layers)

    @property
    def vocab_size(self) -> int:
        """Logits V."""
        return self.decoder.vocab_size

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        config = self.model.generation_config
        found = None if config is None else config.eos_token_id
        if found is None:
            return ()
        return tuple(found) if isinstance(found, list | tuple) else (int(found),)

    @property
    def masks(self) -> list[int]:
        """Ids that may be a block's mask: tokens that stand for no text, the likeliest first."""
        tokens = self.tokenizer
        found: list[Any] = [self.vocab_size - 1]
        if tokens is not None:
            added = tokens.get_added_vocab()
            named = [number for name, number in added.items() if "mask" in name.lower()]
            # writers also take the first row that the tokenizer leaves unused
            free = [len(tokens), tokens.pad_token_id, tokens.eos_token_id, tokens.unk_token_id]
            found = [tokens.mask_token_id, *named, *free, *found, *sorted(added.values())]
        ids = (one for one in found if isinstance(one, int) and 0 <= one < self.vocab_size)
        return list(dict.fromkeys(ids))[:MASKS]

    def questions(
        self, prompts: Sequence[str], images: Sequence[str | Path]
    ) -> dict[str, tuple[list[str], list[Any]]]:
        """Texts and pictures to try, by name: "text", and "pictures" of a model that sees.

        Args:
            prompts: the user's own; empty: those of this file, or of the shapes world for a model
                that was trained there.
            images: the user's own pictures; each is shown with a prompt.

        Raises:
            InputError: a picture can't be read, or the model sees none.
        """
        if images and self.processor is None:
            raise InputError(f"{type(self.model).__name__} sees no pictures; leave --image out")
        texts = list(prompts) or list(PLAIN)
        out: dict[str, tuple[list[str], list[Any]]] = {"text": (texts, [None] * len(texts))}
        if self.processor is None:
            return out
        if images:
            seen = [open_picture(image) for image in images]
        elif self._of_shapes():
            lines = list(held_out_descriptions(ASKED, seed=1))
            seen = [Image.fromarray(draw(line.picture(), SIDE)) for line in lines]
            texts = list(prompts) or [line.question for line in lines]
            out = {"text": (texts, [None] * len(texts))}
        else:
            seen = [Image.new("RGB", (SIDE, SIDE), colour) for colour in ("teal", "orange")]
        asked = texts if prompts or self._of_shapes() else list(DESCRIBE)
        count = max(len(seen), len(asked))
        shown = [seen[n % len(seen)] for n in range(count)]
        out["pictures"] = [asked[n % len(asked)] for n in range(count)], shown
        return out

    def _of_shapes(self) -> bool:
        """True for a model with the embedded one's tokenizer, which knows the shapes world."""
        own, ours = self.folder / "tokenizer.json", MODELS / "vlm" / "tokenizer.json"
        return own.exists() and ours.exists() and own.read_bytes() == ours.read_bytes()

    def prompt(self, texts: Sequence[str], pictures: Sequence[Any], limit: int) -> Prompt:
        """Embedded prompts of questions, with `limit` tokens to come.

        Raises:
            InputError: the model has no tokenizer, or its processor refuses a question.
        """
        if self.processor is not None:
            shown = [[] if one is None else [one] for one in pictures]
            inputs: dict[str, Any] = process_questions(
                self.processor, shown, list(texts), self.model
            )
        else:
            inputs = self._encoded(list(texts))
        ids, mask = inputs.pop("input_ids"), inputs.pop("attention_mask").bool()
        with torch.inference_mode():
            return Prompt(ids, self.decoder.prompt(ids, mask, limit, **inputs))

    def _encoded(self, texts: list[str]) -> dict[str, Tensor]:
        tokens = self.tokenizer
        if tokens is None:
            raise InputError(f"{self.folder} holds no tokenizer, and prompts need one; add it")
        if getattr(tokens, "chat_template", None):
            turns = [[{"role": "user", "content": text}] for text in texts]
            how = {"add_generation_prompt": True, "tokenize": False}
            try:
                texts = [tokens.apply_chat_template(turn, **how) for turn in turns]
            except Exception as error:  # a template raises what its author wrote
                raise InputError(f"the chat template refuses a prompt: {reason(error)}") from error
            rows = [tokens(text, add_special_tokens=False)["input_ids"] for text in texts]
        else:
            rows = [tokens(text)["input_ids"] for text in texts]
        if not all(rows):
            raise InputError("a prompt has no token; say something")
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        mask = torch.arange(width) >= torch.tensor([[width - len(row)] for row in rows])
        device = self.model.device
        return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


@dataclass
class Prompt:
    """Prompts of a trial: ids `[R, T]`, and what the target reads."""

    ids: Tensor
    encoded: EncodedPrompt


def _causal(folder: Path, kind: str, dtype: torch.dtype) -> PreTrainedModel:
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if kind not in names:
        raise InputError(f"{folder}: {kind!r} is no model that writes text here")
    name = names[kind]
    network = getattr(transformers, name if isinstance(name, str) else name[0])
    model: PreTrainedModel = load_component(network, folder, dtype)
    return model


def _tokenizer(folder: Path) -> Any:
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    try:
        return load_words(AutoTokenizer, folder)
    except InputError:
        raise
    except Exception as error:  # the library raises what its parsers raise
        raise InputError(f"{folder}: its tokenizer can't be read: {reason(error)}") from error
