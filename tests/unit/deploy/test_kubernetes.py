"""The Helm chart as Helm renders it, and the sidecar manifest, against Kubernetes's schemas."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from router.config.settings import Settings, load_settings

helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this platform")

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "helm" / "mergerouter"
DEPLOYMENT = DEPLOY.parent / "docs" / "deployment.md"
_HELM = r"(?m)^    helm {} ((?:.*\\\n)*.*)"
VERSIONS = ("1.25", "1.30", "1.34")
LEAST: dict[str, Any] = {
    "settings": {"sharding": {"configDB": "cfg/a:1"}},
    "adminToken": {"secret": "tokens"},
}
MOST: dict[str, Any] = {
    "settings": {
        "sharding": {"configDB": "cfg/a:1"},
        "upstream": "mongodb://m:1",
        "workers": 2,
        "security": {"user": "mergerouter"},
        "setParameter": {"maxCursors": 7},
    },
    "adminToken": {"secret": "tokens", "key": "admin"},
    "keyFile": {"secret": "keys"},
    "password": {"secret": "passwords"},
    "tls": {"secret": "certificates"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "env": [{"name": "MERGEROUTER_SYSTEMLOG__VERBOSITY", "value": "1"}],
    "imagePullSecrets": [{"name": "registry"}],
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "k", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
}


def render(values: Mapping[str, Any], chart: Path = CHART) -> dict[str, dict[str, Any]]:
    """Return the manifests by kind."""
    with helm.Chart.load(chart) as loaded:
        rendered = loaded.render(values, name="demo", namespace="shop")
    documents = [yaml.safe_load(text) for name, text in rendered.items() if name.endswith(".yaml")]
    return {document["kind"]: document for document in documents if document}


def validate(documents: Mapping[str, Any]) -> None:
    for kind, document in documents.items():
        for version in VERSIONS:
            if kind != "ServiceMonitor":  # a resource of the Prometheus operator
                kubernetes_validate.validate(document, version, strict=True)


def settings_of(manifests: Mapping[str, Any], folder: Path) -> Settings:
    file = folder / "mergerouter.yaml"
    file.write_text(manifests["ConfigMap"]["data"]["mergerouter.yaml"])
    return load_settings({}, file)


def test_helm_accepts_the_chart() -> None:
    report = helm.lint(CHART, LEAST)
    complaints = [each["error"] for each in report["messages"]]
    assert [each for each in complaints if each != "icon is recommended"] == []


def of_the_page(*commands: str) -> dict[str, Any]:
    """Return the values that commands of docs/deployment.md set."""
    page = DEPLOYMENT.read_text()
    texts = [found for each in commands for found in re.findall(_HELM.format(each), page)]
    values: dict[str, Any] = {}
    for name, value in re.findall(r"--set ([\w.]+)=(\S+)", "\n".join(texts)):
        *sections, last = name.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return values


def test_the_commands_of_the_documentation_render(tmp_path: Path) -> None:
    values = of_the_page("install")
    assert set(values) == {"image", "adminToken", "settings"}
    upgraded = of_the_page("install", "upgrade")
    assert set(upgraded) > set(values)
    validate(render(upgraded))
    manifests = render(values)
    validate(manifests)
    settings = settings_of(manifests, tmp_path)
    assert settings.upstream == values["settings"]["upstream"]
    assert settings.sharding.config_db == values["settings"]["sharding"]["configDB"]
    (container,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("registry.example/mergerouter:")


def test_a_replica_set_takes_the_place_of_the_config_server(tmp_path: Path) -> None:
    servers = {"replication": {"replicaSet": "rs0/a:1,b:1"}}
    settings = settings_of(render({**LEAST, "settings": servers}), tmp_path)
    assert (settings.replication.replica_set, settings.sharded) == ("rs0/a:1,b:1", False)


def test_an_image_is_named_by_its_digest() -> None:
    digest = f"sha256:{'0' * 64}"
    image = {"repository": "registry.example/mergerouter", "tag": "1", "digest": digest}
    manifests = render({**LEAST, "image": image})
    (container,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example/mergerouter@{digest}"


def test_the_network_policy_names_the_routers_ports() -> None:
    manifests = render(LEAST)
    policy = manifests["NetworkPolicy"]["spec"]
    (container,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    named = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert named == {port["name"] for port in container["ports"]}
    assert all(rule["from"] for rule in policy["ingress"])
    closed = render({**LEAST, "networkPolicy": {"drivers": [], "admin": []}})["NetworkPolicy"]
    validate({"NetworkPolicy": closed})
    assert not closed["spec"]["ingress"]


def check_pod(pod: dict[str, Any], files: list[str], settings: Settings) -> None:
    """Check that a pod mounts what its containers use, gives them no rights and lets them end.

    ``files`` are the paths that the settings name.
    """
    containers = [*pod["containers"], *pod.get("initContainers", ())]
    routers = [each for each in containers if each["name"] != "application"]
    mounts = [mount for each in routers for mount in each["volumeMounts"]]
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in pod["volumes"]}
    mounted = {mount["mountPath"] for mount in mounts}
    assert {file.rpartition("/")[0] for file in files} <= mounted
    for each in routers:
        security = each["securityContext"]
        assert security["runAsNonRoot"]
        assert security["readOnlyRootFilesystem"]
        assert security["capabilities"] == {"drop": ["ALL"]}
    drained = settings.parameters["mongosShutdownTimeoutMillisForSignaledShutdown"] / 1000
    assert pod["terminationGracePeriodSeconds"] > drained + 10


def probes(container: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = [container[name]["httpGet"] for name in container if name.endswith("Probe")]
    assert [each["path"].partition("?")[0] for each in found].count("/healthz") == 2
    assert [each["path"] for each in found].count("/readyz?shards=optional") == 1
    return found


@pytest.mark.parametrize(
    ("values", "scheme"),
    [
        (LEAST, "HTTP"),
        (MOST, "HTTPS"),
        ({**MOST, "tls": {"secret": "certificates", "mode": "allowTLS"}}, "HTTPS"),
        (
            {**MOST, "settings": {**MOST["settings"], "net": {"admin": {"tlsMode": "disabled"}}}},
            "HTTP",
        ),
    ],
    ids=["least", "most", "allowed", "drivers-only"],
)
def test_the_router_accepts_what_the_chart_renders(
    values: dict[str, Any], scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MERGEROUTER_SECURITY__PASSWORD", "x")
    if "password" not in values:
        monkeypatch.delenv("MERGEROUTER_SECURITY__PASSWORD")
    validate(render(values))
    manifests = render({**values, "serviceMonitor": {"enabled": True}})
    validate(manifests)
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    settings = settings_of(manifests, tmp_path)
    assert settings.net.hosts == ["0.0.0.0"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"mongodb": settings.net.port, "router-admin": settings.net.admin.port}
    tls = settings.net.tls
    named = (settings.security.key_file, tls.certificate_key_file, tls.ca_file)
    files = [settings.net.admin.token_file, container["args"][-1], *filter(None, named)]
    check_pod(pod, [*map(str, files), "/tmp/any"], settings)
    assert not pod["automountServiceAccountToken"]
    assert {probe["scheme"] for probe in probes(container)} == {scheme}
    assert (settings.net.admin_tls_mode == "disabled") == (scheme == "HTTP")
    (endpoint,) = manifests["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint.get("scheme", "http") == scheme.lower()
    if scheme == "HTTPS":
        assert endpoint["tlsConfig"] == {
            "ca": {"secret": {"name": "certificates", "key": "ca.crt"}},
            "serverName": f"{manifests['Service']['metadata']['name']}.shop.svc",
        }


def test_the_router_accepts_the_sidecar_manifest(tmp_path: Path) -> None:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "sidecar.yaml").read_text())
    manifests = {document["kind"]: document for document in documents}
    validate(manifests)
    settings = settings_of(manifests, tmp_path)
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    named = {container["name"]: container for container in pod["containers"]}
    router = named["mergerouter"]
    assert router["ports"] == [{"name": "admin", "containerPort": settings.net.admin.port}]
    check_pod(pod, [str(settings.net.admin.token_file), router["args"][-1]], settings)
    assert len(probes(router)) == 3
    assert f":{settings.net.port}/" in named["application"]["env"][0]["value"]


def test_services_and_budgets_select_the_routers() -> None:
    manifests = render(MOST)
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        manifests["Service"]["spec"]["selector"],
        manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        manifests["Deployment"]["spec"]["selector"]["matchLabels"],
        manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels for selector in selectors)
    monitor = manifests["ServiceMonitor"]["spec"]
    service = manifests["Service"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert service["spec"]["clusterIP"] == "None"


def test_changed_settings_restart_the_routers() -> None:
    def checksum(values: Mapping[str, Any]) -> str:
        metadata = render(values)["Deployment"]["spec"]["template"]["metadata"]
        return str(metadata["annotations"]["checksum/config"])

    changed = {**LEAST["settings"], "workers": 2}
    assert checksum({**LEAST, "replicas": 5}) == checksum(LEAST)
    assert checksum({**LEAST, "settings": changed}) != checksum(LEAST)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "set settings.sharding.configDB to the cluster's config server, or settings.repl"),
        ({"settings": LEAST["settings"]}, "set adminToken.secret to the name of a Secret"),
        ({**LEAST, "replica": 1}, "additional properties 'replica' not allowed"),
        ({**LEAST, "mode": "daemon"}, "mode"),
    ],
)
def test_missing_and_unknown_values_are_errors(values: dict[str, Any], message: str) -> None:
    with pytest.raises(helm.HelmError, match=message):
        render(values)


def test_an_application_s_chart_runs_the_router_as_a_sidecar(tmp_path: Path) -> None:
    chart = tmp_path / "application"
    (chart / "charts").mkdir(parents=True)
    (chart / "charts" / "mergerouter").symlink_to(CHART)
    (chart / "templates").mkdir()
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: application\nversion: 1.0.0\n")
    example = (DEPLOY / "helm" / "sidecar-example.yaml").read_text()
    (chart / "templates" / "deployment.yaml").write_text(example)
    manifests = render({"mergerouter": {**MOST, "mode": "sidecar"}}, chart)
    assert set(manifests) == {"ConfigMap", "Deployment"}
    validate(manifests)
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["containers"]] == ["application", "mergerouter"]
    config = next(each for each in pod["volumes"] if each["name"] == "mergerouter-config")
    assert config["configMap"]["name"] == manifests["ConfigMap"]["metadata"]["name"]
    settings = yaml.safe_load(manifests["ConfigMap"]["data"]["mergerouter.yaml"])
    assert settings["net"]["bindIp"] == "127.0.0.1"
    assert f":{settings['net']['port']}/" in pod["containers"][0]["env"][0]["value"]
