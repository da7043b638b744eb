"""What the user hears about speculation that did not pay."""

from __future__ import annotations

import logging

import pytest

from mmspec.engine.stats import SpecStats
from mmspec.pipelines.notices import FEWEST, Notices, timed_apart


def stats_of(method: str, rounds: list[int], seconds: float, fault=None) -> SpecStats:
    return SpecStats(
        method=method,
        rounds=rounds,
        alone=rounds.count(0),
        emitted=[10],
        seconds={"target": seconds},
        fault=fault,
    )


@pytest.mark.parametrize(
    ("stats", "said"),
    [
        (stats_of("draft", [4, 4], 1.5), "speculation (draft) took 1.50 s where plain"),
        (stats_of("draft", [4, 4], 0.5), None),
        (stats_of("draft", [4, 0, 0], 0.5), "2 of 3 calls fell back to plain decoding"),
        (stats_of("draft", [4, 4, 0], 0.5), None),
        (stats_of("draft", [4, 0, 0], 1.5, fault="it raised"), None),  # that was said already
    ],
)
def test_notices(stats, said, caplog):
    notices = Notices()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            notices.check(stats, plain=1.0)
    assert [said in record.message for record in caplog.records] == ([True] if said else [])


def test_calls_of_one_token_are_no_plain_decoding(caplog):
    """Islands are drawn a token at a time, behind a draft that was judged."""
    stats = stats_of("mulo-sd", [16, 0, 0, 0], 0.5)
    stats.alone = 0
    with caplog.at_level(logging.WARNING):
        Notices().check(stats, plain=1.0)
    assert not caplog.records


def test_every_method_is_spoken_of_once(caplog):
    notices = Notices()
    with caplog.at_level(logging.WARNING):
        for method in ("draft", "sjd", "draft"):
            notices.check(stats_of(method, [4], 2.0), plain=1.0)
    assert len(caplog.records) == 2


@pytest.mark.parametrize("tokens", [1, FEWEST - 1, FEWEST])
def test_a_short_answer_tells_nothing(caplog, tokens):
    stats = stats_of("draft", [0], 9.0)
    stats.emitted, stats.alone = [1, tokens], 0
    with caplog.at_level(logging.WARNING):
        Notices().check(stats, plain=1.0)
    assert len(caplog.records) == (tokens == FEWEST)


def test_no_estimate_stands_beside_a_measurement(caplog):
    """What was counted is said all the same."""
    notices = Notices()
    with caplog.at_level(logging.WARNING):
        with timed_apart():
            notices.check(stats_of("draft", [4, 4], 9.0), plain=1.0)
            assert not caplog.records
            notices.check(stats_of("sjd", [4, 0, 0], 0.5), plain=1.0)
            assert "fell back" in caplog.records.pop().message
        notices.check(stats_of("draft", [4, 4], 9.0), plain=1.0)
    assert "took 9.00 s where plain" in caplog.text
