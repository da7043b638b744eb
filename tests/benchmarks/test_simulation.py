"""Time by simulation: schedules against sums done by hand, records against runs that happened."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.simulation import turns as turning
from benchmarks.simulation.chunks import chunked, pruning
from benchmarks.simulation.costs import Beside, Costs, alone, together
from benchmarks.simulation.layers import Parts, parts_of, side_by_side
from benchmarks.simulation.load import latency
from benchmarks.simulation.measure import SimulationRecord, simulate
from benchmarks.simulation.page import markdown, notes
from benchmarks.simulation.recorded import Trace, restricted
from benchmarks.simulation.rounds import Drawing, Round
from benchmarks.simulation.schedules import (
    Text,
    drafting,
    drafting_ahead,
    mirrored,
    plain,
    seconds_of,
)
from benchmarks.simulation.subject import (
    BITS,
    FUZZY_COPY,
    Likely,
    Subject,
    likely,
    methods_of,
    played,
)
from benchmarks.simulation.systems import Recorded
from benchmarks.simulation.turns import Clock, foretell, read_turns
from mmspec import VlmPipeline
from mmspec.eval.modalities.base import MODALITIES
from mmspec.eval.run.job import Job
from mmspec.eval.suite import load_suite
from mmspec.eval.sweeps import parse_methods

TURNS = Path(__file__).parent / "turns.json"
COSTS = Costs({0: 9.0, 4: 13.0}, {0: 1.0}, {1: 2.0, 11: 4.0})


def text(stands, limit=None, early=None, pruned=None):
    """A text of places that stand (1) or fall (0)."""
    known = np.array(stands, dtype=bool)
    ranks = None if early is None else np.array(early)
    gone = None if pruned is None else np.array(pruned, dtype=bool)
    return Text(known, limit or len(known), ranks, gone)


def some_text(seed=0, places=40):
    """A text whose places stand at random."""
    return text(np.random.default_rng(seed).random(places) < 0.7)


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


def test_two_processes_wait_for_the_later_one_in_each_round():
    """What one round took long is not made good by another: means alone foretell too little."""
    beside = Beside(2.0, 1.5, ask=1.0, wake=2.0, receive=0.5)
    both = Costs(COSTS.target, COSTS.after, COSTS.draft, beside=beside)
    out = text([0], limit=100)
    assert seconds_of(drafting_ahead(4), out, both) == max(1 + 2 * 9, 2 + 1.5 * 5 * 2) + 0.5 + 1
    # the drafter takes longer in one round, and the target in the next one, by equal parts
    beside = Beside(noise=[(0.5, 1.5), (1.5, 0.5)])
    noisy = Costs({0: 10.0}, {0: 0.0}, {1: 2.0}, beside=beside)
    assert seconds_of(drafting_ahead(4), text([0] * 9, limit=100), noisy) == 9 * 15


def test_costs_are_of_rounds_by_their_width():
    calls = [
        Round(n, {"draft": 1.0 + 2 * n, "target": 9.0 + n + more, "verify": 1.0})
        for n in (1, 2, 4)
        for more in (-1, 0, 1)
    ]
    calls += [Round(8, {"draft": 99.0, "target": 99.0})]  # too few to know
    calls += [Round(1, {"draft": 3.0, "target": 17.0, "verify": 1.0}, first=True)]
    batch = [Round(4, {"draft": 17.0, "target": 9.0})]
    costs = alone(calls, {4: batch})
    assert costs.target == {1: 10, 2: 11, 4: 13}
    assert costs.after == {1: 1, 2: 1, 4: 1}
    assert costs.first == pytest.approx(1)
    assert costs.draft == pytest.approx({1: 2, 4: 4})
    assert costs.begin == pytest.approx(7)


def test_costs_beside_another_process_are_told_from_those_alone():
    seconds = {"draft": 1.0, "target": 18.0, "wait": 3.0, "verify": 2.0}
    rounds = [
        Round(0, seconds, read=19.0, drawing=Drawing(2.0, 17.0 + late, 5)) for late in (-1, 1)
    ]
    both = together(rounds, COSTS)
    beside = both.beside
    assert (beside.target, beside.draft) == (2, 1.5)
    assert (beside.ask, beside.wake, beside.receive) == (1, 2, 3)
    assert both.rest(4) == 2
    assert beside.noise == [(1, pytest.approx(16 / 17)), (1, pytest.approx(18 / 17))]


def test_a_pruned_draft_leaves_the_call():
    """Of 4 drafted tokens 1 stands and the next one is pruned: 1 goes through all layers."""
    out = text([1, 0], limit=100, pruned=[0, 1])
    assert seconds_of(pruning(4, 0.5), out, COSTS) == 4 * 2 + (13 + 10) / 2 + 1
    kept = text([1, 0], limit=100, pruned=[0, 0])
    assert seconds_of(pruning(4, 0.5), kept, COSTS) == seconds_of(drafting(4), kept, COSTS)


def test_chunks_are_drafted_while_others_are_judged():
    out = text([1] * 4 + [0], limit=100)
    # 2 drafted; judged while 2 more come, of which the first is judged with them; then the last one
    rounds = [2 * 2, max(11, 4) + 1, 10 + 1]
    assert seconds_of(chunked(4, 2, 1.0), out, COSTS) == sum(rounds)
    falls = text([0, 0], limit=100)
    assert seconds_of(chunked(4, 2, 1.0), falls, COSTS) == 2 * (4 + 12)


@pytest.mark.parametrize("seed", range(3))
def test_without_overlap_systems_are_drafting(seed):
    out = some_text(seed)
    drafted = seconds_of(drafting(4), out, COSTS)
    assert seconds_of(chunked(4, 4, 1.0), out, COSTS) == drafted
    assert seconds_of(pruning(4, 0.5), out, COSTS) == drafted
    easy = side_by_side(4, 4, Parts(0.125, 0.0625, 7))
    assert seconds_of(easy, out, COSTS, 1) == pytest.approx(drafted)


def test_attentions_of_a_group_take_as_long_as_one():
    """7 layers are groups of 1, 4, 1 and 1, and 4 attentions at once spare 3."""
    out = text([0], limit=100)
    easy = side_by_side(4, 4, Parts(0.125, 0.0625, 7))
    drafted = seconds_of(drafting(4), out, COSTS)
    assert seconds_of(easy, out, COSTS, 4) == drafted - 3 * 3 * 0.125  # not in the first call
    assert seconds_of(easy, out, COSTS, 2) == drafted - 3 * 2 * 0.125


def test_what_pruning_lets_stand_adds_up():
    """Over the output's law a draft stands with Σ min(p, q) in U, and is pruned with q outside."""
    torch.manual_seed(0)
    p, q, early = (torch.rand(5, dtype=torch.float64).softmax(0) for _ in range(3))
    least = float(early.median())
    said = Trace(list(range(5)), own=[p] * 5, laws=[q] * 5)
    stands, pruned = restricted(said, Trace(laws=[early] * 5), least)
    inside = early >= least
    law = p.numpy()
    assert law @ stands == pytest.approx(float(torch.minimum(p, q)[inside].sum()))
    assert law @ pruned == pytest.approx(float(q[~inside].sum()))
    assert not any(np.array(stands)[~inside.numpy()])


def test_requests_wait_as_queues_do():
    """One server with equal service times and arrivals by chance (Pollaczek and Khinchine)."""
    service, load = 2.0, 0.6
    waits = load * service / (2 * (1 - load))
    assert latency([service], service / load) == pytest.approx(service + waits, rel=0.1)


def test_recorded_costs_foretell_recorded_clocks():
    """Turns of a real run: plain decoding, drafts, and PEARL on two processes, within 10 %.

    The costs of a turn are of all its rounds, those of its clocks too: the machine was busy, and
    changed from prompt to prompt. So the test is of the schedules, not of the machine.
    """
    turns = read_turns(TURNS.read_text())
    for name, one in foretell(turns, [UNKNOWN]).items():
        assert one.ratio == pytest.approx(1, abs=turning.TOLERANCE), name


UNKNOWN = Likely([1.0, 0.0], None, 10, 0)
CALLS = Costs({0: 1.0}, {0: 0.0}, {1: 0.0})  # the time of a schedule is its calls of the target


@pytest.fixture(scope="module")
def subject():
    return subject_at(0.0)


@pytest.fixture(scope="module")
def sampled():
    return subject_at(1.0)


def subject_at(temperature):
    suite, call = load_suite("vlm"), {"max_new_tokens": 60, "temperature": temperature}
    pearl = "pearl[num_draft_tokens=4,draft_beside=here]"
    pipe = VlmPipeline.from_pretrained()
    methods = parse_methods((*methods_of(3, pipe), "draft[num_draft_tokens=5]", pearl))
    job = Job(suite, MODALITIES["vlm"].items(suite, None), methods, call)
    return Subject(job, pipe)


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        ("draft[num_draft_tokens=3]", drafting(3)),
        ("pearl[num_draft_tokens=4,draft_beside=here]", drafting_ahead(4)),
    ],
)
def test_a_run_is_played_call_by_call(sampled, method, schedule):
    for sample in range(3):
        rounds = sampled.rounds(method, sample)
        out = played(rounds, 60)
        assert len(out.stands) == sum(one.emitted for one in rounds)
        assert seconds_of(schedule, out, CALLS) == len(rounds)


def test_drafting_in_another_process_is_noted(sampled):
    rounds = sampled.rounds("pearl[num_draft_tokens=4,draft_beside=process]", 0)
    assert [one.first for one in rounds] == [True] + [False] * (len(rounds) - 1)
    assert sum(one.drawing is None for one in rounds) <= 1  # the last one may have no room
    for one in rounds:
        if one.drawing is not None:
            assert 0 <= one.drawing.begins < one.drawing.ends <= one.read + one.seconds["wait"]
            assert 1 <= one.drawing.count <= 5


def test_layers_side_by_side_are_timed(sampled):
    twin = sampled.copied()
    with parts_of() as parts:
        stats = twin.run("easyspec[num_draft_tokens=4,fuzzy_layers=4]", 0)
    assert 0 < sum(stats.accepted) <= sum(stats.drafted)
    drafts = sum(stats.calls)
    assert sum(stats.drafted) - drafts <= len(parts) < sum(stats.drafted)  # all but a draft's first
    assert all(one.layers == 7 and one.attention > 0 and one.mlp > 0 for one in parts)


@pytest.mark.slow
def test_a_run_measures_records_and_shows_nothing_that_the_clock_denies(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(turning, "DRAWS", 2)
    assert main(["simulate", "--samples", "4", "-o", str(tmp_path), "--quiet"]) == 0
    record = json.loads((tmp_path / "simulation.json").read_text())
    clocks = foretell(read_turns((tmp_path / "turns.json").read_text()), [UNKNOWN])
    assert {name: one.ratio for name, one in clocks.items()} == pytest.approx(
        {name: one["ratio"] for name, one in record["clock"].items()}
    )
    page, said = (tmp_path / "simulation.md").read_text(), capsys.readouterr().out
    assert ("Simulated:" in page) == bool(record["speedups"]) == ("foretells nothing" not in said)
    assert all(0 < share < 1 for share in record["stands"].values())
    shares = [*record["foreseen"].values()]
    assert shares == sorted(shares)


def clock(ratio=1.0, spread=0.05, acceptance=1.0):
    return Clock(0.01, ratio, (ratio - spread, ratio + spread), acceptance)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (clock(), None),
        (clock(ratio=0.88), "misses the clock of pearl by more than 10%"),
        (clock(ratio=1.08, acceptance=1.05), "misses the clock of pearl by more than 10%"),
        (clock(spread=0.2), "not quiet enough to judge pearl"),
    ],
)
def test_nothing_is_shown_unless_each_clock_is_foretold(one, said):
    record = SimulationRecord({}, 24, 3, 7, (0.1, 1.0))
    record.clock = {"plain": clock(), "pearl": one}
    assert record.holds == (said is None)
    told = " ".join(notes(record))
    assert "load was 0.1 before and 1.0 behind" in told
    assert said is None or said in told


def test_of_few_prompts_nothing_is_foretold():
    record = SimulationRecord({}, 10, 3, 7, (0.1, 1.0))
    record.clock = {"plain": clock()}
    assert not record.holds
    assert "10 prompts are too few to judge a clock: it foretells nothing" in notes(record)


@pytest.mark.slow
def test_systems_are_simulated_where_the_clock_is_foretold(sampled):
    """All systems on two prompts, at costs that are no clock's."""
    texts, gone = zip(*(likely(sampled, n, 3) for n in range(2)), strict=True)
    runs = [played(sampled.rounds(BITS, n), 60) for n in range(2)]
    copies = [played(sampled.copied().rounds(FUZZY_COPY, n), 60) for n in range(2)]
    parts = Parts(0.25, 0.125, 7)
    record = SimulationRecord({}, 2, 3, 7, (0.0, 0.0))
    record.clock = {"plain": clock()}
    simulate(record, Recorded(texts, gone, runs, copies, 3 / 7, COSTS, COSTS, 3.0, parts))
    found = {name: [row[scale][0] for scale in row] for name, row in record.speedups.items()}
    for system in ("PEARL", "Mirror-SD", "FASER", "ELMoE-3D", "EasySpec"):
        assert any(name.startswith(system) for name in found)
    assert all(row == sorted(row, reverse=True) for row in found.values())  # dearer is no faster
    easy = [row for name, row in found.items() if name.startswith("EasySpec")]
    assert np.all(np.diff(easy, axis=0) > 0)  # with more devices
    assert found["Mirror-SD, 4 tokens, the 0 likeliest"] == found["draft, 4 tokens, one device"]
    page = markdown(record)
    assert all(name in page for name in (*found, *record.batched))
    assert all(
        low <= high
        for row in record.latencies.values()
        for low, high in pairwise([seconds[1] for seconds in row.values()])
    )


def test_what_to_install_is_told_in_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "simpy", None)
    parts = ("batches", "chunks", "layers", "load", "measure", "page", "schedules", "systems")
    for name in (*parts, "turns"):
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


def test_the_stored_record_holds_and_still_draws():
    """The page of `assets/reports/simulation` holds the tables that its record draws today."""
    stored = Path(__file__).parents[2] / "assets" / "reports" / "simulation"
    data = json.loads((stored / "simulation.json").read_text())
    data["clock"] = {name: Clock(**one) for name, one in data["clock"].items()}
    record = SimulationRecord(**data)
    assert record.enough
    assert record.holds
    page = markdown(record)
    assert page == (stored / "simulation.md").read_text()
    assert page.count("Recorded: shares of tokens.") == 1
