"""`arquant inspect`: what a model is made of."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arquant.commands.command import command
from arquant.commands.shared import ModelLike, ModelOptions

if TYPE_CHECKING:
    from arquant.commands.console import Console


@dataclass(frozen=True)
class Inspect(ModelOptions):
    """Inspect"""

    model: ModelLike
    """a MODEL: its weights may be missing"""


@command(
    Inspect,
    "list the layers that can be quantized, with shapes and costs, and what stays in float",
    common=("arch", "input", "classes"),
    examples=("arquant inspect timm:resnet18 --input 3,32,32 --classes 10",),
)
def inspect(options: Inspect) -> dict[str, Any]:
    """Return the layers of a model that can be quantized, with their facts, and what is skipped and why."""
    from arquant.loading.models import layers_of
    from arquant.models.tracing.layers import describe_rows, skipped_rows

    layers = layers_of(options.model, **options.model_options)
    return {
        "model": options.model
        if isinstance(options.model, str)
        else getattr(options.model, "name", str(options.model)),
        "layers": describe_rows(layers),
        "skipped": skipped_rows(layers),
        "macs": layers.macs,
        "macs_paper": layers.macs_paper,
        "weights": layers.weights,
        "other_parameters": layers.other_params,
        "first": layers.first.name,
        "last": layers.last.name,
    }


@inspect.shown
def _show(facts: dict[str, Any], _options: Inspect, console: "Console") -> None:
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
    console.result(facts, lines)
