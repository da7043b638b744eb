"""The page of `generate`'s arguments says what is true here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmspec.eval.report.generate_arguments import argument_trials, arguments
from mmspec.eval.report.generate_trials import BESIDE, TRIALS
from mmspec.eval.report.table import escape

PAGE = (Path(__file__).parents[3] / "pipelines" / "generate.md").read_text()
MAY_BE_REFUSED = {  # of other ways to search, and of what our loop does not keep
    *("num_beams", "num_beam_groups", "diversity_penalty", "length_penalty", "early_stopping"),
    *("constraints", "force_words_ids", "penalty_alpha", "dola_layers", "token_healing"),
    *("custom_generate", "assistant_model", "prompt_lookup_num_tokens", "use_mtp"),
    *("output_attentions", "output_hidden_states", "synced_gpus"),
}
VERDICTS = {"honoured", "without effect", "refused", "refused by transformers"}


def test_every_argument_is_tried():
    assert not arguments() - TRIALS.keys() - BESIDE


@pytest.mark.parametrize("method", ["sjd", "prompt-lookup"])
def test_the_page_is_true_of_every_argument(method):
    stated = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| (.*) \|$", PAGE, re.M)
    tried = [(one.name, one.verdict, escape(one.note)) for one in argument_trials(method)]
    assert {name for name, verdict, _ in tried if verdict == "refused"} <= MAY_BE_REFUSED
    assert {verdict for _, verdict, _ in tried} <= VERDICTS
    wrong = set(tried) ^ set(stated)
    assert not wrong, "make it anew: mmspec eval arguments --into pipelines/generate.md"
