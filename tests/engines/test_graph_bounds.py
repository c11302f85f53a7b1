"""A small file that asks for endless work or memory is refused before anything of it is computed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from arquant.commands.main import main
from arquant.engines.files import load_file_classifier

FLATTEN = helper.make_node("Flatten", ["x"], ["f"])
MATMUL = helper.make_node("MatMul", ["f", "w"], ["y0"])
LAST = helper.make_node("Identity", ["y0"], ["y"])
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def constant(name: str, value: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def model(nodes: Sequence[onnx.NodeProto], *constants: onnx.TensorProto, functions: Any = ()) -> onnx.ModelProto:
    """A linear classifier, and some nodes that make its logits `y0` to `y`."""
    weight = constant("w", np.zeros((192, 5), np.float32))
    graph = helper.make_graph(
        [FLATTEN, MATMUL, *nodes], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])], [weight, *constants],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=OPSETS, functions=list(functions))
    made.ir_version = 8
    return made


def added(*nodes: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Nodes that make a tensor `big`, of which the sum is added to the logits."""
    total = helper.make_node("ReduceSum", ["big"], ["total"], keepdims=0)
    return [*nodes, total, helper.make_node("Add", ["y0", "total"], ["y"])]


def loop(rounds: int) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["still"]), helper.make_node("Add", ["v", "one"], ["more"])], "b",
        [info("i", TensorProto.INT64, []), info("on", TensorProto.BOOL, []), info("v", TensorProto.FLOAT, ["N", 5])],
        [info("still", TensorProto.BOOL, []), info("more", TensorProto.FLOAT, ["N", 5])],
        [constant("one", np.ones(5, np.float32))],
    )  # fmt: skip
    node = helper.make_node("Loop", ["rounds", "begin", "y0"], ["y"], body=body)
    return model([node], constant("rounds", np.int64(rounds)), constant("begin", np.array(True)))


def branches(depth: int) -> onnx.ModelProto:
    def branch(inner: int) -> onnx.GraphProto:
        out = f"b{inner}"
        node = helper.make_node("Relu", ["y0"], [out]) if inner == 0 else decide(inner, out)
        return helper.make_graph([node], "b", [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)])

    def decide(inner: int, out: str) -> onnx.NodeProto:
        return helper.make_node("If", ["yes"], [out], then_branch=branch(inner - 1), else_branch=branch(0))

    return model([decide(depth, "y")], constant("yes", np.array(True)))


def functions(calls: dict[str, list[str]]) -> onnx.ModelProto:
    """A model of functions, by the names of what each calls; Relu is the operator."""
    made = []
    for name, called in calls.items():
        values = ["a", *(f"t{number}" for number in range(1, len(called))), "b"]
        nodes = [
            helper.make_node(each, [before], [after], domain="" if each == "Relu" else "own")
            for each, before, after in zip(called, values, values[1:], strict=False)
        ]
        made.append(helper.make_function("own", name, ["a"], ["b"], nodes, OPSETS))
    return model([helper.make_node("f0", ["y0"], ["y"], domain="own")], functions=made)


def chain(length: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Abs", [f"y{number}"], [f"y{number + 1}"]) for number in range(length)]
    return model([*nodes, helper.make_node("Identity", [f"y{length}"], ["y"])])


def counted(end: float) -> onnx.ModelProto:
    numbers = {"first": 0.0, "last": end, "step": 1.0}
    nodes = added(helper.make_node("Range", list(numbers), ["big"]))
    return model(nodes, *(constant(name, np.float32(value)) for name, value in numbers.items()))


def filled(size: int) -> onnx.ModelProto:
    return model(added(helper.make_node("ConstantOfShape", ["size"], ["big"])), constant("size", np.array([size])))


HOSTILE = {
    "a loop without end": (loop(2**62), "has a loop of 4,611,686,018,427,387,904 rounds"),
    "branches in branches": (branches(30), "inside each other, more than 4 deep"),
    "a chain": (chain(25_000), "has more than 20,000 operations"),
    "a function that calls itself": (functions({"f0": ["f0"]}), "calls itself"),
    "functions that double": (
        functions({f"f{k}": [f"f{k + 1}"] * 2 if k < 40 else ["Relu"] for k in range(41)}),
        "has more than 20,000 operations",
    ),
    "a range": (counted(1e12), "computes a tensor of"),
    "a filled tensor": (filled(2**40), "computes a tensor of 1,099,511,627,776 values"),
}
HARMLESS = {
    "a loop": loop(3),
    "a branch": branches(1),
    "a range": counted(7.0),
    "a filled tensor": filled(7),
}
CERTIFY = ["sample", "--sigma", "0.5", "--n", "10", "--mean", "0", "--std", "1"]


@pytest.mark.parametrize("name", HOSTILE)
def test_what_asks_for_too_much_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, reason = HOSTILE[name]
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    assert main(["certify", str(tmp_path / "model.onnx"), *CERTIFY, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert "Traceback" not in error


@pytest.mark.parametrize("name", HARMLESS)
def test_what_asks_for_little_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(HARMLESS[name].SerializeToString())
    assert load_file_classifier(tmp_path / "model.onnx").num_classes == 5
