"""Alert rules and dashboard: their metrics exist, and every alert has a page in the runbook."""

import asyncio
import json
import re
import shutil
import ssl
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.tls.handshake import Handshakes
from shard_client.wire.tls import TlsContexts, TlsFiles
from spark_sink.jobs.report.metrics import JobMetrics
from tests.harness.admin import admin_port, get, watched_facade
from tests.harness.certificates import Authority

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "mergerouter.json"
SCRAPE = ROOT / "deploy" / "prometheus" / "scrape.yaml"
RULE_TESTS = Path(__file__).parent / "alerts_test.yaml"
SITE = re.findall(r"(?m)^site_url: (.*)/$", (ROOT / "mkdocs.yml").read_text())[0]
UNIT = ROOT / "deploy" / "mergerouter.service"
RUNBOOK = ROOT / "docs" / "runbook.md"


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


async def exposed() -> dict[str, set[str]]:
    """Return the labels of every metric by the names that queries use."""
    async with watched_facade() as made, admin_port(made) as port:
        text = (await asyncio.to_thread(get, port, "/metrics")).text
    text += generate_latest(JobMetrics().registry).decode()
    names: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        for suffix in suffixes.get(family.type, ("",)):
            names[family.name + suffix] = set()
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


async def test_prometheus_scrapes_with_tls_and_the_token(tmp_path: Path) -> None:
    """Make the request that the scrape configuration describes."""
    job, _jobs = yaml.safe_load(SCRAPE.read_text())["scrape_configs"]
    authority = Authority(tmp_path)
    files = {"/etc/prometheus/mergerouter-ca.pem": authority.file}
    trusted = files[job["tls_config"]["ca_file"]]
    assert job["authorization"] == {"credentials_file": "/etc/prometheus/mergerouter-token"}
    contexts = TlsContexts(TlsFiles(authority.issue("router"), ca=authority.file))
    handshakes = Handshakes(lambda: contexts.unasked, required=job["scheme"] == "https")
    async with watched_facade() as made, admin_port(made, "secret", handshakes=handshakes) as port:
        context = ssl.create_default_context(cafile=trusted)
        path, bearer = job.get("metrics_path", "/metrics"), {"Authorization": "Bearer secret"}
        reply = await asyncio.to_thread(get, port, path, tls=context, **bearer)
    assert reply.status == 200


async def test_every_metric_of_rules_and_dashboard_exists() -> None:
    known = await exposed()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    for query in shown + [rule["expr"] for rule in alerts()]:
        for name in re.findall(r"mergerouter_\w+", query):
            assert name in known, f"{name} in {query}"


async def test_labels_of_alerts_exist() -> None:
    known = await exposed()
    for rule in alerts():
        names = set(re.findall(r"mergerouter_\w+", rule["expr"]))
        labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        have = {"instance"}.union(*(known[name] for name in names))
        have |= {"shard", "place"} if "history_left" in rule["expr"] else set()
        # There is no client in this status, so these metrics have no sample.
        have |= {"client", "namespace"} if "client_lag" in rule["expr"] else set()
        assert labels <= have, rule["alert"]


def test_every_alert_has_a_page_that_its_rule_names() -> None:
    pages = set(re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE))
    assert {rule["alert"] for rule in alerts()} == pages
    for rule in alerts():
        assert rule["annotations"]["runbook_url"] == f"{SITE}/runbook.html#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_the_unit_names_pages_of_the_same_site() -> None:
    (named,) = re.findall(r"(?m)^Documentation=(.*)$", UNIT.read_text())
    for address in named.split():
        assert address.startswith(f"{SITE}/")
        page = address.removeprefix(f"{SITE}/").removesuffix(".html")
        assert (ROOT / "docs" / f"{page}.md").exists()


def test_the_dashboard_s_panels_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (grid["x"] + right, grid["y"] + down)
        for grid in (panel["gridPos"] for panel in panels)
        for right, down in product(range(grid["w"]), range(grid["h"]))
    ]
    assert len(set(cells)) == len(cells)


def promtool(*arguments: str) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", str(RULES))


def test_promtool_accepts_the_scrape_configurations(tmp_path: Path) -> None:
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    content = tmp_path / "prometheus.yml"
    content.write_text(compose["configs"]["prometheus"]["content"])
    for file in (SCRAPE, content):
        promtool("check", "config", "--syntax-only", str(file))


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    written = yaml.safe_load(RULE_TESTS.read_text())
    text = json.dumps(written).replace('"ALERTS"', json.dumps(str(RULES)))
    text = text.replace("https://mergerouter.example", SITE)
    panels = json.loads(DASHBOARD.read_text())["panels"]
    (panel,) = (each for each in panels if each["title"] == "CPU for each delivered event")
    query = panel["targets"][0]["expr"].replace("$instance", ".*")
    tests = tmp_path / "tests.yaml"
    tests.write_text(text.replace('"CPU_PER_EVENT"', json.dumps(query)))
    promtool("test", "rules", str(tests))


def test_each_alert_has_a_test_in_which_it_fires() -> None:
    cases = [
        case
        for group in yaml.safe_load(RULE_TESTS.read_text())["tests"]
        for case in group.get("alert_rule_test", [])
    ]
    rules = {rule["alert"]: rule["annotations"] for rule in alerts()}
    expected = [(case["alertname"], each) for case in cases for each in case["exp_alerts"]]
    assert {name for name, _alert in expected} == set(rules)
    for name, alert in expected:  # also where promtool is not installed
        for key, text in alert["exp_annotations"].items():
            written = re.sub(r"\\{\\{.*?\\}\\}", ".*", re.escape(rules[name][key]))
            here = text.replace("https://mergerouter.example", SITE)
            assert re.fullmatch(written, here), (name, key, text)
