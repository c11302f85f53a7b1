"""Make a traced ONNX graph plainer.

Removed is what does nothing: casts to the same type, products with one, dead nodes. Paddings that a runtime would have to
work out are written as numbers: ONNX Runtime cannot work them out for dilated convolutions.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper


def clean_(model: onnx.ModelProto) -> None:
    """In place; the function that the graph computes is unchanged."""
    graph = model.graph
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.input)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    ones = _ones(graph)
    outputs = {value.name for value in graph.output}
    rename: dict[str, str] = {}
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        source = _passed_through(node, types, ones)
        if source is None or (node.output[0] in outputs and source in (v.name for v in graph.input)):
            kept.append(node)
        elif node.output[0] in outputs:
            rename[_resolve(source, rename)] = node.output[0]
        else:
            rename[node.output[0]] = source
    for node in kept:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = _resolve(name, rename)
    del graph.node[:]
    graph.node.extend(_alive(kept, outputs))
    for node in graph.node:
        if node.op_type == "Conv":
            _state_pads(node)
    used = {name for node in graph.node for name in node.input}
    initializers = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend(initializers)


def _state_pads(conv: onnx.NodeProto) -> None:
    """Instead of `auto_pad`: PyTorch writes it for padding "same", which it allows at stride 1 only."""
    about = {attribute.name: attribute for attribute in conv.attribute}
    if "auto_pad" not in about or not about["auto_pad"].s.startswith(b"SAME"):
        return
    kernel = list(about["kernel_shape"].ints)
    dilations = list(about["dilations"].ints) if "dilations" in about else [1] * len(kernel)
    totals = [step * (size - 1) for step, size in zip(dilations, kernel, strict=True)]
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    pads = less + more if about["auto_pad"].s == b"SAME_UPPER" else more + less
    conv.attribute.remove(about["auto_pad"])
    if "pads" in about:
        conv.attribute.remove(about["pads"])
    conv.attribute.append(helper.make_attribute("pads", pads))


def _resolve(name: str, rename: dict[str, str]) -> str:
    while name in rename:
        name = rename[name]
    return name


def _ones(graph: onnx.GraphProto) -> set[str]:
    """Constants with a single value, which is 1."""
    constants = {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    arrays = {
        name: numpy_helper.to_array(tensor)
        for name, tensor in constants.items()
        if int(np.prod(tensor.dims)) == 1 and tensor.data_type == onnx.TensorProto.FLOAT
    }
    return {name for name, values in arrays.items() if float(values.reshape(())) == 1.0}


def _passed_through(node: onnx.NodeProto, types: dict[str, int], ones: set[str]) -> str | None:
    """Return the input that the node only passes on, if so."""
    if node.op_type == "Cast" and types.get(node.input[0]) == node.attribute[0].i:
        return str(node.input[0])
    if node.op_type == "Mul":
        others = [name for name in node.input if name not in ones]
        if len(others) == 1:
            return str(others[0])
    return None


def _alive(nodes: list[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes whose results are used, in their order."""
    needed, alive = set(wanted), []
    for node in reversed(nodes):
        if needed & set(node.output):
            needed |= set(node.input)
            alive.append(node)
    return alive[::-1]
