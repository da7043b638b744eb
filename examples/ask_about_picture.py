"""A picture described by a vision-language model, word for word the plain answer, sooner."""

import numpy as np
from PIL import Image

from mmspec import SpecConfig, VlmPipeline
from mmspec.worlds.shapes import render, sample

_, scene = sample(np.random.default_rng(0), "two_object", "held_out")
picture = Image.fromarray(render(scene, 96))
picture.save("scene.png")

pipe = VlmPipeline.from_pretrained()  # or "llava-hf/llava-1.5-7b-hf", or a folder
pipe.set_progress_bar_config(disable=True)
answers, seconds = {}, {}
for method in ("plain", "eagle", "plain", "eagle"):  # the first calls of a process are slow
    pipe.enable_speculation(SpecConfig(method))
    out = pipe("Describe the picture in detail.", picture, max_new_tokens=120)
    answers[method], seconds[method] = out.text, out.stats.loop_seconds
    print(f"{method}: {out.stats.mean_acceptance_length:.2f} tokens a call of the model")
print(answers["eagle"][0])
print("as plainly:", answers["eagle"] == answers["plain"])
print(f"speed-up: {seconds['plain'] / seconds['eagle']:.2f}")
