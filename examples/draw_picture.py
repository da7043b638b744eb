"""A picture, plainly and speculatively: the same law of the output, fewer calls of the model."""

import torch

from mmspec import ImagePipeline, SpecConfig

pipe = ImagePipeline.from_pretrained()  # the embedded model; or a folder, or a name on the hub
seconds = {}
for config in 2 * (SpecConfig("plain"), SpecConfig("scd")):  # first calls are slow
    pipe.enable_speculation(config)
    generator = torch.Generator().manual_seed(0)
    out = pipe("a photo of a purple triangle", generator=generator)
    method = config.method
    seconds[method] = out.stats.loop_seconds
    print(f"{method}: {out.stats.nfe:.0f} calls of the target, {seconds[method]:.2f} s")
    out.images[0].save(f"{method}.png")
print(f"speed-up: {seconds['plain'] / seconds['scd']:.2f}")
