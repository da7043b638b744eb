"""transformers' `model.generate(..., custom_generate=FOLDER)`: speculation without another call."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from transformers import GenerationMixin, PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from .. import __version__
from ..errors import InputError
from ..methods import SpecConfig, config_of
from ..models.heads.loading import load_head
from ..pipelines.arguments import check_value, checked
from ..pipelines.vlm.beside import Beside
from ..pipelines.vlm.generate import KEPT, SpeculativeGeneration
from .assisted import assisted_method
from .exported import REQUIRED, write_folder

_NAMED = {*inspect.signature(GenerationMixin.generate).parameters}


class _Kept:
    """What the last call learned; it is not copied or stored with the model."""

    parts: tuple[Any, ...] = ()
    generation: Any = None

    def __reduce__(self) -> tuple[type[_Kept], tuple[()]]:
        return _Kept, ()


CODE = '''"""Speculative decoding by mmspec, which this only calls."""

from mmspec.integrations.custom_generate import generate

__all__ = ["generate"]
'''

CARD = """---
library_name: transformers
tags:
  - custom_generate
  - speculative-decoding
license: apache-2.0
---

# Speculative decoding by mmspec

`generate` with fewer calls of the model. What it writes follows the same distribution, and is the
same text where it is greedy. Unlike assisted generation it works on batches, on models that see,
and with draft heads.

```sh
pip install "mmspec>={version}"
```

```python
here = dict(custom_generate="FOLDER_OR_REPOSITORY", trust_remote_code=True)
model.generate(**inputs, max_new_tokens=200, **here)
```

`trust_remote_code` is transformers' word for code that lies beside a model. Here it is three lines
that import the installed package. Arguments of `generate` mean what they always do. Besides:

- `assistant_model=` is a draft model, with `tokenizer=` and `assistant_tokenizer=` if its words are
  others.
- `prompt_lookup_num_tokens=` copies drafts from the text in front, behind as many of the last
  tokens as `max_matching_ngram_size=` says.
- `assistant_early_exit=` drafts with as many of the model's own layers.
- `num_assistant_tokens=`, `num_assistant_tokens_schedule=` and `assistant_confidence_threshold=`
  say how long drafts are, in the call or in the draft model's own generation config.
- `speculation=` names any other method, with its settings: `"dynamic-tree[tree_nodes=24]"`.
- `draft_head=` is the folder or hub id of a draft head for this model.

The model keeps what a call learned, and its draft model or head, for the next one;
`mmspec.disable_speculation(model)` lets go of them.

Nothing given, drafts are copied from the text in front. What a call took is in
`model.speculation_stats` afterwards. What can't be honoured is refused in one line.
"""


@checked
def generate(
    model: PreTrainedModel,
    speculation: SpecConfig | str | None = None,
    assistant_model: PreTrainedModel | None = None,
    assistant_tokenizer: PreTrainedTokenizerBase | None = None,
    draft_head: str | Path | None = None,
    **arguments: Any,
) -> Any:
    """Generate as `model.generate` does, speculating.

    The model is tried out in the first call; further calls with the same parts reuse what that
    learned.

    Args:
        model: of transformers.
        speculation: how, such as "draft" or "dynamic-tree[tree_nodes=24]"; None: by what is given.
        assistant_model: a draft model; one with other words needs both tokenizers.
        assistant_tokenizer: its tokenizer, beside `tokenizer`.
        draft_head: folder or hub id of a draft head for this model; it is read once.
        arguments: of `generate`.

    Raises:
        InputError: the model or the combination can't speculate, or an argument can't be honoured.
    """
    # transformers hands over all that it can be given; None of a setting means something
    idle = [name for name, value in arguments.items() if value is None and name in _NAMED]
    given = {name: value for name, value in arguments.items() if name not in idle}
    speculation = assisted_method(speculation, assistant_model, given)
    check_value("tokenizer", given.get("tokenizer"), PreTrainedTokenizerBase | None)
    words: tuple[Any, Any] = (None, None)
    asked = None if speculation is None else config_of(speculation)
    if asked is not None and asked.resolve("vlm").rule.routes:
        words = given.get("tokenizer"), None  # it looks for the ends of sentences
    if assistant_tokenizer is not None:
        if given.get("tokenizer") is None:
            raise InputError("assistant_tokenizer needs tokenizer= beside it")
        words = given["tokenizer"], assistant_tokenizer
    if given.get("stop_strings") is None:
        given.pop("tokenizer", None)
    head = None if draft_head is None else str(draft_head)
    parts = str(speculation), id(assistant_model), head, tuple(map(id, words))
    kept = vars(model).setdefault(KEPT, _Kept())
    if kept.parts != parts:
        kind = "msd" if asked is not None and asked.method == "msd" else None
        loaded = None if head is None else load_head(head, kind=kind)
        beside = Beside(assistant_model, loaded, words)
        kept.generation = SpeculativeGeneration(model, speculation, beside)
        kept.parts = parts
    return kept.generation.generate(**given)


def write_custom_generate(folder: Path) -> None:
    """Write a repository of the Hub's layout for `custom_generate`.

    Raises:
        InputError: the folder holds something.
    """
    files = {"generate.py": CODE, "requirements.txt": REQUIRED}
    own = {f"custom_generate/{name}": text for name, text in files.items()}
    write_folder(folder, {**own, "README.md": CARD.replace("{version}", __version__)})
