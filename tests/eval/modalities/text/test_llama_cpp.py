"""llama.cpp as a peer: its rows, what is counted, and the package itself where it is installed."""

from __future__ import annotations

import json
import shutil
import sys
import types
from pathlib import Path

import gguf_files
import pytest
import texts
import torch

import mmspec
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.eval.modalities.base import MODALITIES
from mmspec.eval.modalities.text import llama_cpp
from mmspec.eval.modalities.text.talk import inputs_of
from mmspec.eval.run.job import Job
from mmspec.eval.schema import Report
from mmspec.eval.suite import load_suite
from mmspec.eval.sweeps import parse_methods
from mmspec.models.transformers.gguf import load_gguf

TURNS = ["the cat saw", "and the dog"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A tiny model in GGUF, which transformers reads."""
    words = texts.tokenizer()
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return gguf_files.write_gguf(path, texts.model(words).float(), words)


@pytest.fixture
def package(monkeypatch, file):
    """The package's interface over transformers' own model, one call a round, with its lookup."""
    model = load_gguf(file, torch.float64, ["model"])["model"]

    class Lookup:
        def __init__(self, max_ngram_size=2, num_pred_tokens=10):
            self.count = num_pred_tokens

        def __call__(self, ids):
            for start in range(len(ids) - 1):
                if ids[start] == ids[-1]:
                    return ids[start + 1 : start + 1 + self.count]
            return []

    class Llama:
        def __init__(
            self,
            path,
            *,
            n_ctx,
            n_threads,
            n_threads_batch,
            verbose,
            logits_all=False,
            draft_model=None,
        ):
            assert logits_all == (draft_model is not None)
            assert Path(path).read_bytes()[:4] == b"GGUF"
            assert n_threads == n_threads_batch == torch.get_num_threads()
            self.limit, self.lookup, self.ids = n_ctx, draft_model, []

        def reset(self):
            self.ids = []

        def set_seed(self, seed):
            self.generator = torch.Generator().manual_seed(seed)

        def eval(self, tokens):
            self.ids += tokens

        def generate(self, tokens, *, top_k, top_p, min_p, temp, repeat_penalty):
            assert (top_k, top_p, min_p, repeat_penalty) == (-1, 1.0, 0.0, 1.0)
            given, drafted = list(tokens), 0
            while True:
                self.eval(given)
                known = len(self.ids) - drafted
                with torch.no_grad():
                    logits = model(torch.tensor([self.ids])).logits[0]
                for place in range(known - 1, len(self.ids)):
                    row = logits[place]
                    if temp:
                        law = (row / temp).softmax(-1)
                        token = int(torch.multinomial(law, 1, generator=self.generator))
                    else:
                        token = int(row.argmax())
                    yield token
                    if place + 1 == len(self.ids) or self.ids[place + 1] != token:
                        del self.ids[place + 1 :]
                        break
                copied = list(self.lookup([*self.ids, token])) if self.lookup else []
                given, drafted = [token, *copied], len(copied)

    def quantize(source, made, how):
        assert how.allow_requantize
        if how.ftype == 1:
            return 1  # what it can't round
        shutil.copy(source.decode(), made.decode())
        return 0

    fake = types.ModuleType("llama_cpp")
    fake.Llama, fake.llama_model_quantize = Llama, quantize
    fake.llama_model_quantize_default_params = types.SimpleNamespace
    fake.__spec__ = types.SimpleNamespace(name="llama_cpp")
    inner = types.ModuleType("llama_cpp.llama_speculative")
    inner.LlamaPromptLookupDecoding = Lookup
    monkeypatch.setitem(sys.modules, "llama_cpp", fake)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", inner)
    monkeypatch.setattr(llama_cpp, "find_spec", lambda name: fake.__spec__)


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "question.jsonl"
    lines = [{"turns": TURNS, "category": "a"}, {"turns": TURNS[1:], "category": "b"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "short.yaml"
    path.write_text(
        "summary: s\nsource: prompts\npipeline: text\nspeed: 2\nbatches: [2]\npeers: true\n"
        "call: {max_new_tokens: 12}\n"
        "calls: {greedy: {temperature: 0.0}, sampled: {temperature: 1.0}}\n"
    )
    return path


def run(file, prompts, suite, out):
    words = ["eval", "run", "--suite", suite, "--model", file, "--prompts", prompts, "-o", out]
    assert main([*map(str, words), "--methods", "plain,prompt-lookup[num_draft_tokens=4]"]) == 0
    every = map(json.loads, (out / "samples.jsonl").read_text().splitlines())
    return Report.read(out).methods, list(every)


def test_its_rows(package, file, prompts, suite, tmp_path):
    rows, lines = run(file, prompts, suite, tmp_path / "out")
    answers = {(x["method"], x["index"]): x for x in lines if x["kind"] == "quality"}
    for name in ("llama.cpp:plain", "llama.cpp:prompt-lookup"):
        row = rows[f"{name}@greedy"]
        assert (row.role, row.contract) == ("peer", "exact-rounded")
        for index in range(2):
            plain, own = answers["plain@greedy", index], answers[f"{name}@greedy", index]
            assert own["turns"] == plain["turns"]
            assert "gap" not in own
        assert row.throughput == {}  # one prompt at a time
        assert f"{name}@sampled" in rows
    assert rows["llama.cpp:plain@greedy"].mean_acceptance_length == 1
    assert rows["llama.cpp:prompt-lookup@greedy"].mean_acceptance_length > 1.2
    stats = [
        x["stats"]
        for x in lines
        if x["kind"] == "speed" and x["method"] == "llama.cpp:prompt-lookup@greedy"
    ]
    for one in stats:
        assert sum(one["accepted"]) == sum(one["emitted"]) - sum(one["calls"])
        assert sum(one["target_tokens"]) >= sum(one["emitted"])
        assert {"encode", "prefill", "target"} == set(one["seconds"])


def test_what_is_counted(package, file):
    """A plain answer takes a call a token, the first of which reads the whole prompt."""
    model = sys.modules["llama_cpp"].Llama(
        str(file),
        n_ctx=64,
        n_threads=torch.get_num_threads(),
        n_threads_batch=torch.get_num_threads(),
        verbose=False,
    )
    call = {"max_new_tokens": 5}
    tokens, stats = llama_cpp.generate(model, [5, 9, 12], 0, call, set(), 0.0)
    assert (len(tokens), stats.calls, stats.target_tokens) == (5, [5], [5])
    assert llama_cpp.generate(model, [5, 9, 12], 0, call, set(), 0.0)[0] == tokens
    ended, stats = llama_cpp.generate(model, [5, 9, 12], 0, call, {tokens[1]}, 0.0)
    first = tokens.index(tokens[1]) + 1
    assert (ended, stats.emitted) == (tokens[:first], [first])


def test_a_row_in_as_many_bits(package, file, prompts, monkeypatch, tmp_path):
    """Where ours runs on rounded weights, from a copy in the cache that is made once."""
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    modality, suite = MODALITIES["text"], load_suite("spec-bench")
    methods = parse_methods(("plain", "plain[target_weights=int8]"))
    job = Job(suite, modality.items(suite, prompts), methods, {}, model=str(file))
    found = llama_cpp.peers_of(job)
    assert list(found) == ["llama.cpp:plain", "llama.cpp:plain[Q8_0]"]
    assert "llama.cpp:plain[Q8_0]@greedy" in job.rows
    made = llama_cpp.rounded(file, 8)
    assert made == llama_cpp.rounded(file, 8)
    assert made.read_bytes() == file.read_bytes()
    with pytest.raises(InputError, match=r"llama.cpp can't round .*tiny\.gguf to F16"):
        llama_cpp.rounded(file, 16)
    assert [path.name[:9] for path in (tmp_path / "cache").iterdir()] == ["tiny-Q8_0"]
    pipe = mmspec.TextPipeline.from_pretrained(file)
    talk = found["llama.cpp:plain[Q8_0]"].talk(pipe, 64)
    told = [[{"role": "user", "content": TURNS[0]}]]
    assert talk.answer(told, [0], {"max_new_tokens": 5}).tokens


def test_its_prompt_lookup_copies_where_a_policy_chooses_how_far(package, file, prompts):
    modality, suite = MODALITIES["text"], load_suite("spec-bench")
    methods = parse_methods(("plain", "prompt-lookup[length=goodput]"))
    job = Job(suite, modality.items(suite, prompts), methods, {}, model=str(file))
    found = llama_cpp.peers_of(job)
    assert found["llama.cpp:prompt-lookup"] == llama_cpp.LlamaCpp(file, 4)


@pytest.mark.parametrize("model", [None, "runs/model", "smollm2-of-mine.safetensors"])
def test_where_it_has_no_rows(package, model, prompts):
    modality = MODALITIES["text"]
    suite = load_suite("spec-bench")
    job = Job(suite, modality.items(suite, prompts), parse_methods(("plain",)), {}, model=model)
    assert llama_cpp.peers_of(job) == {}


def test_without_the_package_it_has_no_rows(monkeypatch, file, prompts):
    modality = MODALITIES["text"]
    suite = load_suite("spec-bench")
    items = modality.items(suite, prompts)
    monkeypatch.setattr(llama_cpp, "find_spec", lambda name: None)
    job = Job(suite, items, parse_methods(("plain",)), {}, model=str(file))
    assert llama_cpp.peers_of(job) == {}
    assert job.rows == [f"{who}plain@{call}" for call in job.calls for who in ("", "transformers:")]


@pytest.mark.llama_cpp
def test_the_package_itself(file, prompts, suite, tmp_path):
    """Its greedy answers are ours: the file's floats are not rounded."""
    rows, lines = run(file, prompts, suite, tmp_path / "out")
    answers = {(x["method"], x["index"]): x for x in lines if x["kind"] == "quality"}
    for name in ("llama.cpp:plain", "llama.cpp:prompt-lookup"):
        for index in range(2):
            told = answers[f"{name}@greedy", index]["turns"]
            assert told == answers["plain@greedy", index]["turns"]
    assert rows["llama.cpp:prompt-lookup@greedy"].mean_acceptance_length > 1.2


@pytest.mark.llama_cpp
@pytest.mark.parametrize("bits", llama_cpp.TYPES)
def test_the_package_rounds(file, monkeypatch, tmp_path, bits):
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path))
    made = llama_cpp.rounded(file, bits)
    sizes = made.stat().st_size, file.stat().st_size
    assert sizes[0] < sizes[1]
    pipe = mmspec.TextPipeline.from_pretrained(file)
    told = [[{"role": "user", "content": TURNS[0]}]]
    answer = llama_cpp.LlamaCpp(file, bits=bits).talk(pipe, 64).answer(told, [0], {})
    assert answer.stats.emitted == [len(answer.tokens[0])]


@pytest.mark.llama_cpp
def test_prompts_of_several_batches(tmp_path, monkeypatch):
    """The package reads 512 tokens at once."""
    monkeypatch.setattr(texts, "POSITIONS", 2048)
    words = texts.tokenizer()
    file = gguf_files.write_gguf(tmp_path / "long.gguf", texts.model(words).float(), words)
    pipe = mmspec.TextPipeline.from_pretrained(file)
    told = [[{"role": "user", "content": "the cat saw the dog. " * 150}]]
    plain = pipe(told, max_new_tokens=20)
    assert inputs_of(pipe, told[0])["input_ids"].shape[1] > 512
    for lookup in (0, 4):
        talk = llama_cpp.LlamaCpp(file, lookup).talk(pipe, 2048)
        assert talk.answer(told, [0], {"max_new_tokens": 20}).tokens == plain.tokens
