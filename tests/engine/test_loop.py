"""The loop: ragged rows, limits, ends of sequence, interrupts, counters, draft lengths."""

from __future__ import annotations

import itertools
from itertools import pairwise

import pytest
import torch
from toys import Table, TableTarget, drafters, outputs

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.guarded import GuardedDrafter
from mmspec.draft.jacobi.coupled import CoupledJacobiDrafter
from mmspec.draft.jacobi.jacobi import JacobiDrafter
from mmspec.draft.null import NullDrafter
from mmspec.draft.prompt_lookup import PromptLookupDrafter
from mmspec.draft.tree.merged import MergedDrafter
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context, Draft, Interrupted, Scores, Verdict
from mmspec.engine.laws import ContractError, OneHot, Opaque, TargetError
from mmspec.engine.length.constant import ConstantLength, HeuristicLength
from mmspec.engine.loop import advance, run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.target import TokenTarget

NAMES = ["null", "model", "jacobi-uniform", "jacobi-previous", "jacobi-above", "coupled", "lookup"]
VOCAB = 4
TARGET, MODEL = Table(VOCAB, 40), Table(VOCAB, 41)


def engine_of(name="model", gamma=3, seeds=(1, 2, 3), eos=None, length=None) -> Engine:
    drafter = drafters(VOCAB, MODEL)[name]()
    coins = ProductionCoins(list(seeds))
    policy = length or ConstantLength(gamma)
    return Engine(TableTarget(TARGET), drafter, TokenRule(), policy, coins, eos)


class Recorded:
    """A rule whose verdicts and drafts are kept for a recount."""

    contract = "exact"

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], list[int]]] = []
        self.widths: list[int] = []

    def verify(self, draft, scores, coins):
        verdict = TokenRule().verify(draft, scores, coins)
        self.seen.append((draft.lengths.tolist(), verdict.accepted.tolist()))
        self.widths.append(draft.nodes)
        return verdict


class Stopped:
    """A drafter that is stopped at work in its second round, as `Interrupted` says."""

    def __init__(self) -> None:
        self.inner = drafters(VOCAB, MODEL)["model"]()

    def start(self, context):
        self.inner.start(context)

    def propose(self, context, budget, coins):
        if context.round == 1:
            raise Interrupted
        return self.inner.propose(context, budget, coins)

    def observe(self, *given):
        self.inner.observe(*given)


@pytest.mark.parametrize("guarded", [False, True])
def test_an_interrupt_within_a_round_keeps_the_rounds_before(guarded):
    drafter = GuardedDrafter(Stopped(), VOCAB, 8) if guarded else Stopped()
    engine, whole, stats = engine_of(), engine_of(), SpecStats()
    engine.drafter = drafter
    context = run(engine, 3, 12, stats)
    once = run(whole, 3, 12, SpecStats(), lambda context: True)
    assert (context.round, context.base, stats.calls) == (1, once.base, [1] * 3)
    for row, length in enumerate(once.base):
        assert torch.equal(context.tokens[row, :length], once.tokens[row, :length])
    assert not guarded or drafter.fault is None


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("gamma", [0, 1, 3, 20])
@pytest.mark.parametrize("name", NAMES)
def test_limit_is_reached_exactly(name, gamma, limit):
    context = run(engine_of(name, gamma), 3, limit, SpecStats())
    assert context.base == [limit] * 3
    assert context.lengths.tolist() == context.base
    assert context.finished == [True] * 3
    assert context.room() == [0] * 3
    assert all(TARGET(out[:n])[out[n]] > 0 for out in outputs(context) for n in range(limit))


class ByPosition:
    """A target whose tokens are their positions; it keeps the positions that it committed."""

    vocab = 30

    def start(self, rows):
        self.committed = [[] for _ in range(rows)]

    def score(self, context, draft):
        positions = torch.tensor(context.base)[:, None] + torch.arange(draft.nodes + 1)
        laws = torch.nn.functional.one_hot(positions.clamp_max(self.vocab - 1), self.vocab)
        return Scores(laws.double())

    def commit(self, context, draft, verdict):
        rows = zip(self.committed, context.base, verdict.counts.tolist(), strict=True)
        for kept, base, count in rows:
            kept += range(base, base + count)


@pytest.mark.parametrize("held", [None, 8])
def test_what_joins_is_committed_before_it_is_in_the_context(held):
    """Every token once and in order; of a context that holds eight positions the latest stay."""
    target = ByPosition()
    engine = Engine(
        target, JacobiDrafter(30), TokenRule(), ConstantLength(3), ProductionCoins([1, 2])
    )
    context = run(engine, 2, 20, SpecStats(), window=held)
    assert target.committed == [list(range(20))] * 2
    expected = list(range(20)) if held is None else [n + 16 if n < 4 else n + 8 for n in range(8)]
    assert context.tokens.shape[1] >= len(expected)
    assert context.tokens[:, : len(expected)].tolist() == [expected] * 2


def test_what_stands_in_front_of_the_first_token():
    first, seen = torch.tensor([[7], [9]]), []

    class Watched(NullDrafter):
        def propose(self, context, budget, coins):
            seen.append(context.last.clone())
            return super().propose(context, budget, coins)

    coins = ProductionCoins([1, 2])
    engine = Engine(ByPosition(), Watched(), TokenRule(), ConstantLength(0), coins)
    run(engine, 2, 3, SpecStats(), first=first)
    assert [last[:, 0].tolist() for last in seen] == [[7, 9], [0, 0], [1, 1]]


def test_limit_zero():
    stats = SpecStats()
    context = run(engine_of(), 2, 0, stats)
    assert outputs(context) == [(), ()]
    assert stats.calls == [0, 0]


def test_draft_leaves_room_for_the_targets_own_token():
    engine, widths = engine_of(gamma=20), []
    engine.rule = Recorded()
    run(engine, 3, 5, SpecStats(), lambda c: widths.append(list(c.base)))
    before = [[0, 0, 0], *widths]
    for (lengths, _), base in zip(engine.rule.seen, before, strict=False):
        assert lengths == [max(0, 5 - b - 1) for b in base]


# --- end of sequence ------------------------------------------------------------------------------


def until(out: tuple[int, ...], eos: int) -> tuple[int, ...]:
    return out[: out.index(eos) + 1] if eos in out else out


@pytest.mark.parametrize("name", NAMES)
def test_end_of_sequence_only_truncates(name):
    """Coins don't depend on the end, so each row is the run without one, cut behind the token."""
    seeds, limit = tuple(range(12)), 9
    free = outputs(run(engine_of(name, seeds=seeds), 12, limit, SpecStats()))
    for eos in range(VOCAB):
        stats = SpecStats()
        context = run(engine_of(name, seeds=seeds, eos=eos), 12, limit, stats)
        assert outputs(context) == [until(out, eos) for out in free]
        assert stats.emitted == context.base
        assert all(context.finished)
    assert len({len(until(out, 0)) for out in free}) > 2


def outcome(emitted: list[list[int]], counts: list[int]) -> tuple[Draft, Scores, Verdict]:
    """A draft, its scores and a verdict that emits so much of these tokens."""
    count, tokens = torch.tensor(counts), torch.tensor(emitted)
    lengths = torch.full_like(count, tokens.shape[1] - 1)
    last = tokens.gather(1, count[:, None] - 1)
    scores = Scores(torch.full((*tokens.shape, VOCAB), 1 / VOCAB))
    draft = Draft(tokens[:, :-1], lengths, OneHot())
    return draft, scores, Verdict(count - 1, tokens, last, count)


def test_advance_by_hand():
    """Rows: an accepted end, a filling one, a recovered one, none, and a row that was finished."""
    context = Context.empty(5, 10)
    context.finished[4] = True
    emitted = [[5, 9, 5, 6], [5, 6, 9, 9], [5, 6, 9, 7], [5, 6, 7, 9], [9, 9, 9, 9]]
    width, drafted, reach, kept, counts = advance(
        context, *outcome(emitted, [4, 2, 3, 3, 4]), eos=9
    )
    assert width == 3
    assert drafted == reach == [3] * 5
    assert counts == [2, 2, 3, 3, 0]
    assert kept == [2, 1, 2, 2, 0]
    assert outputs(context) == [(5, 9), (5, 6), (5, 6, 9), (5, 6, 7), ()]
    assert context.finished == [True, False, True, False, True]
    assert context.lengths.tolist() == context.base
    assert context.round == 1


def test_advance_overwrites_filling():
    context = Context.empty(1, 6)
    advance(context, *outcome([[1, 2, 3]], [1]))
    advance(context, *outcome([[4, 5, 6]], [2]))
    assert outputs(context) == [(1, 4, 5)]


def test_advance_makes_room_for_filling():
    """Filling may run past the limit; what was emitted stays in its place."""
    context = Context.empty(2, 3)
    advance(context, *outcome([[1, 2, 3], [1, 2, 3]], [3, 2]))
    assert context.finished == [True, False]
    advance(context, *outcome([[7, 7, 7, 7], [4, 8, 8, 8]], [1, 1]))
    assert outputs(context) == [(1, 2, 3), (1, 2, 4)]
    assert context.finished == [True, True]


# --- ragged rows and interrupts -------------------------------------------------------------------


def test_rows_finish_on_their_own():
    bases, seeds = [], tuple(range(6))
    context = run(
        engine_of(seeds=seeds),
        6,
        12,
        SpecStats(),
        lambda c: bases.append((c.base, list(c.finished))),
    )
    assert any(len(set(base)) > 2 for base, _ in bases)
    assert any(any(done) and not all(done) for _, done in bases)
    for (base, done), (later, _) in pairwise(bases):
        for b, d, n in zip(base, done, later, strict=True):
            assert n == b if d else n > b
    assert all(context.finished)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_interrupt_keeps_what_was_emitted(name, rounds):
    full = outputs(run(engine_of(name), 3, 12, SpecStats()))
    stats = SpecStats()
    context = run(engine_of(name), 3, 12, stats, lambda c: c.round == rounds)
    assert context.round == rounds
    assert stats.calls == [rounds] * 3
    assert context.lengths.tolist() == context.base == stats.emitted
    assert not all(context.finished)
    assert min(context.base) >= rounds
    for out, whole in zip(outputs(context), full, strict=True):
        assert out == whole[: len(out)]


def test_seconds_of_a_round_are_its_own(monkeypatch):
    """What a callback takes between rounds is none of a length policy's business."""
    clock = itertools.count()
    monkeypatch.setattr("mmspec.engine.loop.time.perf_counter", lambda: float(next(clock)))
    seconds = {0: [], 1000: []}
    for slow, found in seconds.items():

        def on_round(context, slow=slow, found=found) -> bool:
            for _ in range(slow):
                next(clock)
            found.append(context.seconds)
            return False

        run(engine_of(), 3, 12, SpecStats(), on_round)
    assert seconds[1000] == seconds[0]
    assert len(seconds[0]) > 2
    assert min(seconds[0]) > 0


def test_engine_can_run_again():
    engine = engine_of()
    assert outputs(run(engine, 3, 8, SpecStats())) == outputs(run(engine, 3, 8, SpecStats()))


# --- a row does not depend on its neighbours ------------------------------------------------------


class Alternating(ConstantLength):
    """Speculates now and then: rounds without any draft lie between drafts."""

    def start(self, rows):
        self.rounds, self._rows = 0, rows

    def budget(self):
        return [(3, 0, 0, 1, 0, 0, 0, 2)[self.rounds % 8]] * self._rows

    def observe(self, context, draft, verdict):
        self.rounds += 1


LENGTHS = {
    "constant": lambda: ConstantLength(3),
    "heuristic": lambda: HeuristicLength(2, 6),
    "alternating": lambda: Alternating(0),
}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("eos", [None, 0])
def test_row_equals_itself_alone(name, length, eos):
    def emitted(seeds):
        engine = engine_of(name, seeds=seeds, eos=eos, length=LENGTHS[length]())
        return outputs(run(engine, len(seeds), 14, SpecStats()))

    seeds = list(range(50, 62))
    together = emitted(seeds)
    assert together == [emitted([seed])[0] for seed in seeds]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", NAMES)
def test_row_equals_itself_alone_on_a_network(tiny_llamagen, guided_rows, name, length):
    """With captions of several lengths: the batch is left-padded where the row alone is not."""
    model, pads, seeds = tiny_llamagen(), [0, 2, 1], [1, 2, 3]

    def emitted(rows):
        make = {
            "null": NullDrafter,
            "model": lambda: ModelDrafter(guided_rows(model, pads, rows, scale=1.2)[0]),
            "jacobi-uniform": lambda: JacobiDrafter(16, "uniform"),
            "jacobi-previous": lambda: JacobiDrafter(16, "previous"),
            "coupled": lambda: CoupledJacobiDrafter(16),
            "jacobi-above": lambda: JacobiDrafter(16, "above", 4),
            "lookup": PromptLookupDrafter,
        }[name]
        target = TokenTarget(guided_rows(model, pads, rows)[0])
        coins = ProductionCoins([seeds[r] for r in rows])
        engine = Engine(target, make(), TokenRule(), LENGTHS[length](), coins)
        stats = SpecStats()
        context = run(engine, len(rows), 16, stats)
        return outputs(context), stats

    together, stats = emitted([0, 1, 2])
    rarely = name in ("null", "lookup")
    assert rarely or 0 < sum(stats.accepted) < sum(stats.drafted)
    for row in range(3):
        assert emitted([row])[0] == [together[row]]
    assert emitted([2, 0])[0] == [together[2], together[0]]


class Once(ProductionCoins):
    """The shipped coins, none of which may be tossed twice."""

    def __init__(self, seeds):
        super().__init__(seeds)
        self.tossed = set()

    def uniform(self, number, purpose, start, count):
        coins = {(number, purpose, index) for index in range(start, start + count)}
        assert not coins & self.tossed
        self.tossed |= coins
        return super().uniform(number, purpose, start, count)


@pytest.mark.parametrize("name", NAMES)
def test_no_coin_is_tossed_twice(name):
    """Neither by a node and the next, nor by a drafter and the rule."""
    engine = engine_of(name)
    engine.coins = Once([1, 2, 3])
    run(engine, 3, 12, SpecStats())
    assert engine.coins.tossed


# --- counters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_stats_equal_a_recount(name):
    engine, stats, bases = engine_of(name, gamma=3), SpecStats(), [[0, 0, 0]]
    engine.rule = Recorded()
    context = run(engine, 3, 12, stats, lambda c: bases.append(list(c.base)))

    calls, drafted, accepted, processed = ([0] * 3 for _ in range(4))
    judged_at, stood_at = [0] * 3, [0] * 3
    for (lengths, kept), before, after in zip(engine.rule.seen, bases[:-1], bases[1:], strict=True):
        for row in range(3):
            if before[row] == after[row]:
                continue
            calls[row] += 1
            drafted[row] += lengths[row]
            accepted[row] += kept[row]
            processed[row] += lengths[row] + 1
            for node in range(lengths[row]):
                judged_at[node] += node <= kept[row]  # reached: all before it stand
                stood_at[node] += node < kept[row]
    assert stats.calls == calls
    assert stats.drafted == drafted
    assert stats.accepted == accepted
    assert stats.emitted == context.base == [12] * 3
    assert [a + c for a, c in zip(accepted, calls, strict=True)] == stats.emitted
    assert stats.target_tokens == processed
    assert stats.rounds == engine.rule.widths
    assert stats.nfe == sum(calls) / 3
    assert stats.mean_acceptance_length == 36 / sum(calls)
    if name == "null":
        assert stats.acceptance_by_position == []
        assert stats.mean_acceptance_length == 1
    else:
        rates = [s / j for s, j in zip(stood_at, judged_at, strict=True) if j]
        assert stats.acceptance_by_position == rates
        assert 0 < rates[0] < 1
    assert set(stats.seconds) == {"prefill", "draft", "target", "verify", "update"}
    assert stats.as_dict()["emitted"] == 36


def test_nothing_is_judged_after_the_end():
    """An end of sequence among the accepted tokens is no rejection of the next one."""
    stats = SpecStats()
    stats.start(1)
    stats.observe(*advance(Context.empty(1, 10), *outcome([[5, 9, 5, 6]], [4]), eos=9))
    assert stats.emitted == [2]
    assert stats.accepted == [2]
    assert stats.drafted == [3]
    assert stats.acceptance_by_position == [1.0, 1.0]  # of the third there is none
    assert stats.judged_at == [1, 1, 0]
    assert stats.accepted_at == [1, 1, 0]


def test_stats_start_anew():
    """A second generation with the same counters is counted like the first."""
    first, twice = SpecStats(), SpecStats()
    run(engine_of(), 3, 8, first)
    run(engine_of(), 3, 8, twice)
    run(engine_of(), 3, 8, twice)
    for name in ("calls", "drafted", "accepted", "emitted", "target_tokens"):
        assert getattr(twice, name) == getattr(first, name)
    assert twice.rounds == first.rounds
    assert twice.judged_at == first.judged_at
    assert twice.accepted_at == first.accepted_at


# --- draft lengths --------------------------------------------------------------------------------


def told(policy, lengths: list[int], accepted: list[int]) -> list[int]:
    """The budgets after one verdict."""
    context = Context.empty(len(lengths), 1)
    context.reached, context.accepted = lengths, accepted
    policy.observe(context, None, None)
    return policy.budget()


def test_heuristic_by_hand():
    """transformers: +2 when all stood, else −1 and at least 1; rows apart."""
    policy = HeuristicLength(3, most=6)
    policy.start(3)
    assert policy.budget() == [3, 3, 3]
    assert told(policy, [3, 3, 3], [3, 2, 0]) == [5, 2, 2]
    assert told(policy, [5, 2, 2], [5, 1, 0]) == [6, 1, 1]  # at most 6
    assert told(policy, [6, 1, 1], [5, 0, 1]) == [5, 1, 3]
    assert told(policy, [0, 1, 3], [0, 1, 1]) == [5, 3, 2]  # row 0 drafted nothing: unchanged
    assert told(policy, [2, 3, 2], [2, 3, 2]) == [6, 5, 4]  # a draft cut short, and whole


def test_heuristic_equals_transformers():
    """The same verdicts through transformers' own candidate generator."""
    from transformers import GenerationConfig
    from transformers.generation.candidate_generator import AssistedCandidateGenerator

    theirs = AssistedCandidateGenerator.__new__(AssistedCandidateGenerator)
    config = GenerationConfig(
        num_assistant_tokens_schedule="heuristic", assistant_confidence_threshold=0.0
    )
    theirs.assistant_generation_config = theirs.generation_config = config
    theirs.assistant_model = type("Assistant", (), {"generation_config": config})()
    theirs.num_assistant_tokens, ours = 4.0, HeuristicLength(4, most=1000)
    ours.start(1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        drafted = ours.budget()[0]
        kept = int(torch.randint(0, drafted + 1, (), generator=generator))
        kept = drafted if torch.rand((), generator=generator) < 0.3 else kept
        theirs.update_candidate_strategy(None, torch.zeros(1, drafted + 1, 2), kept)
        assert told(ours, [drafted], [kept]) == [theirs.num_assistant_tokens]


def test_constant():
    policy = ConstantLength(4)
    policy.start(2)
    assert policy.budget() == [4, 4]
    assert told(policy, [4, 4], [0, 4]) == [4, 4]


def test_lengths_start_anew():
    policy = HeuristicLength(3, most=9)
    policy.start(2)
    told(policy, [3, 3], [3, 0])
    policy.start(1)
    assert policy.budget() == [3]


def test_vectors_join_where_each_row_stands():
    """Tokens of several numbers, of two rows that take two and one of what a round emits."""
    context = Context.empty(2, 4, first=torch.zeros(2, 1, 3))
    for turn in (1, 2):
        emitted = 100.0 * turn + torch.arange(12.0).view(2, 2, 3)
        draft = Draft(emitted[:, :1], torch.tensor([1, 1]), Opaque())
        counts = torch.tensor([2, 1])
        verdict = Verdict(counts - 1, emitted, emitted[:, -1:], counts)
        advance(context, draft, Scores(torch.ones(2, 2, 1)), verdict)
    assert context.base == [4, 2]
    assert context.tokens[0, :, 0].tolist() == [100, 103, 200, 203]
    assert context.tokens[1, :2].tolist() == [[106, 107, 108], [206, 207, 208]]


def test_who_takes_in_no_sample_is_refused_before_any_is_drawn():
    """However deep it stands."""

    class Unseated:
        def start(self, context):
            raise AssertionError("it begins")

        propose = observe = start

    class Seated(TableTarget):
        def seat(self, context, rows):
            pass

    drafter = GuardedDrafter(MergedDrafter([NullDrafter(), Unseated()], 8), 2, 8)
    parts = TokenRule(), ConstantLength(2), ProductionCoins([0, 1, 2])
    engine = Engine(Seated(Table(2, 7)), drafter, *parts)
    with pytest.raises(ContractError, match="Unseated takes in no sample while others run"):
        run(engine, 3, 4, SpecStats(), at_once=2)


def test_a_fault_of_the_target_names_the_sample():
    """Not the row that it has."""

    class Faulty(TableTarget):
        def seat(self, context, rows):
            pass

        def score(self, context, draft):
            scores = super().score(context, draft)
            laws = scores.laws.clone()
            laws[[sample == 2 for sample in context.samples]] = float("nan")
            return Scores(laws)

    parts = NullDrafter(), TokenRule(), ConstantLength(0), ProductionCoins([0, 1, 2])
    with pytest.raises(TargetError, match="behind token 0 of row 2 are no numbers"):
        run(Engine(Faulty(Table(2, 7)), *parts), 3, 4, SpecStats(), at_once=1)
