"""The scripts that create a certificate, and that hand out a server's tokens."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.access.first import prepare
from millrace.access.tokens import digest_of, read_tokens
from millrace.run.config import load

DOCKER = Path(__file__).resolve().parents[2] / "deploy/docker"


def test_the_folder_is_created_and_existing_files_stay(tmp_path):
    folder = tmp_path / "keys"
    for hosts in (["millrace", "millrace.default.svc"], ["millrace"]):
        subprocess.run(["sh", DOCKER / "make-keys.sh", folder, *hosts], check=True, capture_output=True)
        assert {path.name for path in folder.iterdir()} == {"certificate.pem", "key.pem"}
        assert (folder / "key.pem").stat().st_mode & 0o077 == 0
    text = subprocess.run(
        ["openssl", "x509", "-in", folder / "certificate.pem", "-noout", "-ext", "subjectAltName"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "DNS:millrace.default.svc" in text


@pytest.fixture
def hand_out(tmp_path):
    """Runs the script for a data directory; the roles of the token that each client got."""
    folders = [tmp_path / name for name in ("client", "scrape")]
    for folder in folders:
        folder.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(data):
        subprocess.run(
            ["sh", DOCKER / "make-tokens.sh", data, *folders],
            env={**os.environ, "PATH": path}, check=True, capture_output=True,
        )  # fmt: skip
        known = {token.digest: token for token in read_tokens(data / "tokens.json")}
        texts = [(folder / "token").read_text(encoding="utf-8").strip() for folder in folders]
        return texts, [[str(grant) for grant in known[digest_of(text)].grants] for text in texts]

    return run


def test_each_client_gets_a_token_that_can_do_no_more_than_it_needs(tmp_path, hand_out):
    texts = []
    for name in ("data", "data", "new"):  # a second start, and a new volume for the server alone
        (tmp_path / name).mkdir(exist_ok=True)
        prepare(load(flags={"server": {"data_dir": tmp_path / name, "auth": "token"}}))
        handed, roles = hand_out(tmp_path / name)
        assert roles == [["change", "feed"], ["read"]]
        texts.append(handed)
    assert texts[0] == texts[1]
    assert set(texts[1]).isdisjoint(texts[2])
