"""Generates files from the chart and the server's settings: ``make manifests`` (needs helm).

- chart/values.schema.json: the part ``settings``, with the server's limits
- README.md: the table of the chart's values
- kustomize/: manifests for users without Helm
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from sentiment.settings import Settings

DEPLOY = Path(__file__).resolve().parent
FLAVOURS = ("cpu", "gpu", "mig")
# The chart sets these from other values. Its checks refuse them, and name those values.
SET_BY_CHART = {
    *("grpc_listen", "http_listen", "bundles", "cache_dir"),
    *("tls_cert_file", "tls_key_file", "tls_client_ca_file", "health_listen", "auth_tokens", "admin_listen", "admin_tokens"),
    *("drain_wait_s", "drain_grace_s", "connection_age_max_s", "tracing"),
}
HELMS_OWN = ("app.kubernetes.io/managed-by", "helm.sh/chart", "helm.sh/hook", "helm.sh/hook-delete-policy")
BEGIN, END = "<!-- values: made by deploy/render.py -->\n", "<!-- end of values -->\n"
# Any: YAML and JSON documents have no better type.
Document = dict[str, Any]


class _Dumper(yaml.SafeDumper):
    """Writes multi-line texts as blocks, and indents lists, as Kubernetes' own files do."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002  # as the library calls it
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def template(*flags: str) -> list[Document]:
    """The output of ``helm template`` for a release called sentiment in the namespace sentiment.

    Raises:
        subprocess.CalledProcessError: the chart or a value is wrong; ``stderr`` says what.
    """
    command = ["helm", "template", "sentiment", str(DEPLOY / "chart"), "--namespace", "sentiment", *flags]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout  # noqa: S603  # our own chart
    return [document for document in yaml.load_all(rendered, Loader=yaml.CSafeLoader) if document]


def schema() -> str:
    """The chart's schema, with the server's current settings."""
    path = DEPLOY / "chart/values.schema.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    fields = Settings.model_json_schema()["properties"]
    of_settings = {name: name in SET_BY_CHART or _limits(field) for name, field in fields.items()}
    document["properties"]["settings"]["properties"] = of_settings
    return _laid_out(document) + "\n"


def _limits(field: Document) -> Document:
    return {key: value for key, value in field.items() if key not in ("title", "default", "description")}


def _laid_out(node: object, indent: int = 0, width: int = 130) -> str:
    """JSON with an object on one line if it fits."""
    line = json.dumps(node)
    if not isinstance(node, dict) or (len(line) + indent <= width and len(node) <= 8):
        return line
    pad = " " * (indent + 2)
    inside = ",\n".join(f"{pad}{json.dumps(key)}: {_laid_out(value, indent + 2)}" for key, value in node.items())
    return "{\n" + inside + "\n" + " " * indent + "}"


def commented(text: str) -> Iterator[tuple[str, str]]:
    """The path of each value in values.yaml and the comment above it."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if found := re.match(r"( *)# (.*)", line):
            comment.append(found[2])
        elif found := re.match(r"( *)([A-Za-z_]+):", line):
            path = [*((depth, key) for depth, key in path if depth < len(found[1])), (len(found[1]), found[2])]
            if comment:
                yield ".".join(key for _, key in path), " ".join(comment)
            comment = []
        else:
            comment = []


def values_table() -> str:
    """The table of the chart's values for README.md."""
    text = (DEPLOY / "chart/values.yaml").read_text(encoding="utf-8")
    values = yaml.load(text, Loader=yaml.CSafeLoader)
    lines = ["| value | default | what it is |", "|---|---|---|"]
    for path, comment in commented(text):
        value = values
        for key in path.split("."):
            value = value[key]
        lines.append(f"| `{path}` | `{json.dumps(value)}` | {comment} |".replace('`""`', ""))
    return "\n".join(lines) + "\n"


def readme() -> str:
    """README.md with the current table."""
    before, _, rest = (DEPLOY / "README.md").read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + values_table() + END + after


def kustomize() -> dict[str, str]:
    """Content by file: a base for each flavour, and components for what needs an operator or runs once.

    Overlays choose namespace and names, so the alert rules are those for every release.
    """
    files: dict[str, str] = {}
    for flavour in FLAVOURS:
        parts: dict[str, list[Document]] = {"": [], "monitoring": [], "loadtest": []}
        values = "loadTest.enabled=true,monitoring.everyRelease=true"
        for document in template("-f", str(DEPLOY / f"chart/values-{flavour}.yaml"), "--set", values):
            if document["metadata"]["name"] == "sentiment-call":
                continue  # for `helm test` alone
            parts[_part(document)].append(_without_helm(document))
        files |= _folder(flavour, "Kustomization", "v1beta1", parts.pop(""))
        # All flavours share monitoring and load test: only images differ, which overlays set.
        for part, documents in parts.items():
            files |= _folder(part, "Component", "v1alpha1", documents) if flavour == FLAVOURS[0] else {}
    return files


def _part(document: Document) -> str:
    if document["kind"] == "Job":
        return "loadtest"
    watches = document["kind"] in ("ServiceMonitor", "PrometheusRule", "ConfigMap")
    return "monitoring" if watches else ""


def _without_helm(document: Document) -> Document:
    metadata = document["metadata"]
    del metadata["namespace"]
    for kind in ("labels", "annotations"):
        kept = {key: value for key, value in metadata.pop(kind, {}).items() if key not in HELMS_OWN}
        if kept:
            metadata[kind] = kept
    return document


def _folder(name: str, kind: str, version: str, documents: Sequence[Document]) -> dict[str, str]:
    entry = {"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind, "resources": ["sentiment.yaml"]}
    head = "# Generated by deploy/render.py from the chart. Do not edit.\n"
    texts = [yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=140) for document in documents]
    return {
        f"{name}/kustomization.yaml": head + yaml.dump(entry, Dumper=_Dumper, sort_keys=False),
        f"{name}/sentiment.yaml": head + "---\n".join(texts),
    }


def made() -> dict[Path, str]:
    """The content of every generated file, by path."""
    by_kustomize = {DEPLOY / "kustomize" / name: text for name, text in kustomize().items()}
    return {DEPLOY / "chart/values.schema.json": schema(), DEPLOY / "README.md": readme(), **by_kustomize}


def main() -> int:
    """Write all generated files."""
    (DEPLOY / "chart/values.schema.json").write_text(schema(), encoding="utf-8")
    for path, text in made().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
