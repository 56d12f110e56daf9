"""What rules read from the documents of a release."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sentiment.settings import Settings, load_settings
from tests.deploy.chart.manifests import Document, of_kind

Rule = Callable[[Sequence[Document]], Iterator[str]]


def pods(documents: Iterable[Document]) -> Iterator[tuple[str, Document, dict[str, str]]]:
    """Name, pod spec and labels of everything that creates pods."""
    for document in of_kind(documents, "Deployment", "Job"):
        template = document["spec"]["template"]
        yield f"{document['kind']} {document['metadata']['name']}", template["spec"], template["metadata"].get("labels", {})


def server(documents: Iterable[Document]) -> tuple[Document, Document, Document]:
    """The Deployment, its pod spec and the server's container."""
    (deployment,) = of_kind(documents, "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = [container for container in spec["containers"] if container["name"] == "sentiment"]
    return deployment, spec, container


def environment(container: Document) -> dict[str, str]:
    """A container's variables with literal values."""
    return {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}


def settings(container: Document) -> Settings:
    """The settings that the server reads from these variables."""
    return load_settings({}, environment(container))[0]


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a non-empty selector matches these labels."""
    return bool(selector) and selector.items() <= labels.items()
