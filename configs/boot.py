"""Which boot of the machine this is. What was not synced before another one may be gone, or be there in part."""

from functools import cache
from pathlib import Path

from configs import crash


@cache
def boot_id() -> str:
    """Empty where the system does not say."""
    try:
        return crash.BOOT or Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
