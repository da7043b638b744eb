"""A vision-language model of transformers that answers, judges answers and reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import InputError
from ...models.transformers.prompt_inputs import process_questions, text_ids
from ...picture import open_picture

if TYPE_CHECKING:
    from ..vlm.pipeline import VlmPipeline

REASON = "{question}\nThink step by step about the image, then give the answer."


class TransformersExpert:
    """An `Expert` (see `verdict`) made of a model and its processor.

    It calls `model.generate`, so that a model with `mmspec.enable_speculation` speculates.

    Args:
        model: of transformers, one that generates text about images, in evaluation mode.
        processor: its processor, with a chat template.
        name: what reports call it; None: the model's name or type.
        answer_tokens, reason_tokens: most new tokens of an answer, of a reasoning path.
        reason_prompt: template of the question for a path, with `{question}`.
        generate: further arguments of `model.generate`; greedy unless they say otherwise.

    Attributes:
        tokens: generated, and of answers scored, so far.

    Raises:
        InputError: the model is in training mode, or the processor has no chat template.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        name: str | None = None,
        answer_tokens: int = 64,
        reason_tokens: int = 512,
        reason_prompt: str = REASON,
        generate: dict[str, Any] | None = None,
    ) -> None:
        if model.training:
            raise InputError("the model is in training mode; call model.eval() first")
        if not getattr(processor, "chat_template", None):
            kind = type(processor).__name__
            raise InputError(f"{kind} has no chat template; load the checkpoint's own processor")
        self.name = name or getattr(model, "name_or_path", "") or type(model).__name__
        self.model, self.processor, self.tokens = model, processor, 0
        self._limits, self._reason = (answer_tokens, reason_tokens), reason_prompt
        self._options = {"do_sample": False, **(generate or {})}
        # PaliGemma reads what is of type 0 both ways
        self._kind = int(getattr(model.config, "model_type", "") == "paligemma")

    @classmethod
    def of(cls, pipe: VlmPipeline, **how: Any) -> TransformersExpert:
        """A pipeline's model; `how` are further arguments. What it speculates with stays off."""
        return cls(pipe.model, pipe.processor, **how)

    def answer(self, images: Any, question: str) -> str:
        """A short answer."""
        return self._generate(images, question, self._limits[0])

    def reason(self, images: Any, question: str) -> str:
        """A reasoning path that ends in an answer."""
        return self._generate(images, self._reason.format(question=question), self._limits[1])

    @torch.inference_mode()
    def nll(self, images: Any, question: str, answers: Sequence[str]) -> list[float]:
        """Mean negative log-likelihood per token of each answer, in nats, in one forward pass.

        Answers follow the chat template's generation prompt; its end token does not count.

        Raises:
            InputError: an answer has no tokens.
        """
        prompt = self._inputs(images, question)
        texts = [text_ids(self.processor, text) for text in answers]
        if not all(texts):
            raise InputError("can't score an empty answer; leave it out")
        device = prompt["input_ids"].device
        ids = [torch.tensor(text, device=device) for text in texts]
        tokens = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)  # [A, L]
        lengths = torch.tensor([len(text) for text in texts], device=device)
        real = torch.arange(tokens.shape[1], device=device) < lengths[:, None]
        keep = tokens.shape[1] + 1
        logits = self.model(
            **continued(prompt, tokens, real, self._kind), logits_to_keep=keep, use_cache=False
        ).logits[:, -keep:-1]
        log_probs = logits.float().log_softmax(-1).gather(2, tokens[..., None])[..., 0]
        self.tokens += sum(map(len, texts))
        return (-(log_probs * real).sum(1) / lengths).tolist()

    def _generate(self, images: Any, question: str, limit: int) -> str:
        inputs = self._inputs(images, question)
        with torch.inference_mode():
            out = self.model.generate(**inputs, max_new_tokens=limit, **self._options)
        new = out[0, inputs["input_ids"].shape[1] :]
        self.tokens += len(new)
        return self.processor.tokenizer.decode(new, skip_special_tokens=True).strip()

    def _inputs(self, images: Any, question: str) -> dict[str, Tensor]:
        images = list(images) if isinstance(images, list | tuple) else [images]
        pictures = [open_picture(image) for image in images]
        return process_questions(self.processor, [pictures], [question], self.model)


def continued(
    prompt: dict[str, Any], tokens: Tensor, real: Tensor, kind: int = 0
) -> dict[str, Any]:
    """Inputs with a row per continuation: the prompt `[1, T]` and `tokens [A, L]`, right-padded.

    `kind` is what `token_type_ids` say of the continuation.
    """
    rows, width = tokens.shape
    shape = prompt["input_ids"].shape
    made: dict[str, Any] = {}
    for name, value in prompt.items():
        if not isinstance(value, Tensor):
            made[name] = value
            continue
        # pictures in the order of the rows, also where they are packed along the first axis
        made[name] = value.repeat(rows, *(1 for _ in value.shape[1:]))
        if value.shape == shape:  # one for each token, such as its type
            made[name] = F.pad(made[name], (0, width), value=kind * (name == "token_type_ids"))
    made["input_ids"] = torch.cat([prompt["input_ids"].expand(rows, -1), tokens], dim=1)
    ones = torch.ones(shape, dtype=torch.long, device=tokens.device)
    mask = prompt.get("attention_mask", ones).expand(rows, -1)
    made["attention_mask"] = torch.cat([mask, real.to(mask.dtype)], dim=1)
    return made
