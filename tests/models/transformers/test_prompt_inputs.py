"""Questions as every family's processor lays them out; the oracle is transformers' own template."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from processors import CPU, FAMILIES, PLACEHOLDER, processor

from mmspec.errors import InputError
from mmspec.models.transformers.prompt_inputs import process_questions, text_ids

PICTURES = [Image.new("RGB", size, "red") for size in ((20, 24), (40, 16))]


def own(made, pictures, question):
    """What transformers makes of one question."""
    content = [{"type": "image", "image": picture} for picture in pictures]
    turn = [{"role": "user", "content": [*content, {"type": "text", "text": question}]}]
    return made.apply_chat_template(
        turn,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        processor_kwargs={"return_tensors": "pt"},
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("adds_start", [True, False])
@pytest.mark.parametrize("start", ["<s>", "{{ bos_token }}", ""])
def test_inputs_are_those_of_transformers(family, adds_start, start):
    made = processor(family, start, adds_start)
    wanted = own(made, PICTURES[:1], "what <s> is it?")
    found = process_questions(made, [PICTURES[:1]], ["what <s> is it?"], CPU)
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        assert torch.equal(value, torch.as_tensor(wanted[name])), name
    said = found["input_ids"][0].tolist()
    assert said[:2].count(1) == (adds_start or start != "")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("start", ["<s>", ""])
def test_rows_of_a_batch_are_those_of_each_alone(family, start):
    made = processor(family, start)
    mark = PLACEHOLDER.get(family, "<image>")
    asks = ["why?", f"what does {mark} mean, and {mark}?", "what is in both?"]
    seen = [[], PICTURES[:1], PICTURES]
    found = process_questions(made, seen, asks, CPU)
    for row, (pictures, question) in enumerate(zip(seen, asks, strict=True)):
        alone = process_questions(made, [pictures], [question], CPU)
        real = found["attention_mask"][row].bool()
        assert torch.equal(found["input_ids"][row][real], alone["input_ids"][0])
        assert real.tolist() == sorted(real.tolist())  # padded on the left
        if "mm_token_type_ids" in found:
            kinds = found["mm_token_type_ids"][row]
            assert torch.equal(kinds[real], alone["mm_token_type_ids"][0])
    made.tokenizer.pad_token = None  # as of Llama's own: rows are filled by the end of texts
    filled, real = process_questions(made, seen, asks, CPU), found["attention_mask"]
    assert torch.equal(filled["attention_mask"], real)
    assert torch.equal(filled["input_ids"][real.bool()], found["input_ids"][real.bool()])
    assert made.tokenizer.pad_token is None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shown", [0, 1, 2])
def test_placeholders_in_a_question_are_text(family, shown):
    made = processor(family, "<s>")
    mark = PLACEHOLDER.get(family, "<image>")
    video = getattr(made, "video_token", None) or mark
    question = f"{mark}{mark} what does {mark} mean beside {video} ?"
    pictures = PICTURES[:shown]
    found = process_questions(made, [pictures], [question], CPU)
    ids = found["input_ids"][0].tolist()
    assert made.tokenizer.decode(ids).endswith(f"{question}Assistant:")
    # as many placeholders as without them in the text, and letters otherwise
    plain = process_questions(made, [pictures], ["what"], CPU)["input_ids"][0].tolist()
    for token in (mark, video):
        number = made.tokenizer.convert_tokens_to_ids(token)
        assert ids.count(number) == plain.count(number)
    letters = own(made, pictures, "@" * len(question))["input_ids"]
    assert len(ids) == len(letters[0])  # a token a letter
    if "mm_token_type_ids" in found:
        assert found["mm_token_type_ids"].shape == found["input_ids"].shape


@pytest.mark.parametrize("family", FAMILIES)
def test_placeholders_in_messages_are_text(family):
    """Of several turns, whose texts are told apart."""
    made = processor(family, "<s>")
    mark = PLACEHOLDER.get(family, "<image>")

    def messages(first, answer, last):
        return [
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": first}]},
            {"role": "assistant", "content": [{"type": "text", "text": answer}]},
            {"role": "user", "content": [{"type": "text", "text": last}]},
        ]

    said = messages(f"a {mark}", "b", f"{mark} c")
    ids = process_questions(made, [PICTURES[:1]], [said], CPU)["input_ids"][0].tolist()
    plain = process_questions(made, [PICTURES[:1]], [messages("a", "b", "c")], CPU)["input_ids"][
        0
    ].tolist()
    number = made.tokenizer.convert_tokens_to_ids(mark)
    assert ids.count(number) == plain.count(number)
    assert len(ids) - len(plain) == 2 * len(f" {mark}")  # a token a letter
    assert said == messages(f"a {mark}", "b", f"{mark} c")  # the caller's is not written to


def test_text_alone_has_no_placeholders():
    made = processor("llava")
    made.tokenizer.add_tokens(["<audio>"])  # no special one: no tokenizer splits it
    made.audio_token = "<audio>"
    ids = text_ids(made, "an <image>, an <audio>")
    assert made.tokenizer.decode(ids) == "an <image>, an <audio>"
    assert len(ids) == len("an <image>, an <audio>")
    assert text_ids(made, "plain") == made.tokenizer("plain", add_special_tokens=False).input_ids


def test_without_a_token_to_spare():
    made = processor("llava", "<s>")
    with pytest.raises(InputError, match="leave <image> out of the text"):
        process_questions(made, [[]], ["<image> <pad> </s>"], CPU)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_a_picture_that_is_refused_is_named_in_one_line(family):
    made, thin = processor(family), Image.new("RGB", (2000, 9))
    with pytest.raises(InputError, match=r"refuses a picture of 2000×9 pixels: .*aspect") as caught:
        process_questions(made, [[thin]], ["what?"], CPU)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="refuses question 2 of 3, pictures of 20×24, 2000×9 pix"):
        process_questions(made, [[], [PICTURES[0], thin], []], ["a", "b", "c"], CPU)


def test_a_processor_without_a_template():
    made = processor("llava")
    made.chat_template = None
    with pytest.raises(InputError, match="LlavaProcessor has no chat template"):
        process_questions(made, [[]], ["a"], CPU)
