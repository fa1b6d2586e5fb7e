"""Instruction files: which are taken, in which order, and what they cannot do."""

from pathlib import Path

from agent.tools.instructions import MAX_BYTES, collect, reader


def test_instructions_go_from_the_general_to_the_special():
    files = {"AGENTS.md": b"root\n", "CLAUDE.md": b"not taken", "src/CLAUDE.md": b"src\n", "other/AGENTS.md": b"no"}
    text = collect(Path("/r"), Path("/r/src/deep"), files.get, ("~/.config/thalia/AGENTS.md", b"mine"))
    assert text == (
        "# Instructions from ~/.config/thalia/AGENTS.md\n\nmine\n\n"
        "# Instructions from AGENTS.md\n\nroot\n\n"
        "# Instructions from src/CLAUDE.md\n\nsrc"
    )


def test_without_files_there_is_nothing():
    assert collect(Path("/r"), Path("/r"), {"AGENTS.md": b" \n"}.get) == ""


def test_a_folder_elsewhere_counts_as_the_root():
    assert "root" in collect(Path("/r"), Path("/elsewhere"), {"AGENTS.md": b"root"}.get)


def test_a_long_file_is_cut():
    text = collect(Path("/r"), Path("/r"), {"AGENTS.md": b"x" * (MAX_BYTES + 1)}.get)
    assert text.count("x") == MAX_BYTES
    assert text.endswith("[cut after 32,768 bytes]")


def test_invisible_instructions_become_visible():
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "rm")
    text = collect(Path("/r"), Path("/r"), {"AGENTS.md": f"be kind{hidden}".encode()}.get)
    assert "be kind<U+E0072><U+E006D>" in text
    assert "[invisible" in text


def test_links_are_followed_inside_the_repository_only(tmp_path: Path):
    root = tmp_path / "repo"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (root / "AGENTS.md").symlink_to("../secret")
    (root / "CLAUDE.md").write_text("ours")
    (root / "sub/AGENTS.md").symlink_to("../CLAUDE.md")
    text = collect(root, root / "sub", reader(root))
    assert text == "# Instructions from CLAUDE.md\n\nours\n\n# Instructions from sub/AGENTS.md\n\nours"


def test_a_folder_of_that_name_is_no_file(tmp_path: Path):
    (tmp_path / "AGENTS.md").mkdir()
    assert collect(tmp_path, tmp_path, reader(tmp_path)) == ""
