"""No secret survives: known values in any usual spelling, and the shapes that keys have."""

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from eventlog_folders import fill, make, said
from hypothesis import given, settings
from hypothesis import strategies as st

from eventlog.clean import prepare
from eventlog.codec import encode_body
from eventlog.events import Draft, UserSaid
from eventlog.ids import CommandId
from eventlog.redact import Redactor, has_marker, markers

SECRET = 'p+/ss "wörd"\\%\nzz-42'
SHAPES = {
    "openai": "sk-" + "Ab3" * 10,
    "anthropic": "sk-ant-api03-" + "Ab3_" * 10,
    "github": "ghp_" + "Ab3" * 12,
    "github fine": "github_pat_" + "Ab3_" * 10,
    "gitlab": "glpat-" + "Ab3-" * 6,
    "slack": "xoxb-" + "123-abc-" * 3,
    "aws": "AKIA" + "ABCD1234" * 2,
    "google": "AIza" + "Ab3-_" * 7,
    "hugging face": "hf_" + "Ab3" * 11,
    "web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLXZhbHVl",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\n" + "Ab3/" * 16 + "\n-----END RSA PRIVATE KEY-----",
    "cut private key": "-----BEGIN PRIVATE KEY-----\n" + "Ab3/" * 16 + "\n" + "Cd4+" * 10,
}
IN_LINES = {
    "bearer": ("Authorization: Bearer ", "abcdef0123456789"),
    "basic": ("authorization: basic ", "dXNlcjpwYXNz"),
    "header in json": ('"Authorization": "Bearer ', "abcdef0123456789"),
    "header in a dict": ("{'authorization': 'token ", "abcdef0123456789"),
    "url": ("https://", "user:pa55word"),
    "url without a user": ("redis://", ":pa55word"),
}


def spellings(value: str) -> dict[str, str]:
    raw = value.encode()
    forms = {
        "plain": value,
        "json": json.dumps(value, ensure_ascii=False)[1:-1],
        "json in ascii": json.dumps(value)[1:-1],
        "json in json": json.dumps(json.dumps(value, ensure_ascii=False), ensure_ascii=False)[3:-3],
        "json in json in ascii": json.dumps(json.dumps(value))[3:-3],
        "url": quote(value, safe=""),
        "url path": quote(value),
        "url form": quote_plus(value),
        "url in lower case": "".join(
            c.lower() if "%" in quote(value)[max(0, i - 2) : i] else c for i, c in enumerate(quote(value))
        ),
    }
    for shift in range(3):
        for name, encode in (("base64", base64.b64encode), ("base64 for urls", base64.urlsafe_b64encode)):
            forms[f"{name}, {shift} before"] = encode(b"a" * shift + raw + b"tail").decode()
    return forms


@pytest.mark.parametrize("name", spellings(SECRET))
def test_a_known_value_is_cut_out_in_every_spelling(name: str) -> None:
    text = f"before{spellings(SECRET)[name]}after"
    redactor = Redactor([SECRET])
    cleaned = redactor.clean(text)
    assert has_marker(cleaned)
    assert cleaned.startswith("before") and cleaned.endswith("after")
    core = spellings(SECRET)[name][4:20]
    assert core not in cleaned


@pytest.mark.parametrize("name", spellings(SECRET))
def test_preparing_a_body_finds_each_spelling(name: str) -> None:
    stored = prepare(Draft(body=said(spellings(SECRET)[name])), Redactor([SECRET])).draft.body
    assert isinstance(stored, UserSaid)
    assert has_marker(stored.text)


@settings(max_examples=150, deadline=None)
@given(secret=st.text(min_size=8, max_size=20), before=st.text(max_size=5), after=st.text(max_size=5))
def test_suspecting_never_misses_what_cleaning_would_change(secret: str, before: str, after: str) -> None:
    redactor = Redactor([secret])
    for form in spellings(secret).values():
        text = before + form + after
        encoded = encode_body(UserSaid(id=CommandId("u"), text=text)).decode()
        assert redactor.clean(text) == text or redactor.suspects(encoded)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    "around", ["{}", "\n{}\n", "KEY={}", '"{}"', "\\n{}\\n", "key%3D{}", "a_{}", "\x1b[31m{}\x1b[0m"]
)
def test_a_shape_is_cut_out_wherever_it_stands(name: str, around: str) -> None:
    key = SHAPES[name]
    cleaned = Redactor().clean(around.format(key))
    assert has_marker(cleaned)
    assert key[8:] not in cleaned
    stored = prepare(Draft(body=said(around.format(key))), Redactor()).draft.body
    assert stored == said(cleaned)


@pytest.mark.parametrize("name", [name for name in SHAPES if name not in ("openai",)])
def test_a_shape_is_cut_out_in_the_middle_of_a_word(name: str) -> None:
    assert SHAPES[name] not in Redactor().clean(f"word{SHAPES[name]}")


@pytest.mark.parametrize("name", IN_LINES)
def test_what_follows_a_header_or_a_scheme_is_cut_out_and_the_rest_stays(name: str) -> None:
    before, secret = IN_LINES[name]
    tail = "@host/path" if "url" in name else '" rest'
    cleaned = Redactor().clean(before + secret + tail)
    assert secret not in cleaned
    assert cleaned.startswith(before) and cleaned.endswith(tail)
    assert prepare(Draft(body=said(before + secret + tail)), Redactor()).draft.body == said(cleaned)


@pytest.mark.parametrize(
    "text",
    [
        "risk-assessment-and-management-plan",
        "https://example.org/a:b@c",
        "ssh://git@github.com/x",
        "see -----BEGIN CERTIFICATE-----",
        "Authorization: Bearer $TOKEN",
        "through the lighthouse_",
    ],
)
def test_harmless_text_is_left_alone(text: str) -> None:
    assert Redactor(["another-secret"]).clean(text) == text


def test_equal_secrets_stay_equal_and_cleaning_twice_changes_nothing() -> None:
    redactor = Redactor(["hunter2-hunter2"])
    text = redactor.clean("hunter2-hunter2 and hunter2-hunter2 Authorization: Bearer abcdefghijk")
    assert len(markers(text)) == 2
    assert redactor.clean(text) == text


def test_a_short_value_is_no_secret() -> None:
    assert Redactor(["short"]).clean("short words") == "short words"


@pytest.mark.parametrize(
    "piece", ["-----BEGIN RSA PRIVATE KEY-----", "://a:", "authorization: ", "sk-", "A" * 29 + " "]
)
def test_no_text_makes_the_patterns_slow(piece: str) -> None:
    import time

    redactor = Redactor()
    text = "-----BEGIN PRIVATE KEY-----" + piece * (500_000 // len(piece))
    begin = time.process_time()
    redactor.suspects(text)
    redactor.clean(text)
    assert time.process_time() - begin < 2


def test_no_file_of_a_log_holds_a_planted_secret(tmp_path) -> None:
    """G20."""
    secret = "hunter2/hunter2+hunter2"
    opened = make(tmp_path / "s", Redactor([secret]))
    forms = [*spellings(secret).values(), f"Authorization: Bearer {secret}", *SHAPES.values()]
    fill(opened.log, [[said(form)] for form in forms] + [[said((form + " filler " * 10) * 400)] for form in forms])
    planted = [secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode()[:-2], SHAPES["github"][4:]]

    def everything() -> bytes:
        return b"\n".join(path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file())

    live = everything()
    opened.close()
    for form in planted:
        assert form.encode() not in live
        assert form.encode() not in everything()
    assert b"[redacted:" in live
    assert list((tmp_path / "s" / "blobs" / "sha256").iterdir())
