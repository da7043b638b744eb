"""`simulation.json` as tables and a page."""

from __future__ import annotations

from mmspec.eval.report.format import fixed, interval
from mmspec.eval.report.table import Cell, Row, Table

from .batches import ARRIVALS, SEATS
from .load import LOADS
from .measure import SimulationRecord
from .systems import SCALES
from .turns import TOLERANCE

ABOUT = (
    "Acceptances are recorded on the models, costs are measured, and only the time of the last "
    "three tables is **simulated**: no clock has shown it. They stand if the simulation foretells "
    "the clock of what does run here, on prompts whose costs were not measured; costs and clocks "
    "take turns. A device is a core, and plain decoding has one. PEARL's clock is of two "
    "processes, which share a memory: what they take beside each other was measured so, and "
    "FASER's shares of a processor pay it, too. Other devices are as fast as a core alone, and "
    "tell each other everything in no time. EasySpec's draft model is a copy of the target, since "
    "the embedded one has too few layers; compare it by the number of devices. ELMoE-3D's drafts "
    "take half of the time that a call of the target takes for one token; of sparse experts they "
    "choose among half, the hot ones. In a batch a call takes as long as if all its tokens were "
    "one request's."
)


EXPERTS = {
    "judging_experts": "experts that a call of the target touches",
    "drafting_experts": "experts that a draft of its high bits touches",
}


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
    known += [
        Row(f"{name}, of a layer", (Cell(fixed(record.experts[key], 2)),))
        for key, name in EXPERTS.items()
        if key in record.experts
    ]
    known.append(Row("pruning spares, of layers × tokens", (Cell(fixed(record.spared, 3)),)))
    costs = [
        Row(name, (Cell(fixed(value, 2), interval(half, 2)),))
        for name, (value, half) in record.costs.items()
    ]
    clock = [
        Row(
            name,
            (
                Cell(fixed(1e3 * one.seen, 2)),
                Cell(fixed(1e3 * one.told, 2)),
                Cell(f"{one.told / one.seen - 1:+.1%}"),
                Cell(fixed(one.ratio, 3), interval(one.interval, 3)),
                Cell(fixed(one.acceptance, 3)),
            ),
        )
        for name, one in record.clock.items()
    ]
    heads = (
        "method",
        "measured",
        "foretold",
        "apart",
        "of which costs, on the same output",
        "and recorded acceptances",
    )
    out = [
        Table("Recorded: shares of tokens.", ("", "share"), tuple(known)),
        Table("Measured: median over turns and middle half.", ("of what", ""), tuple(costs)),
        Table("Milliseconds a token.", heads, tuple(clock)),
    ]
    return [*out, *_simulated(record)] if record.speedups else out


def _simulated(record: SimulationRecord) -> list[Table]:
    columns = ("system", *(f"drafter's costs × {scale:g}" for scale in SCALES))
    rows = [
        Row(
            name,
            tuple(Cell(fixed(x, 2, unit="×"), interval(ci, 2)) for x, ci in by_scale.values()),
        )
        for name, by_scale in record.speedups.items()
    ]
    scales = ", ".join(f"× {scale:g}" for scale in SCALES)
    return [
        Table("Simulated: speed-up over plain decoding.", columns, tuple(rows)),
        Table(
            f"Simulated: mean seconds of a request that waits its turn, drafter's costs {scales}.",
            ("system", *(f"load {load:g} of plain decoding" for load in LOADS)),
            _waits(record.latencies),
        ),
        Table(
            f"Simulated: the same in a batch of up to {SEATS}, by who chooses lengths.",
            ("lengths", *(f"load {load:g} of plain decoding" for load in ARRIVALS)),
            _waits(record.batched),
        ),
    ]


def _waits(latencies: dict[str, dict[float, list[float]]]) -> tuple[Row, ...]:
    """Rows of seconds by load, at each scale of the drafter's costs."""
    return tuple(
        Row(name, tuple(Cell(" / ".join(fixed(s, 2) for s in x)) for x in by_load.values()))
        for name, by_load in latencies.items()
    )


def notes(record: SimulationRecord) -> tuple[str, ...]:
    """Load of the machine, and reasons for leaving the simulated tables out."""
    before, after = record.load
    said = [f"the machine's load was {before:.1f} before and {after:.1f} behind the clocks"]
    loud = [name for name, one in record.clock.items() if not one.quiet]
    missed = [name for name, one in record.clock.items() if one.quiet and not one.holds]
    if not record.enough:
        said.append(f"{record.samples} prompts are too few to judge a clock: it foretells nothing")
    elif loud:
        said.append(
            f"the machine was not quiet enough to judge {', '.join(loud)}: intervals are wider "
            f"than ±{TOLERANCE:.0%}, and nothing is foretold; run it alone"
        )
    if missed and record.enough:
        said.append(
            f"the simulation misses the clock of {', '.join(missed)} by more than "
            f"{TOLERANCE:.0%}: it foretells nothing"
        )
    return tuple(said)


def markdown(record: SimulationRecord) -> str:
    """The page."""
    blocks = ["# Systems by simulation", ABOUT]
    blocks += [table.markdown() for table in tables(record)]
    return "\n\n".join([*blocks, *(f"Note: {note}." for note in notes(record))]) + "\n"
