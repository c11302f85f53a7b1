"""Certify a model on a few images, and say what that means.   python examples/certify_only.py --n 10000 --images first:100"""

import argparse

import arquant
from arquant.certificates.metrics import metrics_json

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="resnet20:sigma=0.5", help="any MODEL spelling")
parser.add_argument("--sigma", type=float, default=0.5, help="the noise that the model was trained with")
parser.add_argument("--n", type=int, default=200, help="votes per image")
parser.add_argument("--images", default="first:3", help="which images of the embedded sample")
parser.add_argument("--out", default="runs/certify-only", help="run folder; the same call resumes")
args = parser.parse_args()

run = arquant.certify(
    args.model, "sample", sigma=args.sigma, n=args.n, images=args.images, adaptive=True, out=args.out, note=print
)
settings = run.certificates.settings
assert settings is not None
for c in run.certificates.certificates:
    if c.abstained:
        print(f"image {c.idx}: nothing is claimed ({c.votes} of {c.n} votes for the most likely class)")
    else:
        print(f"image {c.idx}: class {c.predict}{'' if c.correct else ' (wrong)'} within l2 radius {c.radius:.3f}")
summary = metrics_json(run.certificates)
low, high = summary["acr_low"], summary["acr_high"]
print(f"average certified radius {summary['acr']:.3f} [{low:.3f}, {high:.3f}] over {summary['images']} images")
print(
    f"Each line is false with probability at most {settings.effective_alpha:g} over the noise drawn. It is about the vote of "
    f"many noisy copies (sigma {settings.sigma:g}), not about one forward pass."
)
print(f"evidence: {run.path}")
