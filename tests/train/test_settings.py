"""Settings of a training: one reader of text, of heads, drafters, judges and routers."""

from __future__ import annotations

import pytest

from mmspec.errors import InputError
from mmspec.train.image.dflash_head import SIZES as DFLASH
from mmspec.train.image.judge import ImageJudgeRecipe
from mmspec.train.settings import settings_of
from mmspec.train.text.smaller import SIZES as DRAFTER
from mmspec.train.vlm.judge import VlmJudgeRecipe
from mmspec.train.vlm.step_router import VlmRouterRecipe

HEAD = {"factor": 4, "choose": "gate"}
ALL = {
    "a drafter": DRAFTER,
    "dflash": DFLASH,
    "image judge": ImageJudgeRecipe.known,
    "vlm judge": VlmJudgeRecipe.known,
    "step router": VlmRouterRecipe.known,
    "specvlm": HEAD,
}


def test_values_are_of_their_usual_types():
    judge = VlmJudgeRecipe.known
    assert settings_of({}, judge, "judge") == {"pictures": 2400, "recall": 0.9}
    given = {"pictures": "8", "recall": "1"}
    found = settings_of(given, judge, "judge")
    assert found == {"pictures": 8, "recall": 1.0}
    assert [type(value) for value in found.values()] == [int, float]
    assert settings_of({"choose": "pooling"}, HEAD, "specvlm") == {"factor": 4, "choose": "pooling"}
    assert settings_of({"width": "0"}, DRAFTER, "a drafter")["width"] == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"picture": "8"}, "unknown setting of judge 'picture'; did you mean 'pictures'"),
        ({"recall": "much"}, "recall of judge is a number, not 'much'"),
        ({"recall": "1.5"}, "recall of judge is above 0 and at most 1, not 1.5"),
        ({"recall": "nan"}, "recall of judge is above 0 and at most 1, not nan"),
        ({"recall": "0"}, "recall of judge is above 0 and at most 1, not 0"),
        ({"pictures": "0"}, "pictures of judge is above 0"),
        ({"pictures": "0.4"}, "pictures of judge is a whole number, not '0.4'"),
        ({"pictures": "2000000"}, "pictures of judge is above 0 and at most 1.04858e"),
    ],
)
def test_what_can_not_be_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        settings_of(given, VlmJudgeRecipe.known, "judge")


@pytest.mark.parametrize("text", ["-1", "1.5", "1_0", " 1", "two", ""])
@pytest.mark.parametrize("what", ALL)
def test_all_trainings_take_the_same_whole_numbers(what, text):
    known = ALL[what]
    name = next(iter(known))
    with pytest.raises(InputError, match=f"{name} of {what} is a whole number, not '{text}'"):
        settings_of({name: text}, known, what)
