"""Cost the models of a report. Files are read and networks of ours are built; no code that a file names is run."""

from collections.abc import Iterable, Mapping
from functools import cache
from math import prod
from pathlib import Path

from arquant.base.errors import ArquantError
from arquant.base.run_folder import MODEL
from arquant.certificates.certificate import CertificateSet
from arquant.models.tracing.layer import Layers
from arquant.quantization.costs import FLOAT_BITS, Bops, WeightBytes
from arquant.quantization.policy import Policy
from arquant.reporting.model import Costs, LayerBits


def layer_table(policy: Policy, layers: Layers | None) -> tuple[LayerBits, ...]:
    """Return the policy in order, with each layer's share of its bit operations and bytes."""
    if layers is None:
        operations, sizes = _shares(_recorded_bops(policy)), _shares(_recorded_bytes(policy))
        return tuple(
            LayerBits(name, bits.w, bits.a, operations.get(name), sizes.get(name)) for name, bits in policy.items()
        )
    bops, size = Bops(), WeightBytes()
    totals = [max(cost.cost(policy, layers), 1e-30) for cost in (bops, size)]
    rows = []
    for layer in layers:
        bits = policy[layer.name]
        own = layer.macs * bits.w * bits.a, size.layer_cost(layer, bits.w, bits.a, layers)
        rows.append(LayerBits(layer.name, bits.w, bits.a, own[0] / totals[0], own[1] / totals[1]))
    return tuple(rows)


def policy_costs(
    policy: Policy, layers: Layers | None, journaled: Mapping[Policy, Mapping[str, float]], folder: Path
) -> Costs:
    """Return the costs of a quantized model; those in the journal if its network cannot be built."""
    file = folder / MODEL
    file_bytes = file.stat().st_size if file.exists() else None
    if layers is None:
        known, sizes, macs = journaled.get(policy, {}), _recorded_bytes(policy), _recorded_macs(policy)
        total = known.get("bops", sum(_recorded_bops(policy).values()) or None)
        percent = 100 * total / (FLOAT_BITS**2 * sum(macs.values())) if total and macs else None
        recorded = known.get("weight_bytes", known.get("bytes"))  # the latter in runs of earlier versions
        return Costs(total, percent, recorded or sum(sizes.values()) or None, file_bytes)
    bops = Bops()
    total = bops.cost(policy, layers)
    return Costs(
        total, 100 * total / bops.float_cost(layers), WeightBytes().cost(policy, layers), file_bytes
    )  # fmt: skip


def _recorded_macs(policy: Policy) -> dict[str, float]:
    """Return the multiply-accumulates of each layer, left in float or not, by the policy file; empty if one is missing."""
    macs, names = policy.model.get("macs"), (*policy, *policy.left)
    if not isinstance(macs, Mapping) or not all(isinstance(macs.get(name), int) and macs[name] > 0 for name in names):
        return {}
    return {name: float(macs[name]) for name in names}


def _recorded_bops(policy: Policy) -> dict[str, float]:
    products = {name: bits.w * bits.a for name, bits in policy.items()} | dict.fromkeys(policy.left, FLOAT_BITS**2)
    return {name: macs * products[name] for name, macs in _recorded_macs(policy).items()}


def _shares(amounts: Mapping[str, float]) -> dict[str, float]:
    total = sum(amounts.values())
    return {name: amount / total for name, amount in amounts.items()} if total else {}


def _recorded_weights(policy: Policy) -> dict[str, int]:
    """Return the number of weights of each layer by the shapes in the policy file; empty if one is missing."""
    shapes = policy.model.get("shapes")
    if not isinstance(shapes, Mapping) or not all(isinstance(shapes.get(name), list) for name in policy):
        return {}
    sides = {name: [side for side in shapes[name] if isinstance(side, int)] for name in policy}
    return {name: prod(sides[name]) if sides[name] else 0 for name in policy}


def _recorded_bytes(policy: Policy) -> dict[str, float]:
    return {name: weights * policy[name].w / 8 for name, weights in _recorded_weights(policy).items()}


def float_costs(layers: Layers | None, policies: Iterable[Policy] = ()) -> Costs:
    """Return the costs of the float model; if it cannot be built, those that a policy file for it states."""
    policies = list(policies)
    if layers is not None and all(_same_size(policy, layers) for policy in policies):
        return Costs(Bops().float_cost(layers), 100.0, WeightBytes().float_cost(layers))
    for policy in policies:
        macs, weights = sum(_recorded_macs(policy).values()), sum(_recorded_weights(policy).values())
        if macs or weights:
            bops = FLOAT_BITS**2 * macs if macs else None
            return Costs(bops, bops and 100.0, weights * FLOAT_BITS / 8 if weights else None)
    return Costs()


def milliseconds_per_vote(certificates: CertificateSet) -> float | None:
    """Return the time of a certification run divided by its votes; None where the file does not say."""
    rows = certificates.certificates
    votes = sum(c.n + c.n0 for c in rows)
    seconds = sum(c.seconds for c in rows)
    return 1000 * seconds / votes if votes and seconds > 0 else None


@cache
def network_layers(name: str) -> Layers | None:
    """Return the layers of a network of ours, timm's or torchvision's; None for others, and if it cannot be built.

    The name may be that of a stranger's file: nothing is looked up in a place that it chooses.
    """
    from arquant.loading.models import load_model
    from arquant.models.architectures.registry import canonical_name
    from arquant.models.factory import needs_consent
    from arquant.models.tracing.layers import find_layers

    stem = name.partition(":")[0]
    spec = stem if canonical_name(stem) is not None else name
    if spec == name and not name.startswith(("timm:", "torchvision:")) and canonical_name(name) is None:
        return None
    if needs_consent(spec):
        return None
    try:
        return find_layers(load_model(spec, weights_required=False))
    except ArquantError:
        return None


def fitting_layers(policy: Policy, *names: str) -> Layers | None:
    """Return the layers of the first of these networks that the policy fits, at the image size that it is for."""
    for name in names:
        layers = network_layers(name)
        try:
            if layers is not None:
                layers = layers.leaving(policy.left)
                policy.check(layers)
                if _same_size(policy, layers):
                    return layers
        except ArquantError:
            continue
    return None


def _same_size(policy: Policy, layers: Layers) -> bool:
    """Tell whether the layers do as much work as the policy's; with images of another size they would not."""
    macs = _recorded_macs(policy)
    return not macs or all(macs.get(layer.name) == layer.macs for layer in layers)


def is_shipped_float(name: str, fingerprint: object) -> bool:
    """Tell by its fingerprint whether a model is the shipped float one; a quantized copy has the same name."""
    from arquant.loading.models import load_model
    from arquant.models.architectures.registry import canonical_name

    if canonical_name(name.partition(":")[0]) is None or ":" not in name:
        return False
    try:
        return load_model(name).fingerprint() == fingerprint
    except ArquantError:
        return False
