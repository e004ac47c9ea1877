"""What messages and files may print."""

import pytest

from flashback.errors import printable, unknown


@pytest.mark.parametrize("text", ["iCaRL, α = 0.1", "Müller 猫 👩‍🔬", "naïve\u00a0−5", "a\\x1b", ""])
def test_ordinary_text_is_printed_as_it_is(text):
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a\x1b]0;TITLE\x07b", "a\\x1b]0;TITLE\\x07b"),
        ("\x9b2J", "\\x9b2J"),
        ("one\ntwo\tthree\r", "one\\ntwo\\tthree\\r"),
        ("exe\u202egnp", "exe\\u202egnp"),
        ("\u2066x\u2069\u200f", "\\u2066x\\u2069\\u200f"),
        ("one\u2028two", "one\\u2028two"),
        (b"caf\xe9".decode(errors="surrogateescape"), "caf\\udce9"),
    ],
)
def test_control_characters_are_printed_as_escapes(text, escaped):
    assert printable(text) == escaped


def test_control_characters_may_be_kept():
    assert printable("one\ntwo\x1b", keep="\n") == "one\ntwo\\x1b"


def test_a_message_names_at_most_a_hundred_known_names():
    names = [f"net{number:03}" for number in range(103)]
    assert str(unknown("model", "other", names)).endswith("net098, net099 and 3 more")
    assert str(unknown("model", "other", names[:100])).endswith("net098, net099")
