"""Pictures of discrete tokens: their laws are known, so entropy and variation are too."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ...methods import SpecConfig, serving
from ...pipelines.image.pipeline import ImagePipeline
from ..measure.ideal_speedup import BareCosts, ideal_seconds
from ..measure.quality import target_entropy
from ..measure.speed import bare_costs
from ..measure.timing import Sample
from ..measure.variation import summarize, tv_per_step
from ..run.job import Job, Outcome, Plan, Unit
from ..run.run_folder import RunFolder
from ..run.samples import Line
from .base import Rows
from .drawing import DrawingBench, DrawingModality


class ImageBench(DrawingBench):
    """Bench of pictures from discrete tokens."""

    def variation(self, outcome: Outcome) -> None:
        """Tell what a method's rule makes of the target's laws."""
        name = outcome.unit.method
        values = tv_per_step(self.pipe, self.job, self.job.configs[name])
        outcome.lines.append({"kind": "variation", "method": name, "values": values})

    def resolution(self) -> str:
        family = self.pipe.image_model(self.pipe.network(self.job.call.get("height"), None)[0])
        side = self.job.call.get("height")
        height, width = (side, side) if side else family.default_size
        return f"{height}×{width} px"

    def entropy(self, indices: range) -> float:
        return target_entropy(self.pipe, self.job, len(indices))

    @cached_property
    def costs(self) -> dict[str, BareCosts]:
        """Costs of bare forward passes, by network."""
        return bare_costs(self.pipe, self.job.call)

    def bare(self, name: str, sample: Sample) -> Line:
        if isinstance(sample.prompt, list):
            return {}
        for costs in self.costs.values():
            costs.renew()  # a machine's speed drifts: the ideal is measured beside each sample
        config, drafter = self.make_variant(name).config, self.costs.get("drafter")
        bare = ideal_seconds(config, sample.stats, self.costs["target"], drafter)
        spent = {who: dict(sorted(costs.now.items())) for who, costs in self.costs.items()}
        return {"bare_seconds": bare, "costs": spent}


class ImageModality(DrawingModality):
    """Measurement of image generation with discrete tokens."""

    pipeline = ImagePipeline
    entropy_samples = 24
    bench = ImageBench

    def methods(self, pipe: Any, call: dict[str, Any]) -> tuple[str, ...]:
        return tuple(serving("image"))

    def check_call(self, pipe: Any, config: SpecConfig, call: Mapping[str, Any]) -> None:
        pipe.check_speculation(config)
        pipe.network(call.get("height"), None)

    def first(self, job: Job, todo: Plan) -> list[Unit]:
        drafting = [name for name in job.configs if name != "plain"]
        return [*super().first(job, todo), *(Unit("variation", method=name) for name in drafting)]

    def complete(self, job: Job, folder: RunFolder, rows: Rows) -> list[str]:
        for line in folder.log.of("variation"):
            rows[line["method"]].tv_per_step = summarize(line["values"])
        return super().complete(job, folder, rows)
