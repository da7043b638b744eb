"""`simulation.json` as tables and a page."""

from __future__ import annotations

from mmspec.eval.report.format import fixed, interval
from mmspec.eval.report.table import Cell, Row, Table

from .measure import SCALES, TOLERANCE, SimulationRecord

ABOUT = (
    "Acceptances are recorded along the target's own outputs, costs are measured in the same "
    "process, and only the time of the last table is **simulated**: no clock has shown it. It "
    "stands if the simulation foretells the clock of what does run here, on prompts whose costs "
    "were not measured. There two processes share a memory; in the last table a second device is "
    "as fast as this one alone. Mirror-SD's devices tell each other everything in no time, and "
    "ELMoE-3D's drafts take half of the time that a call of the target takes for one token."
)


def tables(record: SimulationRecord) -> list[Table]:
    """Tables of what was recorded, what calls cost, the clock, and what is simulated on them."""
    known = [
        Row(f"one token of {name} stands", (Cell(fixed(x, 3)),))
        for name, x in record.stands.items()
    ]
    known += [
        Row(f"the next token is among {k} of layer {record.layer}", (Cell(fixed(x, 3)),))
        for k, x in record.foreseen.items()
    ]
    costs = [
        Row(name, (Cell(fixed(ms, 2), interval(record.quartiles[name], 2)),))
        for name, ms in record.costs.items()
    ]
    clock = [
        Row(
            name,
            (
                Cell(fixed(1e3 * seen, 2)),
                Cell(fixed(1e3 * told, 2)),
                Cell(f"{told / seen - 1:+.1%}"),
            ),
        )
        for name, (seen, told) in record.clock.items()
    ]
    out = [
        Table("Recorded: shares of tokens.", ("", "share"), tuple(known)),
        Table("Measured: milliseconds, mean and quartiles.", ("call", "ms"), tuple(costs)),
        Table("Milliseconds a token.", ("method", "measured", "simulated", "apart"), tuple(clock)),
    ]
    if record.speedups:
        columns = ("system", *(f"drafter's costs × {scale:g}" for scale in SCALES))
        rows = [
            Row(
                name,
                tuple(Cell(fixed(x, 2, unit="×"), interval(ci, 2)) for x, ci in by_scale.values()),
            )
            for name, by_scale in record.speedups.items()
        ]
        out.append(Table("Simulated: speed-up over plain decoding.", columns, tuple(rows)))
    return out


def notes(record: SimulationRecord) -> tuple[str, ...]:
    """Reasons for leaving the simulated table out."""
    if record.holds:
        return ()
    missed = f"the simulation misses the clock by more than {TOLERANCE:.0%}: it foretells nothing"
    return (f"{missed}; run it on a quiet machine",)


def markdown(record: SimulationRecord) -> str:
    """The page."""
    blocks = ["# Systems by simulation", ABOUT]
    for table in tables(record):
        blocks += [table.caption, table.markdown()]
    return "\n\n".join([*blocks, *(f"Note: {note}." for note in notes(record))]) + "\n"
