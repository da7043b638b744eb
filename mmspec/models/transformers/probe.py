"""Trial of a model on a few tokens, beside its own forward pass: can it be sped up?

A model is taken if its logits over our cache and masks (padded rows, two branches, a branch kept)
are those of its own forward pass. Windows are narrowed meanwhile, to be seen at this length.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...engine.draft import Draft
from ...engine.laws import OneHot
from ...errors import InputError
from ..guided import GuidedDecoder
from ..setting import Setting
from .entry_cache import Folding
from .masks import STATEFUL, Masks
from .prompted import PromptedDecoder, prompted

NARROW = 3  # a window that the trial sees
KINDS = ("full_attention", "sliding_attention", *STATEFUL, "hybrid", "hybrid_sliding", "mlp", "moe")
WINDOW = re.compile(r"\w+_window(_size|_len)?|window_size")
CLOSE = {torch.float64: 1e-6, torch.float32: 2e-3}  # most deviation, see `_deviation`
COARSE = 0.1  # in other types
REASONS = (  # against a model, step by step
    "its logits over embeddings, positions and a cache of ours are not its own",
    "a padded row says something else than it does alone",
    "it does not heed the masks or positions of a draft",
    "it does not go on from the branch that was kept",
)
# the trial: two prompts, behind each two siblings and a child of the first, then one token more
PROMPTS, SIBLINGS, CHILD, NEXT = ((0, 1, 2, 3, 4), (5, 1, 6)), (7, 2), 3, 8


def probed(model: PreTrainedModel) -> PromptedDecoder:
    """The decoder of a transformers model, tried out.

    Raises:
        InputError: the model can't speculate, and why.
    """
    decoder = prompted(model)
    if decoder.reads_text:
        decoder.refresh()
        probe(decoder)
    return decoder


def probe(decoder: PromptedDecoder) -> None:
    """Try a model out, and settle how it takes masks.

    Raises:
        InputError: its logits over our cache would be others than its own.
    """
    name, stated = type(decoder.model).__name__, decoder.masks
    _check_kinds(decoder)
    with decoder.generating({}), _prepared(decoder):
        try:
            truth = _own(decoder)
            close = max(CLOSE.get(t.dtype, COARSE) for t in (truth[0], decoder.embeddings))
            fault = _settle(decoder, truth, close)
            if fault is not None:  # does it say the same twice? layers in few bits may not
                noise = max(map(_deviation, _own(decoder, alone=True), truth))
                fault = _settle(decoder, truth, 3 * noise) if 3 * noise > close else fault
        except (torch.OutOfMemoryError, InputError):
            raise
        except Exception as error:
            said = f"its own forward pass fails on a few tokens ({_line(error)})"
            raise _refused(name, said) from error
    # the window as it is, where the masks have one
    found = decoder.masks
    decoder.masks = Masks(stated.window if found.window else None, found.kinds)
    if fault is not None:
        raise _refused(name, fault)
    kinds, window = (getattr(decoder.config, n, None) for n in ("layer_types", "sliding_window"))
    slides = any("sliding" in kind for kind in kinds) if kinds else window is not None
    if found.window is None and slides:
        raise _refused(name, "its config states a window, and its masks do not heed it")


def _settle(decoder: PromptedDecoder, truth: list[Tensor], close: float) -> str | None:
    """Find the way that it takes masks, the stated one first; what goes wrong if there is none."""
    stated = Masks.stated(decoder.config)  # with the narrow window
    faults = []
    for way in dict.fromkeys((stated, Masks(stated.window), Masks())):
        decoder.masks = way
        fault = _trial(decoder, truth, close)
        if fault is None:
            return None
        faults.append(fault)
    return faults[0]


def _trial(decoder: PromptedDecoder, truth: list[Tensor], close: float) -> str | None:
    """The fault of the model over our cache; None: there is none."""
    try:
        for ours, own, reason in zip(_ours(decoder), truth, REASONS, strict=True):
            if decoder.recurrent.modules:  # whose kernels are in float32, whatever the model is in
                close = max(close, CLOSE[torch.float32])
            if not _deviation(ours, own) <= close:  # nor if it is no number
                fault = reason
                break
        else:
            return None
    except torch.OutOfMemoryError:
        raise
    except InputError as error:
        return str(error)
    except Exception as error:  # whatever a model does that was not made for this
        fault = f"its code fails over a cache of ours ({_line(error)})"
    taken = inspect.signature(type(decoder.model).forward).parameters
    if "position_ids" not in taken and not decoder.recurrent.modules:
        return "it takes no positions, and the tokens of a draft need theirs"
    return fault


def _ours(decoder: PromptedDecoder) -> Iterator[Tensor]:
    """Logits over our cache, step by step."""
    ids = _ids(decoder)
    tensor = partial(torch.tensor, device=ids.device)
    width = max(map(len, PROMPTS))
    text = tensor([[0] * (width - len(p)) + list(p) for p in PROMPTS])
    mask = tensor([[n >= width - len(p) for n in range(width)] for p in PROMPTS])
    prompt = decoder.prompt(ids[text], mask, limit=4)
    decoder.place(prompt)
    guided = GuidedDecoder(
        decoder, Setting(prompt.embedded, mask, None, lambda logits: logits, 4, 0, 4)
    )
    guided.back = len(SIBLINGS) + 1  # a ring that closes within the trial
    guided.start(len(PROMPTS))
    nodes, parents = ids[tensor([[*SIBLINGS, CHILD]] * 2)], tensor([[-1, -1, 0]] * 2)
    draft = Draft(nodes, tensor([3, 3]), OneHot(), parents)
    root = torch.cat([nodes[:, :1], nodes], dim=1)  # the first token is the prompt's last
    logits = guided.extend(root, [-1, -1], draft)
    yield logits[:1, 0]
    yield logits[1:, 0]
    yield logits[:, 1:]
    guided.keep([-1, -1], tensor([[0, 2]] * 2))
    yield guided.extend(ids[tensor([[NEXT]] * 2)], [2, 2])


def _own(decoder: PromptedDecoder, alone: bool = False) -> list[Tensor]:
    """The same of the model's own forward pass.

    Args:
        alone: every text by itself; else all in one call, where nothing reads what stands behind.
    """
    ids = _ids(decoder)
    first, second = SIBLINGS
    lines = [[*p, first, CHILD, NEXT] for p in PROMPTS] + [[*p, second] for p in PROMPTS]
    width = 0 if alone else max(map(len, lines))
    lines = [line + [0] * (width - len(line)) for line in lines]
    out: list[Tensor] = []
    for text in [[line] for line in lines] if alone else [lines]:
        inputs = ids[torch.tensor(text, device=ids.device)]
        out += decoder.model(input_ids=inputs, use_cache=False).logits
    rows = [(n, len(p) - 1) for n, p in enumerate(PROMPTS)]
    nodes = [torch.stack([out[n][e + 1], out[n + 2][e + 1], out[n][e + 2]]) for n, e in rows]
    last = torch.stack([out[n][e + 3] for n, e in rows])
    return [*(out[n][None, e] for n, e in rows), torch.stack(nodes), last[:, None]]


def _ids(decoder: PromptedDecoder) -> Tensor:
    """Nine words of the vocabulary, none of them of a special meaning."""
    special: set[int] = set()
    for config in (decoder.model.config, decoder.config):
        for name, value in config.to_dict().items():
            if name.endswith(("_token_id", "_token_index", "_token_ids")):
                special |= set(value if isinstance(value, list) else [value])
    plain = [n for n in range(min(decoder.vocab_size, 4096)) if n not in special] or [0]
    step = max(1, len(plain) // 9)
    return torch.tensor(
        [plain[n * step % len(plain)] for n in range(9)], device=decoder.embeddings.device
    )


def _deviation(ours: Tensor, own: Tensor) -> float:
    """Distance of logits over their spread; all of a law may be shifted alike."""
    spread = own.double() - own.double().mean(-1, keepdim=True)
    difference = ours.double() - own.double()
    difference = difference - difference.mean(-1, keepdim=True)
    return float(difference.pow(2).mean().sqrt() / spread.pow(2).mean().sqrt())


def _check_kinds(decoder: PromptedDecoder) -> None:
    """Refuse what may begin only behind more tokens than the trial has."""
    name, config = type(decoder.model).__name__, decoder.config
    others = set(getattr(config, "layer_types", None) or ()) - set(KINDS)
    if others:
        raise _refused(name, f"it has layers of the kind {', '.join(sorted(others))}")
    if any(hasattr(module, "vocab_offset") for module in decoder.model.modules()):
        raise _refused(name, "it looks some tokens up in tables of pictures and sounds")
    if getattr(config, "attention_type", None) == "block_sparse":
        raise _refused(name, "its attention is block-sparse in long texts")
    windows = {"sliding_window", (config.attribute_map or {}).get("sliding_window")}
    for field, value in vars(config).items():
        known = field in windows or isinstance(value, bool) or not value
        if not known and WINDOW.fullmatch(field):
            raise _refused(name, f"its config states {field}, a window of another kind")


@contextmanager
def _prepared(decoder: PromptedDecoder) -> Iterator[None]:
    """Evaluation mode, without graphs of any kind and with `NARROW` windows; then as it was."""
    training = [module for module in decoder.model.modules() if module.training]
    window = getattr(decoder.config, "sliding_window", None)
    decoder.model.eval()
    if window is not None:
        decoder.config.sliding_window = NARROW
    folding, decoder.recurrent.folding = decoder.recurrent.folding, Folding(1, 1)
    try:
        with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        decoder.forget()
        decoder.recurrent.folding = folding
        if window is not None:
            decoder.config.sliding_window = window
        for module in training:
            module.training = True


def _refused(name: str, reason: str) -> InputError:
    return InputError(f"{name} can't speculate: {reason}")


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:100]}".removesuffix(": ")
