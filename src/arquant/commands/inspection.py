"""`arquant inspect` and `arquant cost`: what a model is made of, and what a policy makes of its cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arquant.base.errors import InputError
from arquant.loading.models import as_classifier
from arquant.models.classifier import Classifier
from arquant.models.tracing.layers import Layers, describe_rows, find_layers, skipped_rows
from arquant.quantization.costs import cost_summary
from arquant.quantization.latency import BitSerial, make_table, read_table, write_table
from arquant.quantization.policy import Policy, parse_keep
from arquant.quantization.quantized import QuantizedClassifier


def inspect(model: str | Classifier, **model_options: Any) -> dict[str, Any]:
    """The layers of a model that can be quantized, with their facts, and what is skipped and why."""
    layers = _layers(model, model_options)
    return {
        "model": model if isinstance(model, str) else model.name,
        "layers": describe_rows(layers),
        "skipped": skipped_rows(layers),
        "macs": layers.macs,
        "macs_paper": layers.macs_paper,
        "weights": layers.weights,
        "other_parameters": layers.other_params,
        "first": layers.first.name,
        "last": layers.last.name,
    }


def inspect_lines(facts: dict[str, Any]) -> list[str]:
    """The table of `arquant inspect`."""
    rows = facts["layers"]
    width = max(len(name) for name in ("layer", *(row["name"] for row in rows)))
    sizes = f"{'in':>5} {'out':>5} {'kernel':>6} {'stride':>6} {'input':>9}"
    lines = [f"{'layer':{width}}  {'kind':9} {sizes} {'MACs':>13} {'weights':>10}  values"]
    for row in rows:
        kernel, size = "x".join(map(str, row["kernel"])), "x".join(map(str, row["input_size"]))
        sizes = f"{row['in_channels']:5} {row['out_channels']:5} {kernel:>6} {row['stride'][0]:6} {size:>9}"
        sign = "signed" if row["signed_input"] else "unsigned"
        lines.append(f"{row['name']:{width}}  {row['kind']:9} {sizes} {row['macs']:13,} {row['weights']:10,}  {sign}")
    lines.append(f"{len(rows)} layers, {facts['macs']:,} MACs, {facts['weights']:,} weights in them")
    lines.append(f"8 bits by default: {facts['first']} (first) and {facts['last']} (last)")
    lines += [
        f"stays in float: {item['name'] or '(model)'} ({item['kind']}): {item['reason']}" for item in facts["skipped"]
    ]
    return lines


def cost(
    model: str | Classifier,
    *,
    bits: str | None = None,
    policy: str | Path | Policy | None = None,
    keep: Sequence[str] = (),
    convention: str = "exact",
    table: str | Path | None = None,
    **model_options: Any,
) -> dict[str, Any]:
    """Bit operations, share of the float network's, weight bytes and latency of a policy (or of uniform `bits`).

    Args:
        convention: `exact`, or `paper`, which reproduces the numbers of the paper's tables.
        table: a latency table, HAQ's `.npy` or our `.json`; without one `latency_ms` is None. One of another quantity, such
            as energy, has its cost under that name.

    What stays in float is in no figure; if there is anything, `not_counted` names it.
    """
    check_widths(bits, policy, keep)
    layers = _layers(model, model_options)
    chosen = chosen_policy(layers, bits=bits, policy=policy, keep=keep)
    summary = cost_summary(chosen, layers, None if table is None else read_table(table), convention=convention)
    left_out = [f"{row['name'] or '(model)'} ({row['kind']})" for row in skipped_rows(layers)]
    return {**summary, **({"not_counted": left_out} if left_out else {})}


def make_latency_table(
    model: str | Classifier, path: str | Path, *, accelerator: BitSerial, **model_options: Any
) -> Path:
    """Write a latency table for any network from the bit-serial roofline; an estimate, not a measurement."""
    write_table(make_table(_layers(model, model_options), accelerator), path)
    return Path(path)


def check_widths(bits: str | None, policy: object, keep: Sequence[str]) -> None:
    """Refuse widths that are stated in no way or in two."""
    if (bits is None) == (policy is None):
        raise InputError("say which widths: --bits 3 or --policy FILE (one of them)")
    if policy is not None and keep:
        raise InputError("--keep belongs to --bits; a policy states every layer")


def chosen_policy(
    layers: Layers, *, bits: str | None, policy: str | Path | Policy | None, keep: Sequence[str] = ()
) -> Policy:
    """The policy that `--bits` or `--policy` means for these layers, checked."""
    check_widths(bits, policy, keep)
    if policy is not None:
        loaded = policy if isinstance(policy, Policy) else Policy.load(policy)
        loaded.check(layers)
        return loaded
    return Policy.uniform(layers, str(bits), keep=parse_keep(keep))


def _layers(model: str | Classifier, options: dict[str, Any]) -> Layers:
    """The layers of a model; of a quantized one those that it had as a float model."""
    classifier = as_classifier(model, weights_required=False, **options)
    return classifier.layers if isinstance(classifier, QuantizedClassifier) else find_layers(classifier)
