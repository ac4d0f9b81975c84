"""The probes of the manifests, sent to servers that are idle or delay their feeds."""

import tomllib
from pathlib import Path

import pytest
import yaml

from millrace.run.config import Settings
from millrace.run.daemon import END_SECONDS
from tests.server.harness import peer, served
from tests.server.test_api import ask

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy/kubernetes"
# Without a promise of b's time the union delays every tuple of a.
BLOCKED = """
CREATE STREAM a (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts', ets = 'none');
CREATE STREAM b (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts', ets = 'none');
CREATE QUERY q WITH (order = 'event') AS SELECT ts, k FROM a UNION ALL SELECT ts, k FROM b
"""
SMALL = {"engine": {"credit": 64, "most_queued": 100}}


def manifest(name):
    return yaml.safe_load((KUBERNETES / f"{name}.yaml").read_text(encoding="utf-8"))


def container():
    return manifest("statefulset")["spec"]["template"]["spec"]["containers"][0]


def paths():
    return {container()[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}


async def answers(daemon):
    return {path: (await ask(daemon, "GET", path))[0] for path in paths()}


@served(BLOCKED)
async def test_an_idle_server_fails_no_probe(daemon):
    assert await answers(daemon) == {"/-/healthy": 200, "/-/ready": 200}


@served(BLOCKED, **SMALL)
async def test_a_server_that_holds_its_feeds_back_fails_no_probe(daemon):
    async with peer(daemon) as feeder:
        await feeder.open("a")
        channel = feeder.session.channels[0]
        sent = 0
        while daemon.components()[0].queued < SMALL["engine"]["most_queued"]:
            if channel.credit:
                feeder.data(sent, [(sent + at, 1) for at in range(channel.credit)])
                sent = channel.next_sequence
            await feeder.hear()
        assert channel.credit == 0, "it is held back"
        assert await answers(daemon) == {"/-/healthy": 200, "/-/ready": 200}


@served(BLOCKED)
async def test_a_server_that_ends_is_alive_and_not_ready(daemon):
    daemon.state = "draining"
    assert await answers(daemon) == {"/-/healthy": 200, "/-/ready": 503}


# -- what the manifests promise each other -----------------------------------------------------------------------------


def test_the_configuration_of_the_pod_is_one():
    sections = tomllib.loads(manifest("config")["data"]["millrace.toml"])
    settings = Settings(**sections)
    assert (settings.server.listen.port, settings.server.admin.port) == (7420, 7421)
    mounts = {mount["mountPath"] for mount in container()["volumeMounts"]}
    for key in ("data_dir", "tls_certificate", "tls_key"):
        path = getattr(settings.server, key)
        assert str(path) in mounts or str(path.parent) in mounts, key


def test_ports_names_and_users_agree():
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert ports == {port["targetPort"]: port["port"] for port in manifest("service")["spec"]["ports"]}
    spec = manifest("statefulset")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels == manifest("service")["spec"]["selector"]
    assert spec["serviceName"] == manifest("service")["metadata"]["name"]
    volumes = {one["name"] for one in spec["template"]["spec"]["volumes"]}
    volumes |= {one["metadata"]["name"] for one in spec["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container()["volumeMounts"]} == volumes
    dockerfile = (KUBERNETES.parents[1] / "Dockerfile").read_text(encoding="utf-8")
    assert f"USER {spec['template']['spec']['securityContext']['runAsUser']}:7420" in dockerfile
    assert f"EXPOSE {ports['tuples']} {ports['http']}" in dockerfile


@pytest.mark.parametrize("file", ["systemd/millrace.service", "kubernetes/statefulset.yaml", "compose.yaml"])
def test_service_managers_wait_longer_than_a_shutdown_may_take(file):
    text = (KUBERNETES.parent / file).read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if any(word in line for word in STOPS)]
    seconds = int("".join(filter(str.isdigit, line)))
    assert seconds > Settings().server.drain_seconds + END_SECONDS


STOPS = ("TimeoutStopSec=", "terminationGracePeriodSeconds:", "stop_grace_period:")
