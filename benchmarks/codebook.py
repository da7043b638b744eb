"""Share of an image model's codes that those drawn most make up: may a drafter leave some out?

VocabTrim (Goel et al. 2025) drops the words from a drafter's output layer that the target seldom
says. A draft of a code that was dropped can't be right: with those kept that the target drew most,
at most the share of its codes that they make up can be drafted. It is counted on other pictures
than those that chose them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mmspec.eval.environment import environment
from mmspec.eval.measure.bootstrap import Interval, known_interval
from mmspec.eval.report.format import fixed, interval
from mmspec.eval.report.table import Table

PARTS = (16, 8, 4, 2)  # of the codebook, one in so many is kept; and three in four
BATCH = 24  # rows of a call


@dataclass
class CodebookRecord:
    """A run: its machine and pictures, and what codes they are of.

    Attributes:
        samples: pictures; the even ones choose the codes, the odd ones count.
        codes: of the codebook.
        covered: by codes kept, the share of codes that are among them, and its 95 % interval by
            resampling pictures; None: they are too few for one.
    """

    environment: dict[str, Any]
    samples: int
    codes: int
    covered: dict[int, tuple[float, Interval | None]] = field(default_factory=dict)


def measure_codebook(
    pipe: Any,
    prompts: Sequence[str],
    seed: int = 0,
    progress: Callable[[int], None] = lambda samples: None,
) -> CodebookRecord:
    """Draw a picture of every prompt, sample i from seed `seed + i`, and count its codes.

    Args:
        pipe: an image pipeline of token ids; it draws as its speculation says.
        progress: told how many samples are done since it was last told.
    """
    drawn = []
    for start in range(0, len(prompts), BATCH):
        asked = list(prompts[start : start + BATCH])
        seeds = range(seed + start, seed + start + len(asked))
        chance = [torch.Generator().manual_seed(one) for one in seeds]
        drawn.append(pipe(asked, generator=chance, output_type="tokens").images.flatten(1).cpu())
        progress(len(asked))
    codes = torch.cat(drawn)
    size = pipe.vq_model.config.codebook_size
    order = torch.bincount(codes[::2].flatten(), minlength=size).argsort(descending=True)
    rank = order.argsort()
    ranks = rank[codes[1::2]].numpy()
    record = CodebookRecord(environment(pipe.device), len(codes), size)
    for kept in [*(size // part for part in PARTS), size * 3 // 4]:
        record.covered[kept] = _share((ranks < kept).mean(1))
    return record


def _share(shares: np.ndarray) -> tuple[float, Interval | None]:
    """The mean over pictures, and its interval."""
    return float(shares.mean()), known_interval(lambda i: shares[i].mean(1), len(shares))


def codebook_table(record: CodebookRecord) -> Table:
    """The shares, a row for each number of codes that are kept."""
    rows = {
        f"{kept} of {record.codes}": (fixed(share, 3), interval(spread, 3))
        for kept, (share, spread) in record.covered.items()
    }
    caption = f"Codes of {record.samples // 2} pictures that are among those drawn most."
    return Table.of(caption, ("codes kept", "share", "95 % interval"), rows)
