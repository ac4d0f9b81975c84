"""The script that creates a certificate and a token for trying the server out."""

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "deploy/docker/make-keys.sh"


def make(folder, *hosts):
    subprocess.run(["sh", SCRIPT, folder, *hosts], check=True, cwd=folder.parent, capture_output=True)


def test_the_folder_is_created_and_existing_files_stay(tmp_path):
    folder = tmp_path / "keys"
    make(folder, "millrace", "millrace.default.svc")
    assert {path.name for path in folder.iterdir()} == {"certificate.pem", "key.pem", "token"}
    assert (folder / "token").stat().st_mode & 0o077 == 0
    assert (folder / "key.pem").stat().st_mode & 0o077 == 0
    token = (folder / "token").read_text(encoding="utf-8")
    assert len(token.strip()) == 64
    make(folder, "millrace")
    assert (folder / "token").read_text(encoding="utf-8") == token
