"""The version, and new names: light enough for the first line on a screen."""

import secrets
from datetime import UTC, datetime

VERSION = "0.1.0"


def new_session_name() -> str:
    """Time-ordered, UTC: `20261130-094612-3f9a`."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def new_command_name() -> str:
    """What tells a command from all others, so that one that is sent twice happens once."""
    return secrets.token_hex(8)
