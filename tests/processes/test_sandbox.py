"""A confined command sees its worktree, its toolchains and /usr, and reaches nothing else (G25)."""

import asyncio
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from processes.commands import Command, Confinement
from processes.etc import prepare_etc
from processes.runner import Runner
from processes.sandbox import Host, candidates, find_host, mounts, sandbox_argv
from processes.self_test import probe, self_test, standard
from processes.tree import read
from tests.processes.running import command, finished, text_of, until

HOST = Host(Path("/bin/bwrap"), (("/bin", "usr/bin"),), ("/lib32",))


@pytest.fixture
def place() -> Iterator[Path]:
    """Like a home folder: not below /tmp, which is another one inside."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name)


def test_the_command_line_is_a_function_of_its_arguments():
    confinement = Confinement((Path("/w/tree"),), (Path("/h/tools"),), Path("/w/.git"), Path("/w/tree/.git"))
    argv = sandbox_argv(HOST, Path("/c/.etc"), confinement, {"A": "b", "HOME": "/root"}, Path("/w/tree"), ["true"])
    assert " ".join(argv) == (
        "/bin/bwrap --unshare-all --unshare-user --disable-userns --cap-drop ALL --new-session --die-with-parent "
        "--clearenv --setenv A b --setenv HOME /tmp/home --setenv TMPDIR /tmp --ro-bind /usr /usr "
        "--symlink usr/bin /bin --ro-bind /lib32 /lib32 --ro-bind /c/.etc /etc --proc /proc --dev /dev --tmpfs /tmp "
        "--dir /tmp/home --bind /w/tree /w/tree --ro-bind-try /h/tools /h/tools --ro-bind /w/.git /w/.git "
        "--ro-bind /w/tree/.git /w/tree/.git --remount-ro / --chdir /w/tree -- true"
    )


def test_network_is_shared_only_where_it_was_granted():
    shut = Confinement((Path("/w"),))
    line = " ".join(sandbox_argv(HOST, None, replace(shut, network=True), {}, Path("/w"), []))
    assert "--share-net" in line
    assert "/etc/resolv.conf" in line
    line = " ".join(sandbox_argv(HOST, None, shut, {}, Path("/w"), []))
    assert "--share-net" not in line
    assert "/etc/resolv.conf" not in line


def test_inner_mounts_come_after_outer_ones_and_read_only_wins():
    confinement = Confinement(
        writable=(Path("/w/.git/pool/a"), Path("/w")),
        readable=(Path("/w"),),
        git_dir=Path("/w/.git"),
        binds=((Path("/h/.venv"), Path("/w/.git/pool/a/.venv")),),
    )
    assert list(mounts(confinement)) == [
        ("--bind", Path("/w"), Path("/w")),
        ("--ro-bind-try", Path("/w"), Path("/w")),
        ("--ro-bind", Path("/w/.git"), Path("/w/.git")),
        ("--bind", Path("/w/.git/pool/a"), Path("/w/.git/pool/a")),
        ("--ro-bind-try", Path("/h/.venv"), Path("/w/.git/pool/a/.venv")),
    ]


def test_the_sandbox_of_this_machine_holds(place: Path):
    report = self_test(place)
    assert (report.ok, report.failures) == (True, ())
    assert report.bwrap in candidates()
    assert list(place.iterdir()) == []


def test_the_self_test_sees_every_hole(place: Path):
    base = place / "sandbox-x"
    base.mkdir()
    loose = Confinement((place,), standard(base).readable, network=True)
    assert probe(find_host(), base, loose) == [
        "a file outside was written",
        "a file outside was read",
        "the folder .git was written",
        "the file .git was written",
        "a loopback port was reached",
        "a Unix socket outside was reached",
        "an abstract Unix socket was reached",
    ]


def test_the_self_test_tells_a_sandbox_that_cannot_be_made(place: Path):
    base = place / "sandbox-x"
    base.mkdir()
    (sentence,) = probe(replace(find_host(), folders=("/gone",)), base, standard(base))
    assert "could not be made" in sentence
    assert "gone" in sentence


def test_a_bwrap_in_the_current_folder_is_not_taken(work: Path, monkeypatch: pytest.MonkeyPatch):
    (work / "bwrap").write_text("#!/bin/sh\n")
    (work / "bwrap").chmod(0o755)
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", ".")
    assert work / "bwrap" not in [path.absolute() for path in candidates()]
    monkeypatch.setenv("PATH", str(work))
    assert candidates()[0] == work / "bwrap"


async def test_a_write_outside_fails_and_does_not_vanish(runner: Runner, place: Path, call_dir: Path):
    tree = place / "tree"
    tree.mkdir()
    text = f"touch {place}/canary /canary /usr/canary; touch inside /tmp/inside ~/inside && ls /tmp/home"
    finished(await runner.run(call_dir, command(text, tree, confined=True)))
    said = text_of(call_dir)
    assert said.count("Read-only file system") == 3
    assert said.endswith("\ninside\n")
    assert [path.name for path in place.iterdir()] == ["tree"]
    assert [path.name for path in tree.iterdir()] == ["inside"]


async def test_git_can_be_read_and_not_written(runner: Runner, place: Path, call_dir: Path):
    tree = place / "tree"
    tree.mkdir()
    setup = "git init -q -b main . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one"
    finished(await runner.run(call_dir.with_name("setup"), command(setup, tree)))
    wanted = command("git log --format=%s; git commit --allow-empty -m two; touch .git/hooks/x", tree, confined=True)
    assert wanted.confinement is not None
    wanted = replace(wanted, confinement=replace(wanted.confinement, git_dir=tree / ".git"))
    assert finished(await runner.run(call_dir, wanted)).exit_code == 1
    assert text_of(call_dir).startswith("one\n")
    assert not (tree / ".git/hooks/x").exists()


async def test_a_toolchain_under_a_hidden_home_works_and_its_neighbours_stay_hidden(
    runner: Runner, place: Path, call_dir: Path
):
    tools, tree = place / "home/tools/bin", place / "home/tree"
    tools.mkdir(parents=True)
    tree.mkdir()
    (place / "home/secret").write_text("s")
    (tools / "tool").write_text("#!/bin/sh\necho tool ran\n")
    (tools / "tool").chmod(0o755)
    confinement = Confinement((tree,), (place / "home/tools", place / "home/gone"))
    text = f"tool; ls {place}/home; cat {place}/home/secret"
    await runner.run(call_dir, Command(text, tree, {"PATH": f"{tools}:/usr/bin"}, confinement=confinement))
    ran, first, second, error = text_of(call_dir).splitlines()
    assert (ran, first, second) == ("tool ran", "tools", "tree")
    assert "No such file" in error


async def test_a_folder_of_the_host_is_shown_read_only_in_the_worktree(runner: Runner, place: Path, call_dir: Path):
    tree, modules = place / "tree", place / "checkout/node_modules"
    tree.mkdir()
    modules.mkdir(parents=True)
    (modules / "module").write_text("code\n")
    wanted = command("cat node_modules/module; echo x >> node_modules/module", tree, confined=True)
    wanted = replace(wanted, confinement=Confinement((tree,), binds=((modules, tree / "node_modules"),)))
    assert finished(await runner.run(call_dir, wanted)).exit_code == 1
    assert text_of(call_dir).startswith("code\n")
    assert (modules / "module").read_text() == "code\n"


async def test_the_interpreter_of_these_tests_runs_inside(runner: Runner, work: Path, call_dir: Path):
    readable = (Path(sys.prefix), Path(sys.base_prefix))
    confinement = Confinement((work,), readable)
    text = f"{sys.executable} -c 'import ssl, pytest; print(pytest.__name__)'"
    await runner.run(call_dir, Command(text, work, {"PATH": "/usr/bin"}, confinement=confinement))
    assert text_of(call_dir) == "pytest\n"


async def test_no_descriptor_but_the_three_reaches_a_confined_command(runner: Runner, work: Path, call_dir: Path):
    await runner.run(call_dir, command("for fd in /proc/self/fd/*; do readlink $fd; done; env", work, confined=True))
    said = text_of(call_dir)
    assert said.count("pipe:") == 2
    assert "lock" not in said
    assert "memfd" not in said


async def test_nothing_outside_hears_a_confined_command(runner: Runner, place: Path, call_dir: Path):
    tree = place / "tree"
    tree.mkdir()
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        udp.bind(("127.0.0.1", 0))
        unix.bind(str(place / "s"))
        unix.listen()
        for heard in (tcp, udp, unix):
            heard.setblocking(False)
        port, datagrams = tcp.getsockname()[1], udp.getsockname()[1]
        text = (
            f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo x > /dev/udp/127.0.0.1/{datagrams}; "
            f"python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{place}/s\")'; "
            f"curl -s http://127.0.0.1:{port}/; getent hosts example.org"
        )
        assert finished(await runner.run(call_dir, command(text, tree, confined=True))).exit_code != 0
        for heard in (tcp, udp, unix):
            with pytest.raises(BlockingIOError):
                heard.recv(1) if heard is udp else heard.accept()


async def test_the_environment_of_a_confined_command_is_in_no_argument_list(runner: Runner, work: Path, call_dir: Path):
    wanted = command("touch begun; while test ! -e seen; do :; done", work, confined=True)
    wanted = replace(wanted, env={**wanted.env, "GIVEN": "canary-value"})
    run = asyncio.create_task(runner.run(call_dir, wanted))
    await asyncio.to_thread(until, (work / "begun").exists)
    lines = [line for path in Path("/proc").glob("[0-9]*/cmdline") if (line := read(str(path)))]
    (work / "seen").touch()
    await run
    assert any(b"bwrap" in line for line in lines)
    assert not [line for line in lines if b"canary-value" in line]


def test_etc_holds_what_programs_need_and_no_secret(tmp_path: Path):
    source = tmp_path / "etc"
    (source / "alternatives").mkdir(parents=True)
    (source / "ssl").mkdir()
    (source / "ssl/openssl.cnf").write_text("conf")
    (source / "passwd").write_text("root")
    (source / "shadow").write_text("hash")
    (source / "localtime").symlink_to("/usr/bin/env")
    (source / "alternatives/awk").symlink_to("/usr/bin/env")
    (source / "alternatives/dangling").symlink_to("/usr/gone")
    (source / "resolv.conf").write_text("nameserver")
    etc = prepare_etc(tmp_path, source)
    assert sorted(str(path.relative_to(etc)) for path in etc.rglob("*") if not path.is_dir()) == [
        "alternatives/awk",
        "localtime",
        "passwd",
        "resolv.conf",
        "ssl/openssl.cnf",
    ]
    assert (etc / "passwd").read_text() == "root"
    assert (etc / "resolv.conf").read_text() == ""
    assert (etc / "alternatives/awk").readlink() == Path("/usr/bin/env").resolve()
    assert prepare_etc(tmp_path, source) == etc
    (source / "passwd").write_text("root, another")
    assert (prepare_etc(tmp_path, source) / "passwd").read_text() == "root, another"
    assert not list(tmp_path.glob(".etc-*_*"))
