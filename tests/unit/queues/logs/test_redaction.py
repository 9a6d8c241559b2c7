"""What viewers see of URLs."""

import pytest

from fairlane.queues.logs.redaction import without_paths


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"https://user:pa@h:80/secret?a#b", b"https://h:80"),
        (b"'https://h/secret' and http://[::1]:8/secret", b"'https://h' and http://[::1]:8"),
        (b"_https://h/secret", b"_https://h"),
        (b"a-name-longer-than-schemes://h/secret", b"a-name-longer-than-schemes://h"),
        *((b"https://user:pa" + sign + b"ss@h", b"https://") for sign in (b"/", b"?", b"#")),
    ],
)
def test_of_a_url_only_scheme_and_host_are_shown(text: bytes, shown: bytes) -> None:
    assert without_paths(text) == shown
