"""What PyTorch's ONNX exporter says where it fails, shortened to what a user can act on.

Its messages carry the graph and the Python stack of a value; the reason is at the beginning, and of the stack only the
network's own lines say something.
"""

import re

_APPENDED = re.compile(r"Please feel free to request support|\[Caused by the value")
_FRAME = re.compile(r"^\s*(?:\(node defined in )?(\S+\.py)\((\d+)\): ", re.MULTILINE)
_OWN_OF_TORCH = re.compile(r"[/\\]torch[/\\]")
_MOST_LETTERS = 300


def export_refusal(model: str, error: Exception) -> str:
    """Return what could not be exported, where in the network's code if known, and what to do."""
    text = str(error)
    reason = " ".join(_APPENDED.split(text, maxsplit=1)[0].split()) or type(error).__name__
    places = [(file, line) for file, line in _FRAME.findall(text) if not _OWN_OF_TORCH.search(file)]
    place = f" (after {places[0][0]}, line {places[0][1]})" if places else ""
    return (
        f"PyTorch cannot export model {model!r} to ONNX: {reason[:_MOST_LETTERS].rstrip('. ')}{place}; every other command "
        "works without ONNX (--engine torch). To export it, write that part with operations of ONNX and sizes that do not "
        "depend on the batch"
    )
