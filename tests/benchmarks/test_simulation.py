"""Time by simulation: schedules against sums done by hand, records against runs that happened."""

import json
import sys

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.simulation import measure as measuring
from benchmarks.simulation.costs import (
    Costs,
    Round,
    by_width,
    draft_calls,
    draft_calls_beside,
    quartiles,
)
from benchmarks.simulation.measure import Subject, methods_of
from benchmarks.simulation.schedules import (
    Text,
    drafting,
    drafting_ahead,
    mirrored,
    plain,
    seconds_of,
)
from mmspec import VlmPipeline
from mmspec.eval.modalities.base import MODALITIES
from mmspec.eval.run.job import Job
from mmspec.eval.suite import load_suite
from mmspec.eval.sweeps import parse_methods

COSTS = Costs({0: 9.0, 4: 13.0}, {0: 1.0}, {1: 2.0, 11: 4.0})


def text(stands, limit=None, early=None):
    """A text of places that stand (1) or fall (0)."""
    known = np.array(stands, dtype=bool)
    ranks = None if early is None else np.array(early)
    return Text(known, limit or len(known), ranks)


def test_plain_is_a_call_a_token():
    assert seconds_of(plain, text([0] * 7), COSTS) == 70


def test_drafting_takes_its_turns_on_one_device():
    # 4 of 4 stand and one more; 1 of 4; 1 of the 2 that there is room for; and room for none
    out = text([1, 1, 1, 1, 0, 1, 0, 1, 0, 0])
    rounds = [4 * 2 + 14, 4 * 2 + 14, 2 * 2 + 12, 0 + 10]
    assert seconds_of(drafting(4), out, COSTS) == sum(rounds)
    assert seconds_of(drafting(4), text([0, 0, 0]), COSTS) == (2 * 2 + 12) + (1 * 2 + 11) + 10


def test_a_text_that_ends_early_was_drafted_for_to_its_limit():
    assert seconds_of(drafting(4), text([0, 0], limit=100), COSTS) == 2 * (4 * 2 + 14)


def test_all_that_stands_comes_at_the_length_of_a_draft():
    """PEARL at its best says γ + 1 tokens in the longer of drafting them and judging γ."""
    out = text([1] * 30)
    first = max(5 * 2, 9) + 1  # nothing is drafted yet: the target's own token is guessed meanwhile
    full = max(5 * 2, 13) + 1
    seconds = seconds_of(drafting_ahead(4), out, COSTS)
    assert seconds == first + full * 5 + max(1 * 2, 12) + 1  # 1 + 5 · 5 + 4 tokens


def test_drafting_ahead_waits_for_a_slow_drafter():
    slow = Costs(COSTS.target, COSTS.after, {1: 20.0})
    out = text([0] * 3, limit=100)
    assert seconds_of(drafting_ahead(4), out, slow) == 3 * (5 * 20 + 1)


def test_what_is_got_ready_for_costs_nothing_while_the_target_reads():
    """Mirror-SD with every correction foreseen drafts once, and never waits again."""
    out = text([0] * 10, limit=100, early=[0] * 10)
    quick = Costs(COSTS.target, COSTS.after, {1: 0.5})
    assert seconds_of(mirrored(4, 1, 0.5), out, quick) == 4 * 0.5 + 10 * 14
    # branches of 5 places by one candidate: half a call is left for 4 steps of the drafter
    slow = Costs(COSTS.target, COSTS.after, {1: 3.0})
    assert seconds_of(mirrored(4, 1, 0.5), out, slow) == 4 * 3 + 9 * (6.5 + 12) + 14


@pytest.mark.parametrize("early", [[9] * 12, [0] * 12])
def test_without_candidates_mirrored_drafting_is_drafting(early):
    out = text([1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0], early=early)
    assert seconds_of(mirrored(3, 0, 0.5), out, COSTS) == seconds_of(drafting(3), out, COSTS)


def test_what_is_not_foreseen_is_thrown_away():
    out = text([1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0], early=[9] * 12)
    assert seconds_of(mirrored(3, 2, 0.5), out, COSTS) == seconds_of(drafting(3), out, COSTS)


def test_costs_between_measured_ones_are_linear():
    assert COSTS.call(2) == 11
    assert COSTS.call(8) == 17
    assert COSTS.rest(3) == 1
    assert COSTS.drafting(3) == 6
    assert COSTS.drafting(3, rows=6) == 9
    assert Costs(COSTS.target, COSTS.after, COSTS.draft, scale=1.25).drafting(4) == 10


def test_costs_are_of_rounds_by_their_width():
    rounds = [Round(2, {"draft": 4.0 + n, "target": 10.0 + n, "verify": 1.0}) for n in range(5)]
    rounds += [Round(1, {"draft": 1.0, "target": 5.0})]  # too few to know
    assert by_width(rounds, lambda one: one.seconds["target"]) == {2: [10, 11, 12, 13, 14]}
    assert by_width(rounds, lambda one: one.after) == {2: [1.0] * 5}
    assert quartiles([10, 11, 12, 13, 14]) == (11, 13)
    assert draft_calls(rounds) == [2, 2.5, 3, 3.5, 4, 1]
    waited = [Round(2, {"draft": 0.0, "target": 10.0, "wait": 5.0})]
    assert draft_calls_beside([*waited, Round(2, {"target": 99.0, "wait": 0.0})], 5) == [3.0]


CALLS = Costs({0: 1.0}, {0: 0.0}, {1: 0.0})  # the time of a schedule is its calls of the target


@pytest.fixture(scope="module")
def subject():
    suite, call = load_suite("vlm"), {"max_new_tokens": 60, "temperature": 0.0}
    pearl = "pearl[num_draft_tokens=4,draft_beside=here]"
    methods = parse_methods((*methods_of(3), "draft[num_draft_tokens=5]", pearl))
    job = Job(suite, MODALITIES["vlm"].items(suite, None), methods, call)
    return Subject(job, VlmPipeline.from_pretrained())


@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        ("draft[num_draft_tokens=3]", drafting(3)),
        ("draft[num_draft_tokens=5]", drafting(5)),
        ("pearl[num_draft_tokens=4,draft_beside=here]", drafting_ahead(4)),
    ],
)
def test_a_record_foretells_the_calls_of_greedy_runs(subject, method, schedule):
    """One record of a drafter serves drafts of every length, whoever takes turns with whom."""
    for sample in range(3):
        trace = subject.trace("draft[num_draft_tokens=4]", sample)
        assert set(trace.stands) == {0.0, 1.0}
        stats = subject.run(method, sample)
        assert sum(stats.emitted) == len(trace.tokens)
        out = Text(np.array(trace.stands) > 0, trace.limit)
        assert seconds_of(schedule, out, CALLS) == sum(stats.calls)


def test_what_a_middle_layer_holds_likeliest_is_what_it_would_draft(subject):
    """Rank 0 along the output is where a draft of one token of that layer stands."""
    trace = subject.trace("early-exit[exit_layer=3]", 0)
    assert [rank == 0 for rank in trace.rank] == [stands == 1 for stands in trace.stands]


def test_a_run_measures_records_and_shows_nothing_that_the_clock_denies(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(measuring, "DRAWS", 2)
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)  # tests run on one each
    assert main(["simulate", "--samples", "4", "-o", str(tmp_path), "--quiet"]) == 0
    record = json.loads((tmp_path / "simulation.json").read_text())
    apart = [told / seen - 1 for seen, told in record["clock"].values()]
    assert bool(record["speedups"]) == all(abs(x) <= 0.1 for x in apart)
    said = capsys.readouterr().out
    assert ("Simulated" in (tmp_path / "simulation.md").read_text()) == bool(record["speedups"])
    assert ("foretells nothing" in said) != bool(record["speedups"])
    assert all(0 < share < 1 for share in record["stands"].values())
    shares = [*record["foreseen"].values()]
    assert shares == sorted(shares)


def test_what_to_install_is_told_in_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "simpy", None)
    for name in ("measure", "page", "schedules"):
        monkeypatch.delitem(sys.modules, f"benchmarks.simulation.{name}", raising=False)
    assert main(["simulate", "-o", str(tmp_path / "out")]) == 2
    assert "SimPy; in a clone of mmspec: pip install -e '.[dev]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--samples", "5"], "--samples must be even, not 5"),
        (["--layer", "9"], "--layer must be from 1 to 6, not 9"),
        (["--suite", "continuous"], "choose one of vlm or image"),
        (["--temperature", "0"], "--temperature must be above 0, not 0"),
    ],
)
def test_bad_input_is_told_in_a_line(tmp_path, capsys, words, said):
    assert main(["simulate", *words, "-o", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
