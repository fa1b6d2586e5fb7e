"""What a `git` command line does: only reads, changes the index or HEAD, or touches what agents share."""

from typing import Literal

from agent.permissions.programs import Options, Reading, parse_options, words
from agent.permissions.words import Word

Effect = Literal["worktree", "shared", "network", "other"]

_GLOBAL_FLAGS = frozenset({"--no-pager", "-p", "--paginate", "--bare", "--no-replace-objects", "--literal-pathspecs"})
_GLOBAL_VALUED = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"})

_SHOWS = (
    "--stat=? --shortstat --numstat --name-only --name-status --summary --oneline --graph --all --decorate=? --format= "
    "--pretty=? --since= --until= --after= --before= --author= --grep= --follow --abbrev-commit --abbrev=? --date= "
    "--reverse --merges --no-merges --first-parent --max-count= --skip= --cached --staged --word-diff=? --color=? "
    "--no-color --no-ext-diff --no-textconv --patch --no-patch --check --diff-filter= --exit-code --quiet --raw "
    "--relative --unified= --find-renames=? --ignore-all-space --minimal --merge-base --cc --no-renames --branches "
    "--tags --remotes --topo-order --date-order --name-status --root --left-right --cherry-pick --full-index --text"
)
_READS: dict[str, Options] = {
    "status": Options("sbvz", "", "--short --branch --porcelain=? --ignored=? --untracked-files=? --long --show-stash"),
    "diff": Options("puwbszaRMCD", "USG", _SHOWS),
    "log": Options("puwbszaRMCicE", "USGnL", _SHOWS, number=True),
    "show": Options("puwbszaMC", "USG", _SHOWS),
    "rev-list": Options("", "n", "--count --all --max-count= --no-merges --first-parent", number=True),
    "ls-files": Options("cdomiszutv", "x", "--cached --others --modified --deleted --exclude-standard --stage"),
    "ls-tree": Options("drtlz", "", "--name-only --full-tree --full-name --long"),
    "blame": Options("wesltfnMC", "L", "--porcelain --line-porcelain --show-email --date="),
    "rev-parse": Options(
        "q",
        "",
        "--show-toplevel --abbrev-ref --short=? --verify --git-dir --is-inside-work-tree --show-prefix --quiet "
        "--git-common-dir --symbolic-full-name --is-bare-repository --show-cdup --all",
    ),
    "describe": Options("", "", "--tags --always --dirty=? --all --long --abbrev= --match= --exact-match"),
    "merge-base": Options("a", "", "--all --is-ancestor --fork-point --octopus"),
    "grep": Options(
        "inlwcIEFPvhoqL", "eABC", "--count --name-only --line-number --ignore-case --cached --and --or --not"
    ),
    "cat-file": Options("pte", ""),
    "show-ref": Options("sd", "", "--heads --tags --head --verify --hash=?"),
    "for-each-ref": Options("", "", "--format= --sort= --count= --contains=? --merged=?"),
    "count-objects": Options("vH"),
    "shortlog": Options("sne", "", "--summary --numbered --email --no-merges"),
    "version": Options(),
}
_LISTS: dict[str, Options] = {
    "branch": Options("avr", "", "--list --all --remotes --show-current --verbose"),
    "tag": Options("ln", "", "--list"),
    "remote": Options("v"),
}
_LIST_WORDS = {"stash": {"list", "show"}, "worktree": {"list"}}
_WORKTREE = words(
    "add am apply bisect checkout checkout-index cherry-pick citool clean commit commit-tree gui init merge mergetool "
    "mv read-tree rebase reset restore revert rm sparse-checkout switch update-index write-tree"
)
_SHARED = words(
    "branch bundle config fast-import filter-branch filter-repo gc maintenance notes pack-refs prune push reflog "
    "remote repack replace send-pack stash submodule subtree symbolic-ref tag update-ref worktree"
)
_NETWORK = words("clone fetch fetch-pack ls-remote pull push send-email svn")


def subcommand(args: tuple[Word, ...]) -> tuple[str, tuple[Word, ...], bool] | None:
    """(subcommand, its words, whether options stand before it); None where it is not literal or missing."""
    index = 0
    while index < len(args):
        word = args[index]
        if not isinstance(word, str):
            return None
        if word in _GLOBAL_VALUED:
            index += 2
        elif word.startswith("-"):
            index += 1
        else:
            return word, args[index + 1 :], index > 0 and args[:index] != ("--no-pager",)
    return None


def read_only_git(args: tuple[Word, ...]) -> Reading | None:
    """What a git command that changes nothing and runs no other program reads; None for every other one."""
    found = subcommand(args)
    if found is None or found[2]:
        return Reading(needs_root=True) if args in (("--version",), ("version",)) else None
    name, rest, _ = found
    if name in _LIST_WORDS:
        return Reading(needs_root=True) if len(rest) == 1 and rest[0] in _LIST_WORDS[name] else None
    known = _READS.get(name) or _LISTS.get(name)
    parsed = parse_options(rest, known) if known is not None else None
    if parsed is None:
        return None
    options, operands = parsed
    if name in _LISTS and operands and "--list" not in options and "-l" not in options:
        return None
    if any("%G" in value for value in options.values()):
        return None
    return Reading(operands, contents=name in ("diff", "log", "show", "grep", "blame", "cat-file"), needs_root=True)


def effect_of(args: tuple[Word, ...]) -> Effect:
    """What a git command that is not read-only changes; "other" for a subcommand that is not known."""
    found = subcommand(args)
    if found is None:
        return "shared"
    name = found[0]
    if name in _NETWORK:
        return "network" if name != "push" else "shared"
    if name in _SHARED:
        return "shared"
    return "worktree" if name in _WORKTREE else "other"


def without_global_options(args: tuple[Word, ...]) -> tuple[Word, ...]:
    """The words from the subcommand on, so that a rule for `git push` also meets `git -C . push`."""
    found = subcommand(args)
    return args if found is None else (found[0], *found[1])
