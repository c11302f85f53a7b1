"""The files beside an exported model that hold its weights: an OpenVINO model's `.bin`, an ONNX model's external data.

Such a file is named by the model, so by whoever wrote it. Only a regular file in the model's folder is ever opened, and only
if it is about as long as the model says; a device or a pipe elsewhere would be read without end.
"""

from collections.abc import Iterator
from math import prod
from pathlib import Path

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]

from arquant.base.errors import FileFormatError
from arquant.base.own_files import own_file
from arquant.engines.graph_bounds import check_functions

MOST_BYTES = 2**34
"""of one weight file: far more than any image classifier has"""
_SPARE_BYTES = 2**24
"""what a file may hold beyond its tensors, for alignment and the like"""
_VALUE_BYTES = 16
"""of the widest type of ONNX"""


def weight_files(path: Path) -> list[Path]:
    """Return the files that hold the weights of an `.onnx` or `.xml` model, checked, in order of their names.

    Raises:
        FileFormatError: the model is not of the format that its name says, or one of them is missing, lies outside of the
            model's folder, is no regular file or is too long.
    """
    model = read_onnx(path)
    _check_format(path, model)
    if model is not None:
        check_functions(model, path)
    needed = {path.with_suffix(".bin").name: MOST_BYTES} if model is None else _external_bytes(model, path)
    found = []
    for name, most in needed.items():
        file = _beside(path, name)
        size, most = file.stat().st_size, min(most, MOST_BYTES)
        if size > most:
            raise FileFormatError(
                f"{path} has its weights in {name!r}, which is {size:,} bytes long where at most {most:,} make sense; save the "
                "model with its own data"
            )
        found.append(file)
    return sorted(found)


def read_onnx(path: Path) -> onnx.ModelProto | None:
    """Return an ONNX model without the weights that lie beside it; None if it is damaged, or something else."""
    try:
        return onnx.load(path, load_external_data=False)
    except Exception:  # of the library that parses it, which is not ours to name
        return None


def _check_format(path: Path, model: onnx.ModelProto | None) -> None:
    """Refuse a file that is not what its name says: OpenVINO goes by the contents, and would take weights from elsewhere."""
    with path.open("rb") as file:
        is_xml = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")
    if path.suffix == ".xml" and (not is_xml or model is not None):
        raise FileFormatError(f"{path} cannot be read as a model: it is not the XML of an OpenVINO model")
    if path.suffix == ".onnx" and (is_xml or model is None):
        raise FileFormatError(f"{path} cannot be read as a model: it is not an intact ONNX file")


def _beside(path: Path, name: str) -> Path:
    try:
        file = own_file(path.parent, name)
    except FileFormatError as error:
        raise FileFormatError(f"{path} names the weight file {name!r}: {error}") from error
    if not file.is_file():
        raise FileFormatError(f"{path} names the weight file {name!r}, which is missing")
    return file


def _external_bytes(model: onnx.ModelProto, path: Path) -> dict[str, int]:
    """Return the names of a model's external files, and how many bytes each can have at most by what the tensors say."""
    most: dict[str, int] = {}
    for tensor in _tensors(model):
        facts = {entry.key: entry.value for entry in tensor.external_data}
        if len(facts) != len(tensor.external_data):
            raise FileFormatError(f"{path}: the external data of {tensor.name!r} is stated twice")
        if "location" not in facts:
            continue
        try:
            end = int(facts.get("offset") or 0) + int(facts.get("length") or _VALUE_BYTES * prod(tensor.dims))
        except ValueError as error:
            raise FileFormatError(f"{path}: the external data of {tensor.name!r} is damaged ({error})") from error
        name = facts["location"]
        most[name] = max(most.get(name, 0), end + _SPARE_BYTES)
    return most


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Return all tensors of a model: also in functions, nested graphs, attributes, sparse tensors and training parts."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in [value] if isinstance(value, Message) else value:
            yield from _tensors(part)
