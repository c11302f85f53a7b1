"""A torchvision network with ImageNet weights: the smoothed answers of it and of an 8-bit copy, and what the copy saves.

    python examples/torchvision_imagenet.py photo.jpg holiday/                    downloads torchvision's public weights
    python examples/torchvision_imagenet.py photo.jpg --random-weights            a trial where nothing can be downloaded

Public weights have not seen noise and bear little of it. For larger radii train them on: examples/timm_photos.py.
"""

import argparse

import arquant
from arquant import ABSTAIN, load_model
from arquant.loading.pictures import load_pictures
from arquant.models.optional import import_torchvision  # works beside a CPU build of torch too

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("pictures", nargs="+", help="files and folders of pictures; they also calibrate the copy")
parser.add_argument("--network", default="mobilenet_v2", help="a name of torchvision")
parser.add_argument("--random-weights", action="store_true", help="no download; the answers then mean nothing")
parser.add_argument("--size", type=int, help="of the input in pixels; that of the weights if not given")
parser.add_argument("--sigma", type=float, default=0.05, help="of the noise; 1.0 is black to white")
parser.add_argument("--n", type=int, default=500, help="noisy votes per picture")
args = parser.parse_args()

# Normalisation comes with torchvision's weights and goes inside, so that sigma and radii are in units of the pixel range.
base = load_model(
    f"torchvision:{args.network}",
    input_shape=None if args.size is None else (3, args.size, args.size),
    weights_required=not args.random_weights,
)
base.class_names = tuple(import_torchvision().models.get_model_weights(args.network).DEFAULT.meta["categories"])
images, _ = load_pictures(args.pictures, base)
small = arquant.quantize(base, 8, images, sigma=args.sigma)

cost = arquant.cost(base, bits=8)
print(f"8 bits: {cost['percent_of_fp32']:.1f} % of the bit operations, weights of {cost['weight_bytes']:,} bytes")
for name, model in (("float", base), ("8 bits", small)):
    for found in arquant.predict(model, args.pictures, sigma=args.sigma, n=args.n):
        said = "no answer" if found.predict == ABSTAIN else f"{found.class_name}, within {found.radius:.3f}"
        print(f"{name}: {found.file}: {said} ({found.votes} of {found.n} votes)")
