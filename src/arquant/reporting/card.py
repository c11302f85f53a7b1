"""A model card: Markdown with front matter as model hubs read it, on the main model of a report."""

from collections.abc import Mapping
from typing import Any

import yaml

from arquant.base.errors import InputError
from arquant.certificates.certificate import CertificateSet
from arquant.reporting.claims_text import claims, not_claimed
from arquant.reporting.model import SMALL_RADIUS, Entry, Report
from arquant.reporting.tables import escaped, markdown, tables
from arquant.reporting.verdict import verdict_of

_TAGS = ("quantization", "mixed-precision", "certified-robustness", "randomized-smoothing")


def to_card(report: Report) -> str:
    """Return the card of the report's main model.

    Raises:
        InputError: it has no certificates, or they are refused.
    """
    main = report.main
    if main is None or main.certificates is None:
        why = "" if main is None or not main.refused else f": {main.refused}"
        raise InputError(f"a model card needs a certified model{why}; run arquant certify first")
    front = yaml.safe_dump(_front_matter(report, main, main.certificates), sort_keys=False, allow_unicode=True)
    verdict = verdict_of(report)
    sections = [
        f"# {escaped(_title(main))}",
        escaped(_summary(main, main.certificates)),
        "## How to run it\n\n" + _run(main, main.certificates),
        "## Results\n\n" + _list([*verdict.ship, *verdict.controls]),
        "\n".join(markdown(table) for table in tables(report)).rstrip(),
        "## What is certified\n\n" + _list(claims(main)),
        "## What is not certified\n\n" + _list(not_claimed(report)),
        "## What it costs\n\n" + _list(verdict.cost or ("Times were not recorded.",)),
        "## Where it comes from\n\n" + _list(_origin(main)),
    ]
    return f"---\n{front}---\n\n" + "\n\n".join(sections) + "\n"


def _front_matter(report: Report, main: Entry, found: CertificateSet) -> dict[str, Any]:
    data = _data_name(main)
    front: dict[str, Any] = {"library_name": "arquant", "pipeline_tag": "image-classification", "tags": list(_TAGS)}
    if data.split(":")[0] in ("cifar10", "sample"):
        front["datasets"] = ["cifar10"]
    front["metrics"] = ["accuracy"]
    radii = [r for r in (SMALL_RADIUS, report.large_radius) if not main.unprovable(r)]
    metrics = [
        ("accuracy", "right and certified at some radius", found.clean_accuracy),
        *((f"certified_accuracy_{r:g}", f"right with a radius of at least {r:g}", found.certified_accuracy(r)) for r in radii),
        ("average_certified_radius", "ACR, in units of the pixel range", found.acr),
    ]  # fmt: skip
    result = {
        "task": {"type": "image-classification", "name": "Certified image classification"},
        "dataset": {
            "type": front.get("datasets", [data.split(":")[0] or "unknown"])[0],
            "name": f"{data or 'unknown'}, {len(found)} images",
        },
        "metrics": [{"type": kind, "name": name, "value": round(value, 4)} for kind, name, value in metrics],
    }
    front["model-index"] = [{"name": _title(main), "results": [result]}]
    return front


def _data_name(main: Entry) -> str:
    data = main.provenance.get("data")
    name = data.get("name") if isinstance(data, Mapping) else main.config.get("data")
    return " ".join(str(name or "").split()).removesuffix(" (certify)")


def _title(main: Entry) -> str:
    title = f"{main.model_name}, {main.name}" if main.name != main.model_name else main.name
    return " ".join(title.split())


def _summary(main: Entry, found: CertificateSet) -> str:
    size = (
        ""
        if main.costs.weight_bytes is None
        else f" Its quantized weights take {main.costs.weight_bytes / 1000:,.0f} kB."
    )
    return (
        f"An image classifier ({main.described}) whose answers are certified by randomized smoothing: many noisy copies of an "
        f"image vote, and the answer comes with a radius within which no change of the image can change it.{size} "
        f"Certified with {main.conditions} on {len(found):,} images of {_data_name(main) or 'unknown origin'}."
    )


def _run(main: Entry, found: CertificateSet) -> str:
    folder = "RUN"
    lines = [
        "```sh", "pip install arquant", f"arquant predict {folder} photo.jpg   # the vote, its class and its radius",
        f"arquant check {folder}               # verify the certificates from their votes",
        f"arquant export {folder} --format onnx", "```",
    ]  # fmt: skip
    return "\n".join(lines) + f"\n\n`{folder}` is the folder of this card. " + escaped(_conditions(main, found))


def _conditions(main: Entry, found: CertificateSet) -> str:
    engine = main.provenance.get("engine")
    how = ""
    if isinstance(engine, Mapping) and engine.get("engine"):
        how = f", computed by {engine['engine']} {engine.get('precision') or ''}".rstrip()
    if found.settings is None:
        return "The settings of the certificates are unknown."
    return (
        f"The certificates hold for the vote under {found.settings.noise} noise of σ = {found.settings.sigma:g}{how}. Another "
        "σ, another engine or another precision is another function: certify it again before you rely on it."
    )


def _origin(main: Entry) -> list[str]:
    origin, versions = main.provenance, main.provenance.get("versions")
    rows = [
        f"command: `{origin['command']}`" if origin.get("command") else "",
        f"fingerprint of the model: {_fingerprint(origin)}",
        f"arquant {versions.get('arquant')}, torch {versions.get('torch')}" if isinstance(versions, Mapping) else "",
        f"commit {origin['commit']}" if origin.get("commit") else "",
        "all certificates with their votes: `certificates.tsv`, settings: `certificates.json`",
        "The licence of the weights and of the data is for whoever publishes this card to state.",
    ]
    return [row for row in rows if row]


def _fingerprint(origin: Mapping[str, Any]) -> str:
    model = origin.get("model")
    return str(model.get("fingerprint")) if isinstance(model, Mapping) else "unknown"


def _list(texts: Any) -> str:
    return "\n".join(f"- {escaped(text)}" for text in texts)
