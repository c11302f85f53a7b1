"""What `arquant COMMAND --help` ends with: commands to copy."""

EXAMPLES = {
    "certify": (
        "arquant certify resnet20:sigma=0.5 sample --sigma 0.5 --images first:20 --n 1000",
        "arquant certify runs/w4 --n 100000 --adaptive --out runs/w4",
        "arquant certify model.onnx npz:test.npz --sigma 0.25",
    ),
    "predict": ("arquant predict runs/w4 --n 1000 --images first:10",),
    "export": ("arquant export runs/w4 --format onnx", "arquant export runs/w4 --format openvino --out ship/model.xml"),
    "check": ("arquant check runs/w4 --min-acr 0.4 --max-bytes 1e6 --min-certified 0.4@0.5",),
    "report": ("arquant report runs/w4 runs/float", "arquant report runs/search --format latex --figures figures"),
    "train": ("arquant train resnet20 cifar10 --sigma 0.5 --out runs/base",),
}


def epilog(command: str) -> str | None:
    """The examples of a command, each on a line of its own."""
    lines = EXAMPLES.get(command)
    return None if lines is None else "\n".join(["examples:", *(f"  {line}" for line in lines)])
