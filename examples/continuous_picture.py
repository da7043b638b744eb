"""A picture of continuous tokens: speculation over the denoising steps, at the same law."""

import torch

from mmspec import ContinuousImagePipeline, SpecConfig

pipe = ContinuousImagePipeline.from_pretrained()  # the embedded model; or a folder of yours
seconds = {}
for method in ("plain", "reflection", "plain", "reflection"):  # the first calls are slow
    pipe.enable_speculation(SpecConfig(method))
    generator = torch.Generator().manual_seed(0)
    prompt = "a photo of a blue square"
    out = pipe(prompt, num_iterations=32, generator=generator)
    seconds[method] = out.stats.loop_seconds
    calls = f"{out.stats.head_calls} calls of the head, {out.stats.backbone_calls} of the backbone"
    print(f"{method}: {calls}, {seconds[method]:.2f} s")
    out.images[0].save(f"{method}.png")
print(f"speed-up: {seconds['plain'] / seconds['reflection']:.2f}")
