"""`arquant cost`: bit operations, bytes and latency of a policy; or a latency table."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from arquant.base.errors import InputError
from arquant.commands.command import command
from arquant.commands.shared import ModelLike, ModelOptions, PathLike, PolicyOptions

if TYPE_CHECKING:
    from arquant.commands.console import Console
    from arquant.models.tracing.layers import Layers


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Make a latency table (a bit-serial roofline: an estimate)"""

    make_table: PathLike | None = None
    """write the table of this model to FILE.npy or FILE.json"""
    table_batch: int = 16
    """images per batch"""
    rows: int = 16
    """dot-product units along output pixels"""
    columns: int = 16
    """dot-product units along output channels"""
    word_bits: int = 256
    """bits of a dot product per cycle"""
    clock_ghz: float = 1.0
    """cycles per nanosecond"""


@dataclass(frozen=True, kw_only=True)
class CountingOptions:
    """Counting"""

    convention: Literal["exact", "paper"] = "exact"
    """how bit operations are counted; paper reproduces the numbers of the paper's tables"""
    table: PathLike | None = None
    """latency table: HAQ's .npy (layer, w-1, a-1, cycles) or our .json"""


@dataclass(frozen=True)
class Cost(PolicyOptions, CountingOptions, TableOptions, ModelOptions):
    """Cost"""

    model: ModelLike
    """a MODEL: its weights may be missing; a run folder's policy is taken if no widths are stated"""


@command(
    Cost,
    "bit operations, bytes and latency of a policy; or make a latency table",
    common=("bits", "policy", "keep", "convention", "table", "make_table", "arch", "input", "classes"),
    examples=(
        "arquant cost resnet20 --bits 3",
        "arquant cost runs/search",
        "arquant cost resnet20 --bits w3a4 --keep 'layer3.*=4' --convention paper",
    ),
)
def cost(options: Cost) -> dict[str, Any]:
    """Return bit operations, share of the float network's, bytes and latency of a policy, or make a latency table.

    `bytes` is what the file takes at most, without its records about images; `weight_bytes` are the weights alone.
    Without a table `latency_ms` is None; one of another quantity, such as energy, has its cost under that name. What cannot be
    quantized is in no figure; if there is anything, `not_counted` names it. Layers that `keep` leaves in float are counted. A
    table that was made is under `table`.
    """
    from arquant.loading.models import as_classifier, layers_of
    from arquant.models.tracing.layers import skipped_rows
    from arquant.quantization.costs import cost_summary
    from arquant.quantization.latency import read_table
    from arquant.quantization.policy import check_widths, chosen_policy
    from arquant.quantization.quantized import QuantizedClassifier

    own = _own_policy(options)
    stated = options.policy if own is None else own
    wanted = options.bits is not None or stated is not None or bool(options.keep)
    if wanted or options.make_table is None:
        check_widths(options.bits, stated, options.keep)
    classifier = as_classifier(options.model, weights_required=False, **options.model_options)
    layers = layers_of(classifier)
    file = classifier.file_cost if isinstance(classifier, QuantizedClassifier) else None
    made = {} if options.make_table is None else {"table": _make_table(options, layers)}
    if not wanted:
        return made
    policy, layers = chosen_policy(layers, bits=options.bits, policy=stated, keep=options.keep)
    table = made.get("table", options.table)
    times = None if table is None else read_table(table)
    summary = cost_summary(policy, layers, times, convention=options.convention, file=file)
    left_out = [f"{row['name'] or '(model)'} ({row['kind']})" for row in skipped_rows(layers)]
    return {**made, **summary, **({"not_counted": left_out} if left_out else {})}


def _own_policy(options: Cost) -> Path | None:
    """Return the policy of the run folder that MODEL is, if it has one and no widths are stated."""
    if (
        options.bits is not None
        or options.policy is not None
        or options.keep
        or not isinstance(options.model, (str, Path))
    ):
        return None
    path = Path(options.model) / "policy.json"
    return path if path.is_file() else None


def _make_table(options: Cost, layers: "Layers") -> str:
    from arquant.quantization.latency import BitSerial, make_table, write_table

    if options.table is not None:
        raise InputError(f"make_table={options.make_table} and table={options.table} are two tables; give one of them")
    device = BitSerial(
        batch=options.table_batch, rows=options.rows, columns=options.columns, word_bits=options.word_bits,
        clock_ghz=options.clock_ghz,
    )  # fmt: skip
    write_table(make_table(layers, device), str(options.make_table))
    return str(options.make_table)


@cost.shown
def _show(result: dict[str, Any], options: Cost, console: "Console") -> None:
    lines = [f"latency table (estimated): {result['table']}"] if "table" in result else []
    if "gbops" in result:
        lines += [*cost_lines(result, options.convention), _table_line(result)]
    console.result(result, lines)


def cost_lines(result: dict[str, Any], convention: str = "exact") -> list[str]:
    """Return bit operations and bytes as lines of text."""
    names = result.get("not_counted", [])
    left_out = [f"not counted     {', '.join(names)}: stays in float, see arquant inspect"] if names else []
    return [
        *left_out,
        f"bit operations  {result['gbops']:.4f} G ({convention} convention), {result['percent_of_fp32']:.2f} % of float32",
        f"weights         {result['weight_bytes']:,} bytes; the file at most {result['bytes']:,} without records about images",
    ]


def _table_line(result: dict[str, Any]) -> str:
    """Return what a table says: the latency, or the quantity that it is of, in its own unit."""
    counted = ("gbops", "percent_of_fp32", "bytes", "weight_bytes", "latency_ms", "not_counted", "table")
    for name, value in result.items():
        if name not in counted:
            return f"{name:15} {value:g} (in the unit of the table)"
    latency = "unknown without a table (--table)" if result["latency_ms"] is None else f"{result['latency_ms']:.2f} ms"
    return f"latency         {latency}"
