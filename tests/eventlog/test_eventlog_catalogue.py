"""All sessions of a user: listed, found, queried as one."""

import stat
from pathlib import Path

import duckdb
import pytest
from eventlog_folders import crash_image, fill, said
from eventlog_session import session

from eventlog.catalogue import SUMMARY, list_sessions, union_view
from eventlog.errors import LogNotFound
from eventlog.finding import find_session
from eventlog.ids import SessionId
from eventlog.opening import Opened, create_log
from eventlog.redact import Redactor
from eventlog.seams import FixedClock


def make(state: Path, name: str, hour: int = 1) -> Opened:
    return create_log(state / name, SessionId(name), FixedClock(hour * 3_600_000_000), Redactor())


@pytest.fixture
def state(tmp_path) -> Path:
    for name, hour in (("2025-aa", 1), ("2025-ab", 3), ("2025-b", 2)):
        opened = make(tmp_path, name, hour)
        fill(opened.log, [session()])
        opened.close()
    (tmp_path / "not a session").mkdir()
    (tmp_path / "file").write_text("")
    return tmp_path


def test_sessions_are_listed_newest_first(state: Path) -> None:
    listed = list_sessions(state)
    assert [one.folder.name for one in listed] == ["2025-ab", "2025-b", "2025-aa"]
    summary = listed[0].summary
    assert summary is not None
    assert (summary.title, summary.model, summary.turns, summary.ending) == ("list the files", "m/one", 1, "done")
    assert (summary.cost_usd, summary.events, summary.started_us) == (0.5, 16, 3 * 3_600_000_000)
    assert not listed[0].live
    assert list_sessions(state / "nowhere") == ()


def test_the_summary_is_cached_privately_and_made_anew_when_the_log_changed(state: Path) -> None:
    first = list_sessions(state)
    cache = state / "2025-aa" / SUMMARY
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    kept = cache.stat().st_mtime_ns
    assert list_sessions(state) == first
    assert cache.stat().st_mtime_ns == kept
    from eventlog.opening import open_log

    opened = open_log(state / "2025-aa", SessionId("2025-aa"), FixedClock(9 * 3_600_000_000), Redactor())
    fill(opened.log, [[said("more")]])
    opened.close()
    changed = list_sessions(state)[0]
    assert changed.folder.name == "2025-aa"
    assert changed.summary is not None and changed.summary.events == 17


@pytest.mark.parametrize("nonsense", ["", "[]", "{", '{"title":1}', "\x80"])
def test_a_spoiled_summary_is_made_anew(state: Path, nonsense: str) -> None:
    expected = list_sessions(state)
    (state / "2025-aa" / SUMMARY).write_text(nonsense, "latin-1")
    assert list_sessions(state) == expected


def test_a_live_session_is_listed_as_live(state: Path) -> None:
    opened = make(state, "2025-live", 8)
    fill(opened.log, [[said("working")]])
    listed = list_sessions(state)[0]
    opened.close()
    assert (listed.folder.name, listed.live) == ("2025-live", True)
    assert listed.summary is not None and listed.summary.title == "working"


def test_a_damaged_session_is_listed_last_with_its_trouble(state: Path) -> None:
    (state / "2025-ab" / "log.duckdb").write_bytes(b"nonsense")
    last = list_sessions(state)[-1]
    assert last.folder.name == "2025-ab" and last.summary is None
    assert last.trouble is not None and "damaged" in last.trouble


def test_a_session_is_found_by_id_or_by_a_beginning_that_fits_one(state: Path) -> None:
    assert find_session(state, "2025-b").name == "2025-b"
    assert find_session(state, "2025-aa").name == "2025-aa"
    with pytest.raises(LogNotFound, match="2 sessions begin with 2025-a"):
        find_session(state, "2025-a")
    for name in ("", "x", "../2025-b", "not"):
        with pytest.raises(LogNotFound, match="no session"):
            find_session(state, name)


def test_an_id_that_begins_another_is_found_itself(state: Path) -> None:
    make(state, "2025").close()
    assert find_session(state, "2025").name == "2025"


def test_one_view_covers_all_sessions_also_live_ones(state: Path) -> None:
    opened = make(state, "2025-live")
    fill(opened.log, [session()])
    folders = [one.folder for one in list_sessions(state)]
    with union_view(folders) as view:
        assert view.skipped == ()
        columns, rows = view.query("SELECT session, count(*) AS n FROM log GROUP BY session ORDER BY session")
        assert columns == ["session", "n"]
        assert rows == [(name, 16) for name in ("2025-aa", "2025-ab", "2025-b", "2025-live")]
        assert view.query("SELECT count(*) FROM events")[1] == [(64,)]
        assert view.query("SELECT count(*), sum(cost_usd) FROM model_calls")[1] == [(12, 2.0)]
        assert view.query("SELECT count(*) FROM tool_runs")[1] == [(4,)]
        assert view.query("SELECT count(*) FROM approvals")[1] == [(4,)]
    opened.close()


def test_a_damaged_session_is_skipped_and_named(state: Path) -> None:
    (state / "2025-aa" / "log.duckdb").write_bytes(b"nonsense")
    live = make(state, "2025-cut")
    fill(live.log, [[said("x")]])
    cut = crash_image(state / "2025-cut", state / "2025-image")
    live.close()
    (cut / "log.duckdb.wal").unlink()
    with union_view([state / "2025-aa", cut, state / "2025-b", state / "gone"]) as view:
        assert [folder.name for folder, _ in view.skipped] == ["2025-aa", "2025-image", "gone"]
        assert "cannot be opened" in view.skipped[0][1]
        assert "1 acknowledged event lost" in view.skipped[1][1]
        assert view.query("SELECT count(*) FROM events")[1] == [(16,)]


def test_a_view_of_nothing_is_empty() -> None:
    with union_view([]) as view:
        assert view.query("SELECT * FROM log")[1] == []


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE x (a INT)",
        "INSERT INTO session_0.main.events SELECT * FROM events",
        "COPY events TO '/tmp/thalia-escape.csv'",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "PRAGMA database_list",
        "ATTACH '/tmp/thalia-escape.duckdb'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPORT DATABASE '/tmp/thalia-escape'",
        "CALL pragma_version()",
        "SELECT 1; DROP VIEW events",
        "",
    ],
)
def test_only_one_select_is_run(state: Path, sql: str) -> None:
    with union_view([state / "2025-b"]) as view:
        with pytest.raises(ValueError, match="Only one SELECT"):
            view.query(sql)
        if sql and not sql.startswith(("CREATE", "PRAGMA", "CALL", "SELECT")):
            with pytest.raises(duckdb.Error):
                view.connection.execute(sql)
    assert not list(Path("/tmp").glob("thalia-escape*"))


@pytest.mark.parametrize(
    "source",
    [
        "read_csv('/etc/passwd')",
        "read_text('/etc/hostname')",
        "'/etc/passwd'",
        "glob('/*')",
        "read_csv('https://127.0.0.1/x')",
        "read_json('/proc/self/environ')",
    ],
)
def test_a_select_reaches_no_file(state: Path, source: str) -> None:
    with union_view([state / "2025-b"]) as view, pytest.raises(ValueError):
        view.query(f"SELECT * FROM {source}")


def test_no_copy_is_left_behind(state: Path) -> None:
    with union_view([state / "2025-b"]) as view:
        (place,) = {
            Path(str(row[0])).parent for row in view.query("SELECT path FROM duckdb_databases() WHERE path <> ''")[1]
        }
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert not place.parent.exists()
