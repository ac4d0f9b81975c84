"""The information that the server returns about itself, and the information that it hides."""

import json

import pytest
from pydantic import BaseModel, SecretStr

from millrace.http.redaction import LEFT_OUT, is_secret, redacted
from millrace.observe.recent import LONGEST, Recent
from millrace.protocol.admin.data import to_data
from millrace.run.config import ServerSection, Settings
from millrace.values.kernels import compiled
from tests.server.harness import served


class Store(BaseModel):
    url: str = "https://ada:lovelace@store.example/x"
    access: SecretStr = SecretStr("hidden")
    token: str | None = None


class Whole(BaseModel):
    store: Store = Store()
    api_password: str = "hidden"
    monkey: str = "shown"


def test_secrets_are_left_out_wherever_they_stand():
    assert redacted(Whole()) == {
        "store": {"url": "https://store.example/x", "access": LEFT_OUT, "token": None},
        "api_password": LEFT_OUT,
        "monkey": "shown",
    }


@pytest.mark.parametrize("name", [name for name in ServerSection.model_fields if is_secret(name, None)])
def test_each_secret_setting_of_the_server(name):
    section = ServerSection.model_construct(**{**ServerSection().__dict__, name: "/etc/millrace/x"})
    assert "/etc/millrace/x" not in json.dumps(redacted(section), default=str)


def test_which_settings_are_secret():
    secret = {
        f"{section}.{name}"
        for section, model in Settings()
        for name in type(model).model_fields
        if is_secret(name, None)
    }
    assert {"server.token_file", "server.tls_key", "server.admin_token_file", "server.admin_tls_key"} <= secret


def test_recent_lines_are_the_newest_and_can_be_said_in_json():
    recent = Recent(lines=2)
    event = {"event": "third", "tuples": 3, "path": LEFT_OUT, "error": ValueError("x" * 2 * LONGEST), "feed": None}
    for said in ({"event": "first"}, {"event": "second"}, event):
        assert recent(None, "info", said) is said
    assert [line["event"] for line in recent.lines()] == ["second", "third"]
    assert recent.lines()[1] == {**event, "error": "x" * LONGEST}
    json.dumps(recent.lines())


@served()
async def test_the_server_says_what_the_system_allows_it(daemon):
    told = daemon.describe()
    assert told.process.open_files > 0
    assert to_data(told.admin_guard) == {"loopback": True, "tls": False, "token": False}
    assert told.kernels == ("compiled" if compiled() else "python")
    json.dumps(to_data(told))
