"""Every file of this folder is checked by its tool."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[1]
ROOT = DEPLOY.parent
# Installed by pip, next to this interpreter.
TOOLS = Path(sys.executable).parent


def run(*command, folder=ROOT):
    """Run the tool; its output is the failure message."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_prometheus_takes_its_configuration_and_rules(tmp_path):
    """The configuration as it is, with a token that exists here."""
    shutil.copytree(DEPLOY / "prometheus", tmp_path, dirs_exist_ok=True)
    text = (tmp_path / "prometheus.yml").read_text(encoding="utf-8")
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/", ""), encoding="utf-8")
    (tmp_path / "millrace.token").write_text("a token\n", encoding="utf-8")
    output = run("promtool", "check", "config", "prometheus.yml", folder=tmp_path)
    assert output.count("SUCCESS") == 4


def test_rules_do_what_their_cases_say():
    run("promtool", "test", "rules", "rules_test.yml", folder=DEPLOY / "prometheus")


def test_systemd_takes_the_unit(tmp_path):
    """The unit as it is, with a program that exists here."""
    text = (DEPLOY / "systemd/millrace.service").read_text(encoding="utf-8")
    unit = tmp_path / "millrace.service"
    unit.write_text(text.replace("/opt/millrace/bin/millrace", "/bin/true"), encoding="utf-8")
    assert run("systemd-analyze", "verify", unit) == ""
    output = run("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", unit)
    assert "Overall exposure level" in output


@pytest.mark.parametrize("manifest", sorted((DEPLOY / "kubernetes").glob("*.yaml")), ids=lambda path: path.stem)
def test_kubernetes_takes_a_manifest(manifest):
    run(TOOLS / "kubernetes-validate", "--strict", manifest)


def test_a_manifest_that_is_wrong_is_noticed(tmp_path):
    text = (DEPLOY / "kubernetes/statefulset.yaml").read_text(encoding="utf-8")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace("failureThreshold", "failureThresholt"), encoding="utf-8")
    with pytest.raises(AssertionError, match="failureThresholt"):
        run(TOOLS / "kubernetes-validate", "--strict", wrong)


def test_hadolint_has_nothing_to_say():
    assert run(TOOLS / "hadolint", "--failure-threshold", "style", "Dockerfile") == ""


def test_compose_takes_its_file():
    run("docker-compose", "--file", "compose.yaml", "config", "--quiet", folder=DEPLOY)


def test_shellcheck_has_nothing_to_say():
    run("shellcheck", "--severity=warning", *sorted(DEPLOY.rglob("*.sh")))
