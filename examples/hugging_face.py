"""A Hugging Face AutoModelForImageClassification: its processor's mean, std and size go inside, its labels become names.

    python examples/hugging_face.py photo.jpg --checkpoint facebook/deit-tiny-patch16-224      downloads the checkpoint
    python examples/hugging_face.py photo.jpg                                                  a small one with random weights

Needs `pip install transformers torchvision`; arquant itself needs neither. A checkpoint that has not seen noise bears little of
it. To train it with noise, type in the folder of this file:

    HF_CHECKPOINT=NAME arquant train hugging_face:build folder:photos --sigma 0.25 --out RUN
"""

import argparse
import os

import arquant
from arquant import ABSTAIN, Classifier, find_layers
from arquant.models.optional import import_torchvision

SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}


def build(checkpoint: str | None = os.environ.get("HF_CHECKPOINT")) -> Classifier:
    """Return a checkpoint, or a small network with random weights, as a classifier in pixel space."""
    import_torchvision()  # transformers would import it, but not beside a CPU build of torch
    from transformers import AutoImageProcessor, AutoModelForImageClassification, ViTConfig, ViTImageProcessor

    if checkpoint:
        network = AutoModelForImageClassification.from_pretrained(checkpoint)
        processor = AutoImageProcessor.from_pretrained(checkpoint)
    else:  # where nothing can be downloaded
        network = AutoModelForImageClassification.from_config(ViTConfig(**SMALL, image_size=32, patch_size=8))
        processor = ViTImageProcessor(size={"height": 32, "width": 32})
    size = dict(getattr(processor, "crop_size", None) or processor.size)
    height, width = (size.get(side) or size["shortest_edge"] for side in ("height", "width"))
    found = Classifier(
        network.eval(), num_classes=network.config.num_labels, input_shape=(3, height, width),
        mean=processor.image_mean, std=processor.image_std, name=checkpoint or "small ViT",
    )  # fmt: skip
    found.class_names = tuple(network.config.id2label[label] for label in range(found.num_classes))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", nargs="+", help="files and folders of pictures")
    parser.add_argument("--checkpoint", help="a name of the Hugging Face hub, or a folder")
    parser.add_argument("--sigma", type=float, default=0.05, help="of the noise; 1.0 is black to white")
    parser.add_argument("--n", type=int, default=500, help="noisy votes per picture")
    args = parser.parse_args()
    classifier = build(args.checkpoint)
    print(f"{classifier.name}: {len(find_layers(classifier))} layers can be quantized, input {classifier.input_shape}")
    for one in arquant.predict(classifier, args.pictures, sigma=args.sigma, n=args.n):
        said = "no answer" if one.predict == ABSTAIN else f"{one.class_name}, within {one.radius:.3f}"
        print(f"{one.file}: {said} ({one.votes} of {one.n} votes)")
