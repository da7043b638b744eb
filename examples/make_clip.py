"""A clip block by block: a small model drafts, and where the reward doubts, the target makes it."""

import torch

from mmspec import SpecConfig, VideoPipeline

pipe = VideoPipeline.from_pretrained()  # the embedded model; or a folder of yours
seconds = {}
for method in ("plain", "sdvg", "plain", "sdvg"):  # the first calls are slow
    pipe.enable_speculation(SpecConfig(method))
    generator = torch.Generator().manual_seed(0)
    prompt = "a red circle moves down"
    out = pipe(prompt, num_frames=141, generator=generator)  # 12 blocks
    seconds[method] = out.stats.loop_seconds
    drafted = out.made_by[0].count("drafter")
    print(f"{method}: {drafted} of {len(out.made_by[0])} blocks drafted, {seconds[method]:.2f} s")
    first, *others = out.frames[0]
    first.save(f"{method}.gif", save_all=True, append_images=others, duration=62, loop=0)
print(f"speed-up: {seconds['plain'] / seconds['sdvg']:.2f}")
