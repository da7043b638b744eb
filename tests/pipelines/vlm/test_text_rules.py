"""What looks at the text as it grows: processors and criteria of a user's own, grammars, scores.

The oracle is the unpatched `generate` of the same model, which hears the same.
"""

from __future__ import annotations

import copy
import json
import re

import pytest
import torch
import xgrammar
from knobs import with_knobs
from lmformatenforcer import RegexParser, TokenEnforcer
from lmformatenforcer.tokenenforcer import TokenEnforcerTokenizerData
from sizes import SMALL
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    StoppingCriteria,
    SynthIDTextWatermarkingConfig,
)
from xgrammar.contrib.hf import LogitsProcessor as OneUse

from mmspec import GrammarProcessor, SpecConfig, disable_speculation, enable_speculation
from mmspec.errors import InputError
from mmspec.eval.report.generate_trials import letters

WORDS = ["<pad>", "<start>", "<end>", *'{}":, abtruefls', "ab", '":', ', "', "true", '{"']
END = 2
NEW = 16
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5], [8, 9, 7, 9, 3, 2, 3]]
METHODS = ["plain", "prompt-lookup", "sjd", "draft", "dynamic-tree", "pearl", "layer-skip"]


def made(seed: int, layers: int):
    torch.manual_seed(seed)
    sizes = SMALL | dict(vocab_size=len(WORDS), num_hidden_layers=layers, head_dim=8)
    config = LlamaConfig(**sizes, bos_token_id=1, eos_token_id=None, pad_token_id=0)
    model = LlamaForCausalLM(config).double().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    return model


@pytest.fixture(scope="module")
def models():
    with torch.random.fork_rng():
        target, drafter = made(0, 3), made(0, 2)
    shared = target.state_dict()
    drafter.load_state_dict({name: shared[name] for name in drafter.state_dict()})
    return target, drafter


@pytest.fixture
def model(models):
    yield models[0]
    disable_speculation(models[0])


def padded(prompts=PROMPTS) -> dict[str, torch.Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.arange(width) >= torch.tensor([[width - len(p)] for p in prompts])
    return {"input_ids": ids, "attention_mask": mask.long()}


def both(models, method: str, asked, prompts=PROMPTS):
    """What `generate` gives without and with speculation; `asked` makes its arguments anew."""
    target, drafter = models
    config = with_knobs(method, "vlm", num_draft_tokens=4, window=5, tree_nodes=7)
    out = []
    for speculates in (False, True):
        if speculates:
            needs = "drafter" in config.resolve("vlm").needs
            enable_speculation(target, config, drafter if needs else None)
        torch.manual_seed(3)
        given = {"max_new_tokens": NEW, "do_sample": False, **asked()}
        out.append(target.generate(**padded(prompts), **given))
        disable_speculation(target)
    return out


class Own(LogitsProcessor):
    """Looks at the whole text and at the place in the batch."""

    def __call__(self, input_ids, scores):
        for row, text in enumerate(input_ids):
            scores[row, (text.sum() + 3 * row + len(text)) % scores.shape[1]] += 3.0
            scores[row, (text[-1] + 1 + row) % scores.shape[1]] = -torch.inf
        return scores


class Few:
    """Tokens that a prompt's answer may have; it knows no answer behind another one."""

    def __init__(self, width: int):
        self.width = width

    def __call__(self, prompt: int, text: torch.Tensor) -> list[int]:
        step = prompt + 2
        assert all(int(token) % step == 0 for token in text[self.width :])
        return [n for n in range(len(WORDS)) if n % step == 0]


TWICE = {"num_return_sequences": 2, "do_sample": True, "top_k": 1}


ASKED = pytest.mark.parametrize(
    "asked",
    [
        lambda: {"no_repeat_ngram_size": 2, "bad_words_ids": [[3], [5, 9]]},
        lambda: {"logits_processor": [Own()]},
        lambda: {"prefix_allowed_tokens_fn": Few(7)},
        lambda: {"prefix_allowed_tokens_fn": Few(7)} | TWICE,
        lambda: {"logits_processor": [Own()], "eos_token_id": [4, 5], "min_new_tokens": 3},
    ],
    ids=["of transformers", "own", "allowed", "several", "ends"],
)


@pytest.fixture(scope="module")
def unruled(models):
    return both(models, "plain", dict)[0]


@ASKED
@pytest.mark.parametrize("method", METHODS)
def test_processors_of_the_text(models, unruled, method, asked):
    theirs, ours = both(models, method, asked)
    assert not torch.equal(theirs[:1], unruled[:1])
    assert torch.equal(theirs, ours)


@ASKED
@pytest.mark.parametrize("method", ["plain", "sjd", "dynamic-tree"])
def test_processors_under_guidance(models, method, asked):
    theirs, ours = both(models, method, lambda: asked() | {"guidance_scale": 2.5})
    assert torch.equal(theirs, ours)


def test_a_draft_model_beside_the_target_has_laws_of_its_own(models):
    """In a thread: what the target looks at is not what the drafter's laws are of."""
    target, drafter = models
    asked = dict(no_repeat_ngram_size=2, return_dict_in_generate=True, output_scores=True)
    theirs, _ = both(models, "plain", lambda: asked)
    enable_speculation(target, SpecConfig("pearl", draft_beside="thread"), drafter)
    for _ in range(5):
        ours = target.generate(**padded(), max_new_tokens=NEW, do_sample=False, **asked)
        assert target.speculation_stats.fault is None
        assert torch.equal(theirs.sequences, ours.sequences)
        for mine, other in zip(ours.scores, theirs.scores, strict=True):
            assert torch.allclose(mine, other, atol=1e-5)
    disable_speculation(target)


def test_rows_that_wait_for_a_place(models):
    """Their place in the whole batch counts, not the row in which they run."""
    theirs, _ = both(models, "plain", lambda: {"logits_processor": [Own()]})
    enable_speculation(models[0], SpecConfig("prompt-lookup"))
    models[0].generate.__self__.at_once = 2
    ours = models[0].generate(**padded(), max_new_tokens=NEW, logits_processor=[Own()])
    disable_speculation(models[0])
    assert torch.equal(theirs, ours)


class Counts(LogitsProcessor):
    """Keeps a state, as xgrammar's own does."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        scores[:, self.calls % 9] = -torch.inf
        return scores


def test_a_processor_with_a_state_is_refused(model):
    enable_speculation(model, SpecConfig("sjd"))
    with pytest.raises(InputError, match=r"Counts answers one question in two .*GrammarProcessor"):
        model.generate(**padded(), max_new_tokens=4, logits_processor=[Counts()])


def test_a_rule_that_draws_again_in_place_reads_no_text(models, tmp_path, monkeypatch):
    """Those laws are asked for without the draft that the processors look at."""
    code = [
        "from mmspec.engine.accept.token import TokenRule",
        "class InPlace(TokenRule): local = 1",
    ]
    (tmp_path / "rules_in_place.py").write_text("\n".join(code))
    monkeypatch.syspath_prepend(tmp_path)
    enable_speculation(models[0], SpecConfig("draft", rule="rules_in_place:InPlace"), models[1])
    with pytest.raises(InputError, match="where tokens are drawn again in place"):
        models[0].generate(**padded(), max_new_tokens=4, no_repeat_ngram_size=2)
    disable_speculation(models[0])


def test_what_a_processor_raises_is_its_own(model):
    def fails(prompt, text):
        raise KeyError("no such text")

    enable_speculation(model, SpecConfig("sjd"))
    with pytest.raises(KeyError, match="no such text"):
        model.generate(**padded(), max_new_tokens=4, prefix_allowed_tokens_fn=fails)


# --- stopping criteria ----------------------------------------------------------------------------


class Said(StoppingCriteria):
    """Over where a text's sum can be divided, by another number in every row."""

    def __call__(self, input_ids, scores, **kwargs):
        return torch.tensor([int(text.sum()) % (5 + n) == 0 for n, text in enumerate(input_ids)])


class Third(StoppingCriteria):
    """Says in its ninth call that all is over, as one bool."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores, **kwargs):
        self.calls += 1
        return self.calls == 9


class Budget(LogitsProcessor):
    """Acts from its eighth call on, as budgets of thought do."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores if self.calls < 8 else scores.index_fill(1, torch.tensor([7]), 50.0)


def test_a_state_that_shows_later_is_refused_too(model):
    enable_speculation(model, SpecConfig("sjd"))
    with pytest.raises(InputError, match="Budget answers one question in two ways"):
        model.generate(**padded(), max_new_tokens=NEW, logits_processor=[Budget()])
    calls = []

    def allowed(prompt, text):
        calls.append(prompt)
        return [len(calls) % 20]

    with pytest.raises(InputError, match="prefix_allowed_tokens_fn answers one question in two"):
        model.generate(**padded(), max_new_tokens=NEW, prefix_allowed_tokens_fn=allowed)
    mark = SynthIDTextWatermarkingConfig(keys=[1, 2, 3], ngram_len=2)
    with pytest.raises(InputError, match="watermark SynthID"):
        model.generate(
            **padded(), max_new_tokens=4, do_sample=True, watermarking_config=mark, top_k=0
        )


class Strict(LogitsProcessor):
    """Forbids with a large number, and knows no answer behind what it forbids."""

    def __call__(self, input_ids, scores):
        assert not (input_ids[:, 7:] % 2).any()
        odd = torch.arange(scores.shape[1]) % 2 == 1
        return scores.masked_fill(odd, torch.finfo(scores.dtype).min)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_asked_behind_what_is_forbidden(models, method):
    theirs, ours = both(models, method, lambda: {"logits_processor": [Strict()]}, PROMPTS[:1])
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize("method", ["sjd", "dynamic-tree"])
def test_nothing_is_asked_behind_an_end(models, method):
    """A trie has no answer there; transformers does not ask for one row."""
    trie = {(): [3, 5, 6, 8], **{(n,): [4, END] for n in (3, 5, 6, 8)}}

    def allowed(prompt, text):
        said = tuple(text[7:].tolist())
        assert END not in said
        return trie.get(said, [END])

    asked = {"prefix_allowed_tokens_fn": allowed, "eos_token_id": END}
    for seed in range(8):
        torch.manual_seed(seed)
        both(models, method, lambda: asked | {"do_sample": True}, PROMPTS[:1])


class Lengths(StoppingCriteria):
    """Notes how long the texts were that it was asked about."""

    def __init__(self):
        self.lengths = []

    def __call__(self, input_ids, scores, **kwargs):
        self.lengths.append(input_ids.shape[1])
        return torch.zeros(1, dtype=torch.bool)  # one for all: transformers spreads it


def test_criteria_hear_of_texts_that_come_to_be_alone(models):
    notes = []

    def asked():
        notes.append(Lengths())
        return {"stopping_criteria": [notes[-1]], "eos_token_id": [4, 5, 7]}

    theirs, ours = both(models, "draft", asked, PROMPTS[:1])
    assert torch.equal(theirs, ours)
    assert notes[0].lengths == notes[1].lengths


class Longer(StoppingCriteria):
    """Over where a row has so many tokens."""

    def __init__(self, *lengths):
        self.lengths = torch.tensor(lengths)

    def __call__(self, input_ids, scores, **kwargs):
        return self.lengths[: len(input_ids)] <= input_ids.shape[1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lengths", [(9, 8, 15), (17, 10, 8), (9, 99, 9)], ids=str)
@pytest.mark.parametrize("pad", [0, None])
def test_rows_without_an_end_token_write_on_until_all_were_over(models, method, lengths, pad):
    """As in transformers, with the scores and the cache of what is left."""
    told = dict(return_dict_in_generate=True, output_scores=True, pad_token_id=pad)
    theirs, ours = both(models, method, lambda: told | {"stopping_criteria": [Longer(*lengths)]})
    assert theirs.sequences.shape[1] == min(max(lengths), 7 + NEW)
    assert torch.equal(theirs.sequences, ours.sequences)
    assert len(theirs.scores) == len(ours.scores)
    for mine, other in zip(ours.scores, theirs.scores, strict=True):
        assert torch.allclose(mine, other, atol=1e-5)
    assert ours.past_key_values.get_seq_length() == theirs.past_key_values.get_seq_length()


class Slow(LogitsProcessor):
    """Of the third row, tokens that no draft foresees."""

    def __call__(self, input_ids, scores):
        scores[2, int(input_ids[2].sum()) * 7 % scores.shape[1]] += 100.0
        return scores


class Heard:
    """A streamer that keeps what it hears."""

    def __init__(self):
        self.values, self.ended = [], 0

    def put(self, value):
        self.values.append(value.tolist())

    def end(self):
        self.ended += 1


def test_a_streamer_hears_what_is_given_out(models):
    """Not what rows have written while others were not over."""
    heard = []

    def asked():
        heard.append(Heard())
        ends = [Longer(8, 8, 13)]
        return {"logits_processor": [Slow()], "stopping_criteria": ends, "streamer": heard[-1]}

    theirs, ours = both((models[0], copy.deepcopy(models[0])), "draft", asked)
    assert torch.equal(theirs, ours)
    first, second = heard
    assert (second.values, second.ended) == (first.values, 1)


@pytest.mark.parametrize("method", METHODS)
def test_strings_of_rows_without_an_end_token(models, method):
    plain = both(models, "plain", dict)[0][:, 7:].tolist()
    tokenizer = letters()
    # where each row is over: early, late, or not at all
    for ends in ([row[n] for row, n in zip(plain, (1, 6, 9), strict=True)], [plain[0][2]]):
        asked = {
            "stop_strings": tokenizer.batch_decode([[t] for t in ends]),
            "tokenizer": tokenizer,
        }
        theirs, ours = both(models, method, lambda asked=asked: asked)
        assert torch.equal(theirs, ours)


@pytest.mark.parametrize("method", METHODS)
def test_criteria_of_ones_own(models, method):
    theirs, ours = both(
        models, method, lambda: {"stopping_criteria": [Said()], "eos_token_id": END}
    )
    ends = [int((row == 0).int().argmax()) for row in theirs[:, 7:]]
    assert len(set(ends)) > 1
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize("method", METHODS)
def test_criteria_are_asked_once_a_token(models, method):
    theirs, ours = both(models, method, lambda: {"stopping_criteria": [Third()]}, PROMPTS[:1])
    assert theirs.shape[1] == 7 + 9
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (lambda ids, scores: None, "gives NoneType"),
        (lambda ids, scores: scores[:, :5], r"\(1, 5\)"),
    ],
)
def test_a_processor_gives_as_many_scores_as_it_is_given(model, own, said):
    enable_speculation(model, SpecConfig("sjd"))
    with pytest.raises(InputError, match=rf"<lambda> .*{said}.*scores \(1, {len(WORDS)}\)"):
        model.generate(**padded(PROMPTS[:1]), max_new_tokens=4, logits_processor=[own])


# --- texts behind which nothing is allowed --------------------------------------------------------


def ends_at(width: int):
    """A criterion: the text is so long."""
    return lambda input_ids, scores, **kwargs: torch.tensor([input_ids.shape[1] >= width])


def up_to(width: int):
    """All tokens until the text is so long, and then none."""
    return lambda prompt, text: [*range(3, len(WORDS))] if len(text) < width else []


class NoneBehind(LogitsProcessor):
    """Leaves no token behind one of the answer."""

    def __init__(self, token: int):
        self.token = token

    def __call__(self, input_ids, scores):
        ended = (input_ids[:, -1] == self.token) & (input_ids.shape[1] > 7)
        return scores.masked_fill(ended[:, None], -torch.inf)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_never_read_may_allow_nothing(models, method):
    """A draft asks behind the text's end, and behind tokens that don't come to be."""
    ended = {"prefix_allowed_tokens_fn": up_to(12), "stopping_criteria": [ends_at(12)]}
    theirs, ours = both(models, method, lambda: ended, PROMPTS[:1])
    assert theirs.shape[1] == 12
    assert torch.equal(theirs, ours)
    said = both(models, method, dict)[0]
    unsaid = [token for token in range(3, len(WORDS)) if token not in said[:, 7:]]
    assert unsaid
    for token in unsaid:
        theirs, ours = both(models, method, lambda t=token: {"logits_processor": [NoneBehind(t)]})
        assert torch.equal(theirs, ours)


@pytest.mark.parametrize("more", [{"top_h": 1e-6}, {"eta_cutoff": 0.99, "top_k": 1}], ids=str)
def test_warpers_behind_what_is_never_read(models, more):
    """They want a law, where no token is left."""
    how = {"do_sample": True, "top_k": 0, **more}
    how |= {"prefix_allowed_tokens_fn": up_to(12), "stopping_criteria": [ends_at(12)]}
    theirs, ours = both(models, "draft", lambda: how, PROMPTS[:1])
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", [{}, {"do_sample": True, "top_k": 1}], ids=["greedy", "sampled"])
def test_a_text_that_nothing_may_follow_is_an_error(models, method, how):
    target, drafter = models
    config = with_knobs(method, "vlm", num_draft_tokens=4, window=5, tree_nodes=7)
    said = both(models, "plain", dict, PROMPTS[:1])[0][0, 7:].tolist()
    token = said[3]
    place = said.index(token) + 1
    needs = "drafter" in config.resolve("vlm").needs
    enable_speculation(target, config, drafter if needs else None)
    try:
        for rule in (
            {"logits_processor": [NoneBehind(token)]},
            {"prefix_allowed_tokens_fn": up_to(7 + place)},
        ):
            with pytest.raises(
                InputError, match=f"no token behind {place} tokens of row 0"
            ) as error:
                target.generate(**padded(PROMPTS[:1]), max_new_tokens=NEW, **{**how, **rule})
            assert "\n" not in str(error.value)
            # where the output ends there, nothing is asked for
            asked = {"max_new_tokens": place, "do_sample": False, **rule}
            assert target.generate(**padded(PROMPTS[:1]), **asked)[0, 7:].tolist() == said[:place]
    finally:
        disable_speculation(target)


# --- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"eos_token_id": [4, 5, 6, 7], "repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 2, "do_sample": True, "top_k": 1},
    ],
    ids=["plain", "ends", "processed"],
)
def test_scores_are_those_of_transformers(models, method, more):
    wanted = dict(return_dict_in_generate=True, output_scores=True, output_logits=True, **more)
    theirs, ours = both(models, method, lambda: wanted)
    assert torch.equal(theirs.sequences, ours.sequences)
    lengths = models_lengths(theirs.sequences[:, 7:], more.get("eos_token_id", ()))
    for name in ("scores", "logits"):
        getattr(ours, name)[0][0, 0] += 0  # a normal tensor, which its owner may edit
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert len(mine) == len(other) == theirs.sequences.shape[1] - 7
        for column, (a, b) in enumerate(zip(mine, other, strict=True)):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            for row, length in enumerate(lengths):
                if column < length:
                    assert torch.allclose(a[row], b[row], atol=1e-5)
                else:  # nothing was drawn here
                    assert not a[row].any()
    steps = models[0].compute_transition_scores(ours.sequences, ours.scores)
    assert steps.isfinite().all()


def models_lengths(tokens: torch.Tensor, ends) -> list[int]:
    found = [[n for n, token in enumerate(row) if token in ends] for row in tokens.tolist()]
    return [ends[0] + 1 if ends else tokens.shape[1] for ends in found]


def test_no_scores_where_nobody_asks(models):
    theirs, ours = both(models, "sjd", lambda: {"return_dict_in_generate": True})
    assert ours.scores is ours.logits is theirs.scores is None
    _, tokens = both(models, "sjd", lambda: {"output_scores": True})  # without the dict
    assert torch.equal(tokens, ours.sequences)


# --- grammars -------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["ab", "ba"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiled():
    info = xgrammar.TokenizerInfo(WORDS, stop_token_ids=[END])
    compiler = xgrammar.GrammarCompiler(info)
    return compiler.compile_json_schema(json.dumps(SCHEMA), any_whitespace=False)


def said(row: torch.Tensor) -> dict:
    tokens = row[7:].tolist()
    assert END in tokens
    return json.loads("".join(WORDS[token] for token in tokens[: tokens.index(END)]))


@pytest.mark.parametrize("method", METHODS)
def test_a_grammar_of_xgrammar(models, compiled, method):
    """Theirs is xgrammar's own processor, which can be used in transformers' loop alone."""
    target, _ = models
    bound = dict(max_new_tokens=30, eos_token_id=END)
    theirs = target.generate(
        **padded(), do_sample=False, logits_processor=[OneUse(compiled)], **bound
    )
    again, ours = both(
        models, method, lambda: bound | {"logits_processor": [GrammarProcessor(compiled, 7)]}
    )
    assert torch.equal(theirs, again)
    assert torch.equal(theirs, ours)
    for row in ours:
        assert said(row).keys() == {"a", "b"}


@pytest.mark.parametrize("method", ["sjd", "dynamic-tree"])
def test_a_grammar_of_each_row_and_sampled(models, compiled, method):
    info = compiled.tokenizer_info
    other = xgrammar.GrammarCompiler(info).compile_grammar('root ::= "[" [ab]+ "]"')
    several = xgrammar.GrammarCompiler(info).compile_grammar('root ::= "ab" "ab"? "true"')
    grammar = GrammarProcessor([compiled, several, compiled], 7)
    _, ours = both(
        models,
        method,
        lambda: dict(
            max_new_tokens=30, eos_token_id=END, do_sample=True, logits_processor=[grammar]
        ),
    )
    assert {"a", "b"} == said(ours[0]).keys() == said(ours[2]).keys()
    text = "".join(WORDS[token] for token in ours[1, 7:] if token > END)
    assert re.fullmatch("ab(ab)?true", text)
    with pytest.raises(InputError, match="2 grammars for 3 rows"):
        GrammarProcessor([other, several], 7)(torch.zeros(3, 7), torch.zeros(3, len(WORDS)))


@pytest.mark.parametrize(
    ("grammar", "length", "said"),
    [
        ("root ::= [ab]", 7, "must be an xgrammar.CompiledGrammar, not a str"),
        ([None], 7, "not a NoneType"),
        (..., "7", "prompt_length must be 0 or more, not '7'"),
        (..., -1, "prompt_length must be 0 or more, not -1"),
    ],
)
def test_what_is_no_grammar_is_refused(compiled, grammar, length, said):
    with pytest.raises(InputError, match=said):
        GrammarProcessor(compiled if grammar is ... else grammar, length)


def test_a_grammar_takes_each_token_in_once(compiled):
    """Rows that are asked about in turn do not undo each other's state."""
    grammar = GrammarProcessor(compiled, 0)
    taken = []
    text = [WORDS.index(word) for word in ('{"', "a", '":', " ", "true")]
    scores = torch.zeros(len(WORDS))
    for count in range(len(text) + 1):
        for row in range(3):
            grammar.of_row(row, 3, torch.tensor(text[:count]), scores)
            if not count and not row:
                for matcher in grammar._matchers:
                    taken.append(Counted(matcher))
                grammar._matchers = taken
    assert [matcher.taken for matcher in taken] == [len(text)] * 3


class Counted:
    def __init__(self, matcher):
        self.matcher, self.taken = matcher, 0

    def accept_token(self, token):
        self.taken += 1
        return self.matcher.accept_token(token)

    def __getattr__(self, name):
        return getattr(self.matcher, name)


def test_xgrammars_own_processor_is_refused(model, compiled):
    enable_speculation(model, SpecConfig("sjd"))
    with pytest.raises(
        InputError, match=r"answers one question in two ways.*mmspec\.GrammarProcessor"
    ):
        model.generate(**padded(), max_new_tokens=9, logits_processor=[OneUse(compiled)])


@pytest.mark.parametrize("method", METHODS)
def test_a_function_of_lm_format_enforcer(models, method):
    words = [(n, word, True) for n, word in enumerate(WORDS) if n > END]

    def spelled(tokens: list[int]) -> str:
        return "".join(WORDS[token] for token in tokens if token > END)

    data = TokenEnforcerTokenizerData(words, spelled, END, False, len(WORDS))
    enforcer = TokenEnforcer(data, RegexParser("(ab|true|[fls]){3,6}"))

    def allowed(prompt: int, text: torch.Tensor) -> list[int]:
        tokens = text[7:].tolist()
        # transformers asks about rows that are over
        return enforcer.get_allowed_tokens(tokens).allowed_tokens if END not in tokens else [END]

    theirs, ours = both(
        models, method, lambda: {"prefix_allowed_tokens_fn": allowed, "eos_token_id": END}
    )
    assert torch.equal(theirs, ours)
    assert re.fullmatch("(ab|true|[fls]){3,6}", spelled(ours[0, 7:].tolist()))
