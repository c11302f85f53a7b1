"""Measure the cost of a compiled quantized training step, relative to a compiled float step of the same network.

    python benchmarks/train_step.py            ResNet-20, batch 256, bfloat16 as `arquant train` uses it

Each contender runs in a process of its own, alternated; the table has the median seconds per step of each round.
"""

import argparse
import json
import statistics
import sys
import time

from alternation import alternate

CONTENDERS = {
    "float": None,
    "quantized": {},
    "per channel": {"per_channel": True},
    "learned steps": {"learn": "lsq"},
}
KEYS = {"quantized": "quant_over_float", "per channel": "channel_over_float", "learned steps": "lsq_over_float"}


def seconds_per_step(options: argparse.Namespace) -> float:
    """Return the median time of a step after the first ones, which compile."""
    import numpy as np
    import torch
    import torch.nn.functional as F  # noqa: N812

    from arquant.base.allocator import keep_freed_memory
    from arquant.loading.models import load_model
    from arquant.quantization.quantized import quantize

    keep_freed_memory()
    model = load_model(options.model, weights_required=False)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (64, *model.input_shape), dtype=np.uint8)
    knobs = CONTENDERS[options.contender]
    if knobs is not None:
        model = quantize(model, options.bits, images, sigma=0.5, **knobs)
    model.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4, nesterov=True)
    shape = (options.batch, *model.input_shape)
    pixels = torch.from_numpy(generator.random(shape, np.float32)).contiguous(memory_format=torch.channels_last)
    target = torch.from_numpy(generator.integers(0, model.num_classes, options.batch))

    def loss_of(pixels: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bfloat16"):
            logits = model(pixels)
        return F.cross_entropy(logits.float(), target)

    compiled = torch.compile(loss_of)
    times = []
    for _ in range(options.warm_up + options.steps):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        compiled(pixels, target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        times.append(time.perf_counter() - began)
    return statistics.median(times[options.warm_up :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--bits", default="4")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contender", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(json.dumps({"seconds": seconds_per_step(options)}))
        return
    found = alternate(__file__, list(CONTENDERS), rounds=options.rounds, arguments=sys.argv[1:])
    rounds = {name: [one["seconds"] for one in each] for name, each in found.items()}
    print(f"{options.model}, batch {options.batch}, {options.precision}, {options.bits} bits: seconds per step")
    medians = {name: statistics.median(times) for name, times in rounds.items()}
    for name, times in rounds.items():
        each = "  ".join(f"{value:.4f}" for value in times)
        print(f"{name:14} {medians[name]:.4f}   {medians[name] / medians['float']:.2f} x float   rounds: {each}")
    print(json.dumps({key: round(medians[name] / medians["float"], 4) for name, key in KEYS.items()}))


if __name__ == "__main__":
    main()
