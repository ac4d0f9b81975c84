"""Configuration: where a value comes from, and one clear line for each thing that is wrong."""

import os
from pathlib import Path

import pytest

from millrace.run import config
from millrace.run.config import Address, ConfigError, load, parse_address, reference, to_toml

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):

    for name in list(os.environ):
        if name.startswith("MILLRACE_"):
            monkeypatch.delenv(name)


def problems(*args, **kwargs):
    with pytest.raises(ConfigError) as caught:
        load(*args, **kwargs)
    assert caught.value.code == "configuration"
    return caught.value.problems


def test_nothing_given_works():
    settings = load()
    assert settings.server.listen == Address("127.0.0.1", 7420)
    assert settings.server.admin == Address("127.0.0.1", 7421)


def test_flags_win_over_variables_over_the_file(tmp_path, monkeypatch):
    file = tmp_path / "m.toml"
    file.write_text('[server]\nlisten = "127.0.0.1:1"\nadmin = "127.0.0.1:2"\n[engine]\nbudget = 3\n')
    assert load(file).server.listen.port == 1
    monkeypatch.setenv("MILLRACE_SERVER__LISTEN", "127.0.0.1:11")
    monkeypatch.setenv("MILLRACE_SERVER__ADMIN", "127.0.0.1:12")
    settings = load(file, {"server": {"admin": "127.0.0.1:22", "listen": None}})
    assert (settings.server.listen.port, settings.server.admin.port, settings.engine.budget) == (11, 22, 3)


def test_the_command_lines_own_variables_are_not_sections(monkeypatch):
    monkeypatch.setenv("MILLRACE_SERVER", "127.0.0.1:1")
    monkeypatch.setenv("MILLRACE_ADMIN", "127.0.0.1:2")
    assert load().server.listen.port == 7420


def test_every_problem_has_its_line(tmp_path, monkeypatch):
    file = tmp_path / "m.toml"
    file.write_text('[server]\nlisen = "a"\nlisten = "nowhere"\n[limit]\na = 1\n[limits]\nframe_bytes = "x"\n')
    monkeypatch.setenv("MILLRACE_ENGINE__BUDGET", "many")
    monkeypatch.setenv("MILLRACE_ENGINES__BUDGET", "1")
    found = problems(file)
    assert len(found) == 6
    assert all("\n" not in line for line in found)
    for words in (
        "MILLRACE_ENGINES__BUDGET: unknown section engines; did you mean engine?",
        f"{file}: server.lisen: unknown setting; did you mean listen?",
        f"{file}: server.listen: expected HOST:PORT",
        f"{file}: limit: unknown setting; did you mean limits?",
        f"{file}: limits.frame_bytes: expected",
        "MILLRACE_ENGINE__BUDGET: engine.budget: expected",
    ):
        assert any(line.startswith(words) for line in found), (words, found)


def test_a_value_in_place_of_a_section_is_refused_whatever_else_is_set(tmp_path, monkeypatch):
    file = tmp_path / "m.toml"
    file.write_text("server = 3\n")
    monkeypatch.setenv("MILLRACE_SERVER__ADMIN", "127.0.0.1:1")
    (found,) = problems(file, {"server": {"listen": "127.0.0.1:0"}})
    assert found.startswith(f"{file}: server: expected a valid dictionary")


def test_files_that_cannot_be_read(tmp_path):
    assert problems(tmp_path / "none.toml") == [f"{tmp_path}/none.toml: no such file or directory"]
    bad = tmp_path / "bad.toml"
    bad.write_text("[server\n")
    assert "not valid TOML" in problems(bad)[0]
    bad.write_bytes(b"\xff\xfe")
    assert "UTF-8" in problems(bad)[0]
    assert "is a directory" in problems(tmp_path)[0]


@pytest.mark.parametrize("key", ["listen", "admin"])
def test_an_open_port_needs_tls_and_a_token(tmp_path, key):
    flags = {key: "0.0.0.0:0"}
    token, pem = tmp_path / "token", tmp_path / "pem"
    token.write_text("secret\n")
    pem.write_text("")
    for more in ({}, {"token_file": token}, {"tls_certificate": pem, "tls_key": pem}):
        assert "needs both TLS" in problems(flags={"server": {**flags, **more}})[0]
    load(flags={"server": {**flags, "token_file": token, "tls_certificate": pem, "tls_key": pem}})


def test_files_that_are_named_must_be_there(tmp_path):
    assert "does not exist" in problems(flags={"server": {"token_file": tmp_path / "none"}})[0]
    empty = tmp_path / "empty"
    empty.write_text("\n")
    assert "expected a token" in problems(flags={"server": {"token_file": empty}})[0]
    assert "certificate and its key" in problems(flags={"server": {"tls_key": empty}})[0]
    assert "is not a folder" in problems(flags={"server": {"data_dir": empty}})[0]
    assert "is not a folder" in problems(flags={"server": {"data_dir": empty / "inside"}})[0]


@pytest.mark.parametrize("key", ["data_dir", "history_dir"])
def test_a_folder_that_is_not_writable_is_told_before_anything_is_begun(tmp_path, monkeypatch, key):
    closed = tmp_path / "rod"
    closed.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed)  # root may write everywhere
    assert problems(flags={"server": {key: closed}}) == [f"server.{key}: {closed} is not writable"]
    inside = closed / "a" / "b"
    assert problems(flags={"server": {key: inside}}) == [
        f"server.{key}: {inside} cannot be created: {closed} is not writable"
    ]
    load(flags={"server": {key: tmp_path / "another"}})


def test_a_catalog_that_is_not_writable(tmp_path, monkeypatch):
    catalog = tmp_path / "catalog.sqlite"
    catalog.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != catalog)
    assert problems(flags={"server": {"data_dir": tmp_path}}) == [f"server.data_dir: {catalog} is not writable"]


@pytest.mark.parametrize(
    ("listen", "admin", "one"),
    [
        ("127.0.0.1:7420", "127.0.0.1:7420", True),
        ("localhost:7420", "127.0.0.1:7420", True),
        ("0.0.0.0:7420", "127.0.0.1:7420", True),
        ("127.0.0.1:7420", "[::]:7420", True),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("127.0.0.1:7420", "127.0.0.1:7421", False),
        ("127.0.0.1:7420", "127.0.0.2:7420", False),
        ("127.0.0.1:7420", "[::1]:7420", False),
        ("0.0.0.0:7420", "[::1]:7420", False),
    ],
)
def test_the_two_ports_are_two(listen, admin, one):
    try:
        load(flags={"server": {"listen": listen, "admin": admin}})
        found = []
    except ConfigError as error:
        found = error.problems
    assert any(line.startswith(f"server.admin: {admin} is the same port") for line in found) == one


@pytest.mark.parametrize(
    ("text", "address"),
    [("localhost:1", ("localhost", 1)), ("[::1]:7420", ("::1", 7420)), ("10.0.0.1:0", ("10.0.0.1", 0))],
)
def test_addresses(text, address):
    assert parse_address(text) == address
    assert str(parse_address(text)) == text


@pytest.mark.parametrize("text", ["", "7420", ":7420", "a:", "a:b", "a:70000", "::1:7420", "a:-1", "a:٣"])
def test_no_addresses(text):
    with pytest.raises(ValueError, match="expected"):
        parse_address(text)


def test_loopback():
    assert Address("127.8.8.8", 1).is_loopback
    assert Address("::1", 1).is_loopback
    assert Address("localhost", 1).is_loopback
    assert not Address("0.0.0.0", 1).is_loopback
    assert not Address("example", 1).is_loopback


def test_what_is_printed_reads_back(tmp_path):
    printed = tmp_path / "printed.toml"
    settings = load(flags={"server": {"data_dir": tmp_path / 'a "b"'}})
    printed.write_text(to_toml(settings))
    assert load(printed).model_dump() == settings.model_dump()


def test_every_setting_is_explained_in_the_docs():
    assert reference() in DOCS.read_text(encoding="utf-8")
    for section in config.Settings().__dict__.values():
        assert all(field.description for field in type(section).model_fields.values())


def test_hosts_are_names_alone(tmp_path, monkeypatch):
    file = tmp_path / "millrace.toml"
    file.write_text('[server]\nhosts = ["Millrace.example", "fd00::7", "10.0.0.1"]\n')
    settings = load(file)
    assert settings.server.hosts == ("Millrace.example", "[fd00::7]", "10.0.0.1")
    assert 'hosts = ["Millrace.example", "[fd00::7]", "10.0.0.1"]' in to_toml(settings)
    monkeypatch.setenv("MILLRACE_SERVER__HOSTS", "millrace, other.example")
    assert load(file).server.hosts == ("millrace", "other.example")
    for wrong in ("http://millrace", "millrace:7421", "*.example", "a/b"):
        monkeypatch.setenv("MILLRACE_SERVER__HOSTS", wrong)
        with pytest.raises(ConfigError, match="expected a host name without scheme, port"):
            load(file)
