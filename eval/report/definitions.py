"""What the words of a report mean."""

from __future__ import annotations

from ..schema import Report
from .format import known
from .summary import counted

DEFINITIONS = {
    "Contract": (
        "What a method promises about its output. Exact: the same law as plain decoding of the "
        "target. Exact-greedy: the same tokens when decoding greedily. Bounded: away from that "
        "law by no more than a set amount. Lossy: no promise, only what was measured."
    ),
    "Total variation": (
        "The most by which the probability of any event differs between the next token as the "
        "rule emits it and the target's own; 0 is the same law. Mean over the steps of real "
        "rounds, and the largest."
    ),
    "NFE": (
        "Calls of the target that generate a sample, the prefill of the prompt not counted. It "
        "carries over to other machines; seconds do not."
    ),
    "Tokens per call": (
        "The mean acceptance length: tokens emitted per call of the target, the recovered or "
        "bonus token included. Plain decoding has 1."
    ),
    "Acceptance by position": (
        "How often the drafted token at a position stood, given that all before it did."
    ),
    "Speed-up": (
        "Plain's seconds in the token loop over the method's, for the same prompt and seed in "
        "one process at batch 1, methods in turn; the median over prompts. Prefill, captions "
        "and pixels are left out; end to end has them. Answers that differ in length are compared "
        "token for token."
    ),
    "Ideal and efficiency": (
        "The ideal is the speed-up if the bare forward passes that the method needed were all "
        "that took time. Efficiency is measured over ideal; the rest is the engine's own cost."
    ),
    "Interval": (
        "95 %, by resampling the prompts, each with all of its samples. Differences to plain are "
        "paired: same prompt, same seed. None where there are too few prompts for one."
    ),
    "Verdict": (
        "What the interval of the loss against plain allows to say. No loss: all of it is at or "
        "below 0. Within M: all of it is at or below the margin M. Worse: all of it is above "
        "the margin. Undecided: none of these; more samples would tell."
    ),
    "Knob": (
        "The one setting of a method that trades its speed for quality. Rows that differ in it "
        "alone are one method at several of its values, from safe to fast."
    ),
    "The sceptic's row": (
        "The cheap way to be fast, such as fewer steps or the drafter alone: what a method has "
        "to beat."
    ),
}
MEASURED_DEFINITIONS = {
    "Accepted lengths": (
        "Of how many drafts no token stood, of how many exactly one, and so on: what the mean "
        "acceptance length is a mean of, less the token that the target adds to each."
    ),
    "Latency": (
        "Seconds of a whole call at batch 1: p50 is the middle one, p95 that which one call in "
        "twenty exceeds, told from 20 calls on."
    ),
    "Per second": (
        "Outputs over the seconds of whole calls, and output tokens over those of the token loop, "
        "at batch 1."
    ),
}
SIBLING_DEFINITIONS = {
    "Sibling's calls": (
        "Calls of a model of the target's kind that draws a small picture first, which is then "
        "scaled up. NFE leaves them out, and a call of a sibling as large as the target takes as "
        "long as one of the target."
    ),
}
TEXT_DEFINITIONS = {
    "Same output": (
        "How many of a row's greedy answers are, to the letter, those of plain decoding. Sums in "
        "another order may round two equally likely tokens the other way."
    ),
    "A peer": (
        "transformers' own generate on the same models, in the same process and by the same clock, "
        "against our plain decoding. A hook counts its calls of the target; the first reads the "
        "prompt and emits already, and its seconds are left out of the token loop, to the peer's "
        "advantage. Its assistant is shown no picture."
    ),
    "Shown grey": (
        "The same method while its drafter is shown a grey picture, and the target the true one. "
        "The ratio of both acceptance lengths is what the drafter gains by looking."
    ),
    "Truthfulness and coverage": (
        "Of a description: the share of its claims that hold in the scene, and the share of the "
        "scene's objects that it introduces with their colour."
    ),
    "Speculative Verdict": (
        "Experts answer, those that the others agree with most give their reasons, and the model "
        "answers with these before it. Not the model's own answer: judged by accuracy, against "
        "each expert alone and the model alone (plain)."
    ),
}

CONTINUOUS_DEFINITIONS = {
    "Head calls": (
        "Calls of the target's diffusion head one after the other, for a picture that is drawn "
        "alone: what its reader waits for. Tokens that are denoised together share them. Rows are "
        "what those calls computed, a token at one step each, twice under guidance: drafts that "
        "are judged together take fewer calls and not fewer rows. They carry over to other "
        "machines; seconds do not. Those of a drafter's head come on top: it "
        "denoises step by step, too."
    ),
    "Backbone calls": "The same of the network that tells the head about a token's neighbours.",
    "Steps per call": (
        "The mean acceptance length: denoising steps of a token per call of the head it took part "
        "in, the recovered or bonus step included. Plain sampling has 1."
    ),
}
VIDEO_DEFINITIONS = {
    "Speed-up": (
        "Plain's seconds for all clips together over the method's: the prompt, drafts, frames "
        "decoded, the reward, blocks made again, all of it; the same prompts and seeds in one "
        "process, one clip at a time, methods in turn. Judging is left out: it is no part of "
        "making a clip."
    ),
    "Of the median clip": (
        "The same clip by clip, and the median over prompts: drafts may stand in most clips and "
        "fall in others, so that it says less of a long run, and does not go with a mean quality."
    ),
    "NFE": (
        "Calls of the target that make a clip: one a denoising step of a block that it makes, and "
        "one where drafted blocks wait to be written to its cache."
    ),
    "Tokens per call": "Blocks of the clip per call of the target.",
    "Drafted": "The share of all blocks that are the drafter's, the forced first ones included.",
    "Correctness, attributes, motion, order": (
        "By a detector that looks at the frames and shares nothing with the reward. Attributes: of "
        "each frame, the right shapes and colours, none too many. Motion: of each frame, the share "
        "of objects that are there and have moved as they should. Order: of clips in which two "
        "objects pass, whether they pass the stated way. Correctness: the mean over blocks of the "
        "product of the three."
    ),
    "Of plain's": (
        "A mean over plain's, with the interval of the ratio when prompts are resampled, both "
        "methods' clips together."
    ),
    "At equal drafted shares": (
        "A method's mean less that of a mixture of two rows of another way to route, which drafts "
        "just as much: some clips as in the one, the others as in the other. Anybody could route "
        "so, and nothing is assumed of what lies between the two; where they lie far apart, a row "
        "between them would be better than the mixture, so two methods stand each against the "
        "other. A row that drafts more than all "
        "of the other way is itself mixed, with plain. Prompts are resampled and the "
        "mixture is found anew each time. Each interval is 95 % by itself, not all together."
    ),
    "The parts of a clip's time": (
        "Draft: denoising by the drafter. Decode: latents to frames, of drafts that fall too. "
        "Reward: judging drafted frames. Regenerate: denoising by the target. Commit: writing "
        "blocks to the caches by a call of its own, where many wait; else the next call of the "
        "model writes them along the way. Rest: turning frames into pictures, and the loop itself."
    ),
}
AGAIN_DEFINITIONS = {
    "Other seeds": (
        "Plain once more, with other seeds: how far every figure moves by chance alone. A distance "
        "that ends in to_plain is to these pictures; plain's own is the noise floor, and a method "
        "of the same law is not surely above it."
    ),
}


def definitions(report: Report) -> dict[str, str]:
    """What a report's words mean."""
    found = dict(DEFINITIONS)
    if counted(report):
        found = {n: text for n, text in found.items() if n not in ("NFE", "Tokens per call")}
        found |= CONTINUOUS_DEFINITIONS
    elif report.pipeline == "continuous":
        found["NFE"] = (
            "Calls of the target's diffusion head that generate a token, one after the other; a "
            "picture's are counted where it is timed."
        )
    told = {
        "Accepted lengths": any(row.accepted_lengths for row in report.methods.values()),
        "Latency": any(known(row.seconds_p95) for row in report.methods.values()),
        "Per second": any(known(row.outputs_per_second) for row in report.methods.values()),
    }
    found |= {name: MEASURED_DEFINITIONS[name] for name, is_so in told.items() if is_so}
    if any(known(row.sibling_calls_per_sample) for row in report.methods.values()):
        found |= SIBLING_DEFINITIONS
    if report.pipeline == "video":
        found |= VIDEO_DEFINITIONS
    if any(row.role == "again" for row in report.methods.values()):
        found |= AGAIN_DEFINITIONS
    return found | (TEXT_DEFINITIONS if report.pipeline == "vlm" else {})
