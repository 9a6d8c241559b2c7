"""Keys and tokens, as a header carries them. Pure."""


def check_secret(secret: str, what: str) -> None:
    """Raise `ValueError` with a sentence for a key or token that no header can carry: it was copied with an ellipsis in it."""
    for character in secret:
        if not (character.isascii() and character.isprintable()):
            raise ValueError(
                f"{what} holds {character!r}, but secrets are plain ASCII: put the whole secret there, as it was given to you."
            )
