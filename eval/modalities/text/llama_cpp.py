"""llama.cpp on the file that a model was read from, counted and timed as our loop is.

The package `llama-cpp-python` brings it. It computes in the bits of the file, ours in floats of the
same weights: its answers may differ, and its row is a peer's for speed. Where ours runs on rounded
weights, it has a row in as many bits.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ....engine.stats import SpecStats
from ....errors import InputError
from ....methods.registry import WEIGHTS
from ....models.embedded import made_once
from ....models.origins import origin_of
from ....models.packaged import PACKAGED
from ....models.transformers.gguf import SUFFIX
from ....pipelines.text.pipeline import TextPipeline
from ....pipelines.vlm.chat import Message
from ...run.job import Job
from ..vlm.answers import Answers
from ..vlm.peers import PEERS, drafted, until
from .talk import Talk, inputs_of

_, PEER = PEERS
TYPES = {8: ("Q8_0", 7), 16: ("F16", 1)}  # llama.cpp's own, and their numbers, by bits of ours
_ROUNDED = "model.gguf"


@dataclass(frozen=True)
class LlamaCpp:
    """A way to run llama.cpp.

    Attributes:
        file: in GGUF.
        bits: of a weight, which llama.cpp rounds the file to; None: as it is.
        lookup: tokens a round that its prompt lookup copies; 0: none.
    """

    file: Path
    lookup: int = 0
    bits: int | None = None

    def talk(self, pipe: TextPipeline, positions: int) -> Talk:
        """The variant of this way, over prompts as `pipe` lays them out.

        Args:
            positions: tokens that a conversation may have.
        """
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        threads = torch.get_num_threads()
        options: dict[str, Any] = {}
        if self.lookup:
            # what it implies by itself leaves too little room for prompts of several batches
            options["logits_all"] = True
            options["draft_model"] = LlamaPromptLookupDecoding(num_pred_tokens=self.lookup)
        model = Llama(
            str(self.file if self.bits is None else rounded(self.file, self.bits)),
            n_ctx=positions,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
            **options,
        )
        ends = pipe.model.generation_config.eos_token_id
        last = {*(ends if isinstance(ends, list) else [ends])}

        def answer(
            prompts: list[list[Message]], seeds: list[int], call: Mapping[str, Any]
        ) -> Answers:
            began = time.perf_counter()
            (messages,), (seed,) = prompts, seeds
            ids = inputs_of(pipe, messages)["input_ids"][0].tolist()
            tokens, stats = generate(model, ids, seed, call, last, began)
            return Answers(pipe.tokenizer.batch_decode([tokens], True), [tokens], stats)

        return Talk(answer, alone=True)


def generate(
    model: Any,
    ids: Sequence[int],
    seed: int,
    call: Mapping[str, Any],
    ends: set[int],
    began: float,
) -> tuple[list[int], SpecStats]:
    """The answer of a `llama_cpp.Llama` to a prompt of token ids, and what it took.

    Nothing is kept of the conversation before: it reads the whole prompt, as ours does. All up to
    the end of its first call is prefill, as with transformers, see `Peer.answer`.

    Args:
        call: arguments of a pipeline's call.
        ends: tokens that end an answer.
        began: when the prompt began to be laid out.
    """
    temperature = float(call.get("temperature", 0.0))
    how = {
        "top_k": call.get("top_k", 0) or -1,
        "top_p": call.get("top_p", 1.0),
        "min_p": 0.0,
        "temp": temperature,
        "repeat_penalty": 1.0,
    }
    limit, read, ended = call.get("max_new_tokens", 128), [], []
    evaluate = model.eval

    def watched(tokens: Sequence[int]) -> None:
        read.append(len(tokens))
        evaluate(tokens)
        ended.append(time.perf_counter())

    model.reset()
    model.set_seed(seed)
    model.eval = watched
    started = time.perf_counter()
    try:
        said: list[int] = []
        for token in model.generate(list(ids), **how):
            said.append(token)
            if token in ends or len(said) == limit:
                break
    finally:
        del model.eval
    over = time.perf_counter()
    tokens = until(said, ends)
    calls = len(read)
    seconds = {"encode": started - began, "prefill": ended[0] - started, "target": over - ended[0]}
    stats = SpecStats(
        "llama.cpp",
        "exact-rounded",
        calls=[calls],
        drafted=[0],
        accepted=[len(tokens) - calls],
        emitted=[len(tokens)],
        target_tokens=[sum(read) - len(ids) + 1],
        seconds=seconds,
    )
    return tokens, stats


def rounded(file: Path, bits: int) -> Path:
    """The file with its weights in another of llama.cpp's types, made in the cache once.

    Raises:
        InputError: llama.cpp can't round it, or the cache can't be written.
    """
    import llama_cpp

    name, number = TYPES[bits]

    def make(folder: Path) -> None:
        folder.mkdir()
        how = llama_cpp.llama_model_quantize_default_params()
        how.ftype, how.allow_requantize = number, True
        paths = (str(path).encode() for path in (file, folder / _ROUNDED))
        if llama_cpp.llama_model_quantize(*paths, how):
            raise InputError(f"llama.cpp can't round {file} to {name}")

    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return made_once(f"{file.stem}-{name}", digest, make) / _ROUNDED


def _file_of(model: str) -> Path | None:
    """The GGUF file of a model: a packaged one, a file, or that of a folder saved from either."""
    if model in PACKAGED:
        return PACKAGED[model].path
    origin = origin_of(Path(model))
    return Path(model if origin is None else origin.file)


def peers_of(job: Job) -> dict[str, LlamaCpp]:
    """The rows of llama.cpp in a run, by name.

    There are none where the package is missing, or the model comes from no file that it reads.
    """
    model = job.model or ""
    file = _file_of(model)
    if file is None or file.suffix != SUFFIX or find_spec("llama_cpp") is None:
        return {}
    found = {f"{PEER}plain": LlamaCpp(file)}
    for config in job.configs.values():
        if config.target_weights is not None:
            bits = WEIGHTS.get(config.target_weights).bits
            if bits in TYPES:
                found[f"{PEER}plain[{TYPES[bits][0]}]"] = LlamaCpp(file, bits=bits)
        if config.method == "prompt-lookup":
            found.setdefault(f"{PEER}prompt-lookup", LlamaCpp(file, int(drafted(config) or 0)))
    return found
