"""What the documentation shows can be used as it stands, and what it names exists."""

import re
import tomllib
from pathlib import Path

import pytest

from actors.building import make_rules
from configs.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def test_the_settings_shown_are_valid_and_name_every_setting() -> None:
    shown = re.search(r"```toml\n(.*?)```", (ROOT / "docs" / "configuration.md").read_text(), re.DOTALL)
    assert shown is not None
    settings = Settings.model_validate(tomllib.loads(shown.group(1)))
    assert len(make_rules(settings).rules) == 3
    assert settings.model_fields_set == set(Settings.model_fields)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_links_to_files_that_exist(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_modules_that_exist(page: Path) -> None:
    rooms = "actors|agent|configs|eventlog|frontends|processes|worktrees"
    named = re.findall(rf"`((?:{rooms})/[\w/]+\.\w+)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []
