"""Where definitions of background agents are found, which one a name means, and which are begun unasked."""

import os
from pathlib import Path

import pytest

from agent.definition_files import (
    MAX_FILES,
    Found,
    Shelf,
    bundled_shelf,
    find_definitions,
    look_for_definitions,
    repository_shelf,
    user_shelf,
)
from agent.definitions import AgentDefinition

BUNDLED = {
    "checker": ("start", "edit", "turn_end", "question"),
    "reviewer": ("commit", "turn_end", "question"),
    "scout": ("start", "commit", "question"),
}
"""What each wakes on."""
PLAIN = "---\ndescription: Helps.\n---\nHelp.\n"


def named(name: str) -> str:
    return PLAIN.replace("---", f"---\nname: {name}", 1)


def test_the_bundled_agents_are_whole_and_short() -> None:
    found = find_definitions(bundled_shelf(), None, None)
    assert found.problems == ()
    assert found.definitions == found.unasked
    assert {definition.name: definition.wakes_on for definition in found.definitions} == BUNDLED
    for definition in found.definitions:
        assert (definition.source, definition.path) == ("bundled", f"configs/agents/{definition.name}.md")
        assert definition.unasked and definition.notes == () and definition.model is None
        assert definition.tools and not {"write", "edit", "apply_patch", "commit"} & {*definition.tools}
        assert (definition.budget_usd_per_hour or 9) <= 1
        assert all(word in definition.instructions for word in ("`report`", "`stay_silent`", "Never report the same"))
        assert len(definition.instructions) < 2500


def put(folder: Path, name: str, text: str = PLAIN) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.md"
    file.write_text(text)
    return file


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    return tmp_path / "repo"


def origins(definitions: tuple[AgentDefinition, ...]) -> dict[str, str]:
    return {definition.name: definition.path for definition in definitions}


def own(found: Found) -> dict[str, str]:
    return {name: path for name, path in origins(found.definitions).items() if name not in BUNDLED}


def test_the_repository_goes_before_the_user_and_the_user_before_the_bundled(home: Path, repo: Path) -> None:
    put(repo / ".claude/agents", "scout")
    put(repo / ".agents/agents", "linter")
    put(home / ".agents/agents", "scout")
    put(home / ".claude/agents", "checker")
    put(home / ".claude/agents", "linter")
    found = look_for_definitions(home, repo)
    assert origins(found.definitions) == {
        "checker": "~/.claude/agents/checker.md",
        "linter": ".agents/agents/linter.md",
        "reviewer": "configs/agents/reviewer.md",
        "scout": ".claude/agents/scout.md",
    }
    assert found.problems == ()


def test_what_a_repository_defines_is_never_begun_unasked_and_hides_nothing_that_is(home: Path, repo: Path) -> None:
    for name in ("scout", "linter"):
        put(repo / ".agents/agents", name, PLAIN.replace("---", "---\nunasked: true\nsource: user", 1))
    put(home / ".agents/agents", "helper")
    found = look_for_definitions(home, repo)
    assert {d.name: d.unasked for d in found.definitions if d.source == "repository"} == {
        "scout": False,
        "linter": False,
    }
    assert all(definition.unasked for definition in found.unasked)
    assert origins(found.unasked) == {
        "checker": "configs/agents/checker.md",
        "helper": "~/.agents/agents/helper.md",
        "reviewer": "configs/agents/reviewer.md",
        "scout": "configs/agents/scout.md",
    }


def test_of_two_of_a_name_in_one_place_the_first_counts_and_the_other_is_told(home: Path, repo: Path) -> None:
    put(repo / ".agents/agents", "z", named("twin"))
    put(repo / ".claude/agents", "a", named("twin"))
    found = look_for_definitions(home, repo)
    assert own(found) == {"twin": ".agents/agents/z.md"}
    assert found.problems == ("'.claude/agents/a.md' is left out: '.agents/agents/z.md' defines twin too.",)


def test_a_broken_definition_is_told_and_leaves_the_one_below_it(home: Path, repo: Path) -> None:
    put(home / ".agents/agents", "scout", "no front matter")
    found = look_for_definitions(home, repo)
    assert origins(found.definitions)["scout"] == "configs/agents/scout.md"
    [problem] = found.problems
    assert problem.startswith(
        "The agent definition '~/.agents/agents/scout.md' cannot be used: it has no front matter;"
    )


def test_a_home_folder_that_is_the_repository_holds_the_users_own(home: Path) -> None:
    put(home / ".claude/agents", "helper")
    found = look_for_definitions(home, home)
    assert own(found) == {"helper": "~/.claude/agents/helper.md"}
    assert found.definitions == found.unasked


def test_links_out_of_the_repository_are_not_followed(home: Path, repo: Path, tmp_path: Path) -> None:
    put(tmp_path / "elsewhere/agents", "stolen")
    put(repo / "shared", "inside")
    (repo / ".agents").symlink_to("../elsewhere")
    (repo / ".claude/agents").mkdir(parents=True)
    for name, target in (("out", "../../../elsewhere/agents/stolen.md"), ("in", "../../shared/inside.md")):
        (repo / f".claude/agents/{name}.md").symlink_to(target)
    (repo / ".claude/agents/absolute.md").symlink_to(tmp_path / "elsewhere/agents/stolen.md")
    (repo / ".claude/agents/round.md").symlink_to("round.md")
    found = look_for_definitions(home, repo)
    assert own(found) == {"in": ".claude/agents/in.md"}
    assert found.problems == tuple(
        f"The agent definition '.claude/agents/{name}.md' cannot be used: "
        "it is no file inside the repository that can be read."
        for name in ("absolute", "out", "round")
    )


def test_the_users_own_links_are_followed(home: Path, repo: Path, tmp_path: Path) -> None:
    file = put(tmp_path / "dotfiles", "helper")
    (home / ".claude").symlink_to(tmp_path / "dotfiles")
    (home / ".agents/agents").mkdir(parents=True)
    (home / ".agents/agents/linked.md").symlink_to(file)
    (tmp_path / "dotfiles/agents").mkdir()
    put(tmp_path / "dotfiles/agents", "~root", named("tilde"))
    assert own(look_for_definitions(home, repo)) == {
        "linked": "~/.agents/agents/linked.md",
        "tilde": "~/.claude/agents/~root.md",
    }


def test_what_is_no_file_or_no_text_is_told_and_what_is_hidden_passed_over(home: Path, repo: Path) -> None:
    folder = repo / ".agents/agents"
    put(folder, "good")
    put(folder, ".hidden")
    put(folder, "long", PLAIN + "é" * 17_000)
    (folder / "notes.txt").write_text("x")
    (folder / "folder.md").mkdir()
    os.mkfifo(folder / "pipe.md")
    (folder / "latin.md").write_bytes(b"---\ndescription: \xe9\n---\nx")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\x1b.md")).write_text(named("odd"))
    found = look_for_definitions(home, repo)
    assert own(found) == {"good": ".agents/agents/good.md", "odd": ".agents/agents/?\x1b.md"}
    assert [problem.split("'")[1] for problem in found.problems] == [
        f".agents/agents/{name}.md" for name in ("folder", "latin", "long", "pipe")
    ]
    assert [problem.rpartition(": it is ")[2] for problem in found.problems] == [
        "no file inside the repository that can be read.",
        "no UTF-8; save it as such.",
        "longer than 32,768 bytes.",
        "no file inside the repository that can be read.",
    ]


def test_a_folder_with_very_many_files_is_read_up_to_a_bound(home: Path, repo: Path) -> None:
    for number in range(MAX_FILES + 5):
        put(repo / ".agents/agents", f"a{number:03}")
    found = look_for_definitions(home, repo)
    assert sorted(own(found)) == [f"a{number:03}" for number in range(MAX_FILES)]
    assert found.problems == ("'.agents/agents' holds more than 100 files: the rest is left out.",)


def test_without_files_there_are_none(home: Path, repo: Path) -> None:
    (repo / ".claude").write_text("a file")
    assert find_definitions(None, user_shelf(home / "gone"), repository_shelf(repo)) == Found((), (), ())


def test_a_shelf_need_not_be_a_disk() -> None:
    shelf = Shelf(("here",), lambda folder: ["x.md"], {"here/x.md": named("helper").encode()}.get, "far/")
    [definition] = find_definitions(None, shelf, None).definitions
    assert (definition.name, definition.source, definition.path) == ("helper", "user", "far/here/x.md")
