"""A rule with two options and a method of its own: `pip install examples/own_parts` adds both.

Then `mmspec ls methods`, `mmspec generate --method 'typical[typical_delta=0.5]'`, evaluation and
demo know them. Declarations import no torch; the class is loaded when it is used.
"""

from mmspec.methods import Preset
from mmspec.methods.options import Options, option
from mmspec.methods.part import Rule


class TypicalOptions(Options):
    typical_epsilon: float = option(0.09, "probability that is always enough", 0, 1)
    typical_delta: float = option(0.3, "share of a law's likeliness that is; less is faster", 0, 1)


PARTS = (
    Rule(
        "typical",
        "typical_acceptance.rule:TypicalRule",
        "a token stands if the target finds it likely for a law of its entropy",
        TypicalOptions,
        {"epsilon": "typical_epsilon", "delta": "typical_delta"},
        contract="lossy",
        paper="Cai et al. 2024",
    ),
    Preset(
        "typical",
        "model",
        "typical",
        "a smaller model drafts, likely enough tokens stand (Medusa)",
        knob="typical_delta",
        sweep=(0.9, 0.3, 0.1),
    ),
)
