"""A small repository to try things on, made of given files. Nothing of the user's git configuration is used."""

import os
from collections.abc import Mapping
from pathlib import Path


def make_repository(folder: Path, files: Mapping[str, str], message: str = "First version") -> str:
    """A new repository with one commit of `files` on branch main; its id."""
    import git

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # Git's own environment: no user's hooks, templates or signing.
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    with git.Repo.init(folder, initial_branch="main", env=own) as repository:
        author = git.Actor("Sample", "sample@localhost")
        repository.index.add(list(files))
        commit = repository.index.commit(message, author=author, committer=author, skip_hooks=True)
        return commit.hexsha
