"""Codes that are drawn most: chosen on one half of the pictures, counted on the other."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.codebook import codebook_table, measure_codebook


class Scripted:
    """Draws codes that the test says, in the order of the samples."""

    device = torch.device("cpu")

    def __init__(self, codes, size):
        self.codes, self.drawn = torch.tensor(codes), 0
        self.vq_model = SimpleNamespace(config=SimpleNamespace(codebook_size=size))

    def __call__(self, prompts, generator, output_type):
        assert output_type == "tokens"
        assert [one.initial_seed() for one in generator] == [
            3 + self.drawn + n for n in range(len(prompts))
        ]
        out = self.codes[self.drawn : self.drawn + len(prompts), None]
        self.drawn += len(prompts)
        return SimpleNamespace(images=out)


def test_codes_are_chosen_and_counted_on_different_pictures():
    chooses, counts = [5, 5, 5, 6, 6, 7, 1, 0], [5, 6, 7, 7, 2, 3, 4, 7]
    record = measure_codebook(Scripted([chooses, counts] * 20, 16), ["x"] * 40, seed=3)
    assert record.samples == 40
    shares = {kept: share for kept, (share, _) in record.covered.items()}
    assert shares[1] == 1 / 8  # code 5
    assert shares[2] == 2 / 8  # and 6
    assert 5 / 8 <= shares[8] <= 1
    assert list(shares) == [1, 2, 4, 8, 12]
    assert record.covered[1][1] == (1 / 8, 1 / 8)
    assert "1 of 16" in codebook_table(record).aligned()


def test_a_codebook_used_evenly_has_no_few_codes_that_are_enough():
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(64, (40, 256), generator=generator).tolist()
    record = measure_codebook(Scripted(codes, 64), ["x"] * 40, seed=3)
    for kept, (share, (low, high)) in record.covered.items():
        assert share == pytest.approx(kept / 64, abs=0.05)
        assert low <= share <= high


def test_the_command(tiny_folder, capsys):
    assert main(["codebook", "--model", str(tiny_folder), "--samples", "4", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    shares = [share for share, _ in record["covered"].values()]
    assert shares == sorted(shares)
    assert 0 < shares[-1] <= 1
    assert main(["codebook", "--samples", "1"]) == 2
    assert "--samples" in capsys.readouterr().err
