"""Bound what a graph of a stranger's may ask for: operations, values of one tensor, rounds of a loop.

A file of a few hundred bytes can name a tensor of terabytes, or a loop without end, which an engine would begin to compute.
"""

from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path

import onnx

from arquant.base.errors import FileFormatError
from arquant.engines.openvino_api import ov

_MOST_OPERATIONS = 20_000
"""without constants: some five times those of the largest classifiers"""
_MOST_VALUES = 2**28
"""of one tensor for one image: a hundred times what a network for photos has"""
_MOST_ROUNDS = 10_000
_MOST_FUNCTIONS = 200
"""of an ONNX file, which may call each other in a row"""
_DEEPEST = 4
"""graphs inside graphs; OpenVINO's time doubles with each"""
_GIVEN = ("Constant", "Parameter")
"""not computed; the file has the former, and the size of images is checked by itself (`models.allowance`)"""
_PASSING = ("Convert", "Reshape", "Squeeze", "Unsqueeze")
"""operations that may stand between a constant and its use as a number"""


def check_bounds(model: ov.Model, path: Path) -> None:
    """Refuse a graph that no image classifier needs, before anything of it is computed.

    Raises:
        FileFormatError: it has too many operations, too large a tensor, or a loop whose rounds are no small constant.
    """
    nodes = [node for node in _all_nodes(model, path) if node.get_type_name() not in _GIVEN]
    if len(nodes) > _MOST_OPERATIONS:
        raise FileFormatError(f"{path} has {len(nodes):,} operations, where at most {_MOST_OPERATIONS:,} make sense")
    batch = max((_values(port) // max(1, _values(port, 1)) for port in model.inputs), default=1)
    for node in nodes:
        most = max((_values(port) for port in node.outputs()), default=0)
        if most > _MOST_VALUES * max(1, batch):
            raise FileFormatError(
                f"{path} computes a tensor of {most:,} values ({node.get_type_name()}), where at most {_MOST_VALUES:,} for an "
                "image make sense"
            )
        if node.get_type_name() == "Loop" and not 0 <= (rounds := _rounds(node)) <= _MOST_ROUNDS:
            said = "how many rounds it does not say" if rounds < 0 else f"{rounds:,} rounds"
            raise FileFormatError(f"{path} has a loop of {said}; at most {_MOST_ROUNDS:,}, stated in the file, are run")


def check_functions(model: onnx.ModelProto, path: Path) -> None:
    """Refuse an ONNX model whose functions call themselves, or grow to too many operations where each is put in its place.

    Raises:
        FileFormatError: it is such a model.
    """
    functions = {(function.domain, function.name): function for function in model.functions}
    sizes: dict[tuple[str, str], int | None] = {}

    def size(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            total += called((node.domain, node.op_type)) + sum(size(graph.node) for graph in _graphs(node))
        return min(total, _MOST_OPERATIONS + 1)

    def called(name: tuple[str, str]) -> int:
        if name not in functions:
            return int(name[1] != "Constant")
        if name not in sizes:
            sizes[name] = None
            sizes[name] = size(functions[name].node)
        known = sizes[name]
        if known is None:
            raise FileFormatError(f"{path} has a function that calls itself: {name[1]!r}")
        return known

    if len(functions) > _MOST_FUNCTIONS or size(model.graph.node) > _MOST_OPERATIONS:
        raise FileFormatError(
            f"{path} has more than {_MOST_OPERATIONS:,} operations, each function in its place, or {_MOST_FUNCTIONS} functions"
        )


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from ([attribute.g] if attribute.HasField("g") else [])
        yield from attribute.graphs


def _all_nodes(model: ov.Model, path: Path, depth: int = 0) -> Iterator[ov.Node]:
    """Yield the operations of a graph and of the graphs inside its loops and branches."""
    if depth > _DEEPEST:
        raise FileFormatError(f"{path} has loops or branches inside each other, more than {_DEEPEST} deep")
    for node in model.get_ops():
        yield node
        if node.get_type_name() in ("Loop", "TensorIterator"):
            yield from _all_nodes(node.get_function(), path, depth + 1)
        elif node.get_type_name() == "If":
            for branch in (0, 1):
                yield from _all_nodes(node.get_function(branch), path, depth + 1)


def _values(port: ov.Output, first: int = 0) -> int:
    """Return how many values a tensor has, from its dimension `first` on; open dimensions count as 1."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return 0
    return prod(each.get_length() if each.is_static else 1 for each in list(shape)[first:])


def _rounds(loop: ov.Node) -> int:
    """Return the largest number of rounds of a loop; -1 if no constant says it."""
    node = loop.input_value(0).get_node()
    while node.get_type_name() in _PASSING:
        node = node.input_value(0).get_node()
    return int(node.get_data().reshape(-1)[0]) if node.get_type_name() == "Constant" else -1
