"""A timm network, fine-tuned with noise on a folder of photos, quantized, fine-tuned again, certified and compared.

    python examples/timm_photos.py photos                                         downloads timm's public weights to start from
    python examples/timm_photos.py photos --random-weights --steps 5              a trial where nothing can be downloaded

`photos` has the folders train and test, each with one folder per class. The same lines work with any name of timm.
"""

import argparse
from pathlib import Path

import arquant

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("photos", type=Path)
parser.add_argument("--network", default="resnet18", help="a name of timm")
parser.add_argument("--random-weights", action="store_true", help="no download; ten epochs will then not be enough")
parser.add_argument("--size", type=int, default=224, help="of the input in pixels")
parser.add_argument("--steps", type=int, default=0, help="optimizer steps instead of ten epochs")
parser.add_argument("--batch", type=int, default=128, help="noisy images per step")
parser.add_argument("--sigma", type=float, default=0.25, help="of the noise; 1.0 is black to white")
parser.add_argument("--n", type=int, default=1000, help="noisy votes per photo")
parser.add_argument("--out", type=Path, default=Path("runs/photos"), help="folder for the runs; the same call resumes")
args = parser.parse_args()

network, sigma = f"timm:{args.network}", args.sigma
train, test = f"folder:{args.photos}/train", f"folder:{args.photos}/test"

# The head gets the classes of the folder and begins anew; the rest, and the normalisation, are those of the weights.
arquant.train(
    network, train, sigma=sigma, out=args.out / "float", input=(3, args.size, args.size), steps=args.steps, batch=args.batch,
    **({} if args.random_weights else {"init": network, "preset": "transfer"}),
)  # fmt: skip
arquant.quantize(args.out / "float", train, bits="w4a4", sigma=sigma, out=args.out / "w4")
arquant.finetune(args.out / "w4", steps=args.steps, batch=args.batch)
for name in ("float", "w4"):  # photos that neither training nor calibration saw
    arquant.certify(args.out / name, test, sigma=sigma, n=args.n, out=args.out / name)

compared = arquant.metrics(args.out / "float", args.out / "w4")
gain, small = compared["difference"], compared["second"]
print(f"4 bits: ACR {small['acr']:.3f}, right for {small['clean_accuracy']:.0%} of {small['images']} photos")
print(f"4 bits minus float, paired by photo: {gain['acr']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]")
print("page:", arquant.report(args.out / "w4", args.out / "float", out=args.out / "report.html").path)
