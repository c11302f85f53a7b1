"""Answer requests with an exported model: class, radius and confidence, or no answer.

    python examples/serve_prediction.py model.onnx      (or OpenVINO's model.xml; default: one is exported)

The radius means: with probability at least `confidence` over the noise of this answer, the smoothed classifier returns
this class for every image within that l2 distance of this one (1.0 is black to white in one channel of one pixel).
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from arquant import Settings, Smoothed, export, load_data, load_model
from arquant.engines.choice import make_engine
from arquant.images.imageset import ImageSet
from arquant.loading.run_images import run_sigma
from arquant.noise.source import fresh_seed


@dataclass(frozen=True)
class Answer:
    klass: int | None  # None: the votes do not prove any class; pass the image on to something slower
    radius: float
    confidence: float


class Server:
    def __init__(self, file: Path, sigma: float | None, n: int, alpha: float) -> None:
        self.classifier = load_model(file)
        self.engine = make_engine(self.classifier, batch=64, input_kind="levels")
        self.sigma, self.n, self.alpha = run_sigma(None, sigma, self.classifier), n, alpha

    def answer(self, image: np.ndarray) -> Answer:
        """Predict one uint8 image (C, H, W); the seed is secret, since whoever knows the noise could prepare an image."""
        seed = fresh_seed()
        request = ImageSet(image[None], np.zeros(1, int), np.zeros(1, int), "request", self.classifier.num_classes)
        smoothed = Smoothed(self.classifier, self.sigma, seed=seed, engine=self.engine)
        settings = Settings(sigma=self.sigma, n0=64, n=self.n, alpha=self.alpha, seed=seed)
        (found,) = smoothed.certify(request, settings)
        return Answer(None if found.abstained else found.predict, found.radius, 1 - self.alpha)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--sigma", type=float, help="default: what the file says that it was made for")
    parser.add_argument("--n", type=int, default=256, help="more votes prove larger radii and abstain less")
    parser.add_argument("--alpha", type=float, default=0.001, help="per answer")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = args.file or Path(export("resnet20:sigma=0.5", out=f"{folder}/model.onnx", sigma=0.5)["file"])
        server = Server(file, args.sigma, args.n, args.alpha)
        for image in load_data("sample", "certify").select("first:3").images:
            print(server.answer(image))
        server.engine.close()
