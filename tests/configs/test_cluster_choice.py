"""What `thalia up` and `thalia node` are told of a cluster: addresses, labels, tokens, and what is remembered."""

from pathlib import Path

import pytest

from configs.cluster import (
    DEFAULT_PORT,
    Cluster,
    ClusterRefused,
    check_own,
    forget_cluster,
    keep_joined_token,
    make_token,
    parse_address,
    parse_labels,
    read_cluster,
    read_token,
    remember_cluster,
    token_file,
)


def test_an_address_has_a_default_port_and_a_name_becomes_a_number() -> None:
    assert parse_address("127.0.0.2") == Cluster(f"127.0.0.2:{DEFAULT_PORT}")
    assert parse_address("localhost:9000") == Cluster("127.0.0.1:9000")


@pytest.mark.parametrize("text", ["", ":7330", "127.0.0.2:x", "127.0.0.2:80", "127.0.0.2:65535", "::1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ClusterRefused, match="is not HOST or HOST:PORT"):
        parse_address(text)


def test_a_machine_is_not_reached_by_loopback_or_by_an_address_of_another() -> None:
    check_own("127.0.0.2")
    with pytest.raises(ClusterRefused, match=r"^127\.0\.0\.1 is this machine for itself"):
        check_own("127.0.0.1")
    with pytest.raises(ClusterRefused, match=r"^192\.0\.2\.1 is no address of this machine"):
        check_own("192.0.2.1")


def test_labels_are_pairs_of_words_and_rays_own_are_not_given() -> None:
    assert parse_labels("zone=b,x.org/gpu=H100_a.b") == {"zone": "b", "x.org/gpu": "H100_a.b"}
    assert parse_labels("") == {}
    for wrong in ("zone", "zone=", "=b", "zone=b c", "zone=b=c", "ray.io/node-id=1", "zone=-b"):
        with pytest.raises(ClusterRefused, match="is no label"):
            parse_labels(wrong)


def test_what_was_chosen_is_remembered_until_it_is_forgotten_and_only_the_own_token_stays(tmp_path: Path) -> None:
    assert read_cluster(tmp_path) is None
    make_token(tmp_path)
    own = read_token(token_file(tmp_path, False))
    remember_cluster(tmp_path, Cluster("10.0.0.1:7330", True))
    keep_joined_token(tmp_path, "theirs")
    assert read_cluster(tmp_path) == Cluster("10.0.0.1:7330", True)
    assert read_token(token_file(tmp_path, True)) == "theirs"
    assert [file.stat().st_mode & 0o777 for file in tmp_path.iterdir()] == [0o600] * 3
    forget_cluster(tmp_path)
    make_token(tmp_path)
    assert read_cluster(tmp_path) is None
    assert [file.name for file in tmp_path.iterdir()] == ["cluster.token"]
    assert read_token(token_file(tmp_path, False)) == own and len(own) == 64


def test_a_remembered_choice_that_cannot_be_read_is_told_and_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"address": "10.0.0.1:7330", "more": 1}')
    with pytest.raises(ClusterRefused, match=r"cluster\.json cannot be read \(TypeError\); `thalia down` forgets it"):
        read_cluster(tmp_path)


def test_a_token_is_one_word_in_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(ClusterRefused, match="cannot be read"):
        read_token(file)
    file.touch(0o600)
    for text in ("", " \n", "two words"):
        file.write_text(text)
        with pytest.raises(ClusterRefused, match="holds no token"):
            read_token(file)
    file.write_text("secret\n")
    assert read_token(file) == "secret"
    file.chmod(0o640)
    with pytest.raises(ClusterRefused, match="is open to others; say `chmod 600") as refused:
        read_token(file)
    assert "secret" not in str(refused.value)
