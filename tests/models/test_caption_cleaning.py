"""Captions cleaned as published models' were, against the authors' own code.

What is expected was computed by LlamaGen's `language/t5.py` with Beautiful Soup, apart from ours.
"""

from __future__ import annotations

import pytest

from mmspec.models.caption_cleaning import clean_caption, repaired

CAPTIONS = [
    ("A red circle — @someone https://a.com/b", "a red circle"),
    ("A_BLUE_star_left_of_a_ring &amp; a heart", "a blue star left of a ring a heart"),
    (
        "A blue Porsche 356 parked in front of a yellow brick wall.",
        "a blue porsche 356 parked in front of a yellow brick wall.",
    ),
    (
        "A portrait photo of a kangaroo wearing an orange hoodie & blue sunglasses",
        "a portrait photo of a kangaroo wearing an orange hoodie blue sunglasses",
    ),
    ("A man – tall, bearded — walks his dog.", "a man - tall, bearded - walks his dog."),
    ("Sunset by @john_doe at the beach", "sunset by at the beach"),
    ("my_cat_on_the_sofa.jpg", ""),
    ("this-is-my-cute-cat", "this is my cute cat"),
    (
        "a well-known artist's state-of-the-art piece",
        "a well known artist's state of the art piece",
    ),
    ("Visit https://www.example.com/shop?id=3 for more", "visit ?id=3 for more"),
    ("see www.flickr.com/photos/abc and mail me@site.com", "see and mail me"),
    ("“Hello” said the ‘fox’", "hello\" said the 'fox"),
    ("Rock &amp; Roll &lt;b&gt;live&lt;/b&gt;", "rock roll live< b>"),
    ("<b>Bold</b> &nbsp;cat<br/>on a mat", "bold caton a mat"),
    ("a <person> rides a horse", "a person rides a horse"),
    ("schÃ¶ne HÃ¤user in der Altstadt", "schã¶ne hã¤user in der altstadt"),
    ("caf%C3%A9+terrace+at+night", "café terrace at night"),
    ("FREE SHIPPING!!! ***Big Sale*** #123 item jc6640vc", "!!! big sale item"),
    ("a 4x4 truck, 1920×1080 wallpaper page 12", "a truck, wallpaper"),
    ("a cat 猫 and a dog 犬", "a cat and a dog"),
    ("wait... what?", "wait what?"),
    ('"a quoted caption"', "a quoted caption"),
    ("room 5 : a chair/table", "room 5: a chair table"),
    ("Lego set #75192 (2017) [new] {sealed}", "lego set 2017 new sealed"),
    ("download free png image of a rose", "of a rose"),
    ("3:30 ", "3:30"),
    ("一只猫", ""),
    ("He said:\\nlook, a bird.It flies", "he said: look, a flies"),
    (
        "A map of the United States made out of sushi. It is next to a glass of red wine.",
        "a map of the united states made out of sushi. it is next to a glass of red wine.",
    ),
    ("192.168.0.1 server rack, e.g.an old one", "server rack, e. g. an old one"),
    ("½ cup of sugar ~ 100% natural™", "cup of sugar 100% natural"),
]
PAGES = [
    ("a <script>cat</script> dog", "a dog"),
    ("<template>a<b>cat</template> dog</b>", "dog"),
    ("seen <!-- not seen --> by all", "seen by all"),
    ("a < b and a <3 you", "a < b and a <3 you"),
    ("caf&eacute; &#8217;n&#39; &#x62;ar &foo; bar", "café 'n' bar foo bar"),
    ("<rt>x</rt>ruby</p> text<br></br>!", "ruby text!"),
]


@pytest.mark.parametrize(("caption", "cleaned"), [*CAPTIONS, *PAGES])
def test_as_the_authors_clean(caption, cleaned):
    assert clean_caption(caption) == cleaned


def test_what_is_clean_stays():
    """The embedded models' captions, say, read the same."""
    for caption in ("a photo of two blue stars", "a red circle left of a blue square"):
        assert clean_caption(caption) == caption


def test_a_declaration_without_an_end_is_text():
    assert isinstance(clean_caption("a <![cat"), str)


def test_repaired():
    """Wan: mended and unescaped, and nothing else."""
    assert (
        repaired(" The schÃ¶ne HÃ¤user &amp;amp; “cats” @me ") == 'The schöne Häuser & "cats" @me'
    )
