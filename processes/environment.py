"""The environment of a command: a short allow list, and answers for every program that would wait for a person."""

from collections.abc import Mapping

ALLOWED = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        # Where toolchains are: folders, never keys.
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "PYENV_ROOT",
        "CARGO_HOME",
        "RUSTUP_HOME",
        "GOPATH",
        "GOROOT",
        "JAVA_HOME",
        "NVM_DIR",
    }
)
ALLOWED_PREFIX = "LC_"

UNATTENDED: Mapping[str, str] = {
    "TERM": "dumb",
    "PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_PAGER": "cat",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_MERGE_AUTOEDIT": "no",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def child_env(parent: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """What a command may know of `parent`, then UNATTENDED, then `extra`, which is passed as it is.

    Relative and empty entries of PATH are dropped: they would run programs of whatever folder the command is in.
    """
    kept = {name: value for name, value in parent.items() if name in ALLOWED or name.startswith(ALLOWED_PREFIX)}
    path = [entry for entry in kept.get("PATH", "").split(":") if entry.startswith("/")]
    kept["PATH"] = ":".join(path) or "/usr/local/bin:/usr/bin:/bin"
    return {**kept, **UNATTENDED, **extra}
