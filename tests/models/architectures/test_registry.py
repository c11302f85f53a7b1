"""Our networks against their published counts and against torchvision's and timm's own modules."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import conv2d

from arquant.base.errors import InputError
from arquant.models.architectures.registry import ARCHITECTURES, build_architecture, canonical_name
from arquant.models.architectures.resnet_cifar import CifarResNet
from arquant.models.architectures.vit import Attention, VisionTransformer
from arquant.models.optional import import_timm, import_torchvision
from arquant.models.options import Options

DATA = Path(__file__).parents[4] / "shared" / "data"
WEIGHTS, IMAGENETTE = DATA / "weights" / "resnet50_v1_imagenet_fp16.safetensors", DATA / "imagenette224.tar"


def layers_of(module: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]


def count_macs(module: nn.Module, shape: tuple[int, ...]) -> tuple[list[int], int]:
    """Multiply-accumulates of one image: per conv/linear layer in order of execution, and of the attention products."""
    macs: list[int] = []
    attention: list[int] = []

    def on_layer(layer: nn.Module, _: tuple[Tensor, ...], out: Tensor) -> None:
        rows = layer.weight.shape[0]
        macs.append(out.numel() // rows * layer.weight.numel())

    def on_attention(_: nn.Module, inputs: tuple[Tensor, ...], __: Tensor) -> None:
        _, tokens, dim = inputs[0].shape
        attention.append(2 * tokens * tokens * dim)

    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(on_layer)
        elif isinstance(layer, Attention):
            layer.register_forward_hook(on_attention)
    with torch.no_grad():
        module.eval()(torch.zeros(1, *shape))
    return macs, sum(attention)


@pytest.mark.parametrize(
    ("name", "layers", "macs", "first", "last", "weights"),
    [
        ("resnet20", 22, 40_813_184, 442_368, 640, 270_896),
        ("resnet50", 54, 4_089_184_256, 118_013_952, 2_048_000, 25_502_912),
        ("resnet50_v1", 54, 3_857_973_248, 118_013_952, 2_048_000, 25_502_912),
        ("mobilenetv2", 53, 300_774_272, 10_838_016, 1_280_000, 3_469_760),
        ("vit_tiny", 50, 365_107_584, 589_824, 1_920, 5_319_552),
    ],
)
def test_counts(name: str, layers: int, macs: int, first: int, last: int, weights: int) -> None:
    classifier = build_architecture(name, Options())
    assert len(layers_of(classifier.module)) == layers
    assert sum(layer.weight.numel() for layer in layers_of(classifier.module)) == weights
    per_layer, attention = count_macs(classifier.module, classifier.input_shape)
    assert sum(per_layer) + attention == macs
    assert (per_layer[0], per_layer[-1]) == (first, last)
    assert len(per_layer) == layers


def test_vit_splits_its_macs_as_published() -> None:
    per_layer, attention = count_macs(VisionTransformer(), (3, 32, 32))
    assert sum(per_layer[1:-1]) == 345_047_040
    assert attention == 19_468_800


def randomise(module: nn.Module, seed: int) -> None:
    """Random weights and statistics of a size that keeps activations alive, so that every parameter matters."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.state_dict().items():
        if name.endswith("running_var"):
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
        elif value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator)
            scale = value.std() if value.ndim > 1 and value.std() > 1e-3 else 0.1
            value.add_(noise * scale)


def theirs(name: str) -> nn.Module:
    torchvision, timm = import_torchvision(), import_timm()
    builders: dict[str, Callable[[], nn.Module]] = {
        "resnet50": lambda: torchvision.models.resnet50(weights=None),
        "resnet50_v1": lambda: stride_first(torchvision.models.resnet50(weights=None)),
        "mobilenetv2": lambda: torchvision.models.mobilenet_v2(weights=None),
        "vit_tiny": lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, num_classes=10),
    }
    return builders[name]()


def stride_first(module: nn.Module) -> nn.Module:
    """Torchvision's ResNet-50 with the strides of its blocks moved from the 3x3 to the first 1x1 convolution."""
    for block in module.modules():
        if hasattr(block, "conv3"):
            block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return module


@pytest.mark.parametrize("name", ["resnet50", "resnet50_v1", "mobilenetv2", "vit_tiny"])
def test_equals_the_public_module(name: str) -> None:
    classifier = build_architecture(name, Options())
    ours, other = classifier.module.eval(), theirs(name).eval()
    randomise(ours, seed=1)
    mine, public = ours.state_dict(), other.state_dict()
    assert {key: value.shape for key, value in mine.items()} == {key: value.shape for key, value in public.items()}
    other.load_state_dict(mine)
    image = torch.randn(1, *classifier.input_shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        logits, expected = ours(image), other(image)
    assert expected.std() > 1e-3
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


SYNSETS = {
    "n01440764": 0, "n02102040": 217, "n02979186": 482, "n03000684": 491, "n03028079": 497,
    "n03394916": 566, "n03417042": 569, "n03425413": 571, "n03445777": 574, "n03888257": 701,
}  # fmt: skip
"""the classes of Imagenette and their numbers in ImageNet"""


def validation_images(per_class: int) -> tuple[Tensor, Tensor]:
    """The first test images of each Imagenette class as levels (N, 3, 224, 224), and their ImageNet labels."""
    with tarfile.open(IMAGENETTE) as archive:
        names = sorted(name for name in archive.getnames() if "/test/" in name and name.endswith(".JPEG"))
        chosen = [name for synset in SYNSETS for name in [n for n in names if f"/{synset}/" in n][:per_class]]
        opened = [Image.open(archive.extractfile(name)).convert("RGB") for name in chosen]  # type: ignore[arg-type]
        levels = torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in opened])
    return levels, torch.tensor([SYNSETS[name.split("/")[-2]] for name in chosen])


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.skipif(
    not (WEIGHTS.exists() and IMAGENETTE.exists()), reason="the ImageNet weights and images are not here"
)
def test_weights_of_v1_are_right_more_often_as_v1() -> None:
    state = {key: value.float() for key, value in load_file(WEIGHTS).items()}
    levels, labels = validation_images(per_class=4)
    mean = torch.tensor([123.68, 116.779, 103.939])
    sums = conv2d(levels - mean.reshape(1, 3, 1, 1), state["conv1.weight"], stride=2, padding=3)
    variance = state["bn1.running_var"]  # one of them is beyond float16, in which the file keeps it: infinite
    state["bn1.running_var"] = torch.where(variance.isfinite(), variance, sums.var((0, 2, 3)))
    right = {}
    for name in ("resnet50", "resnet50_v1"):
        classifier = build_architecture(name, Options(mean=tuple((mean / 255).tolist()), std=(1 / 255,) * 3)).eval()
        classifier.module.load_state_dict(state, strict=False)
        with torch.no_grad():
            logits = torch.cat([classifier(part / 255) for part in levels.split(8)])
        right[name] = float((logits.argmax(1) == labels).float().mean())
    assert right["resnet50_v1"] > right["resnet50"] > 0.5
    assert right["resnet50_v1"] >= 0.7


def test_random_weights_are_always_the_same_and_leave_the_generator_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = build_architecture("resnet20", Options()).fingerprint()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    assert build_architecture("resnet20", Options()).fingerprint() == first


@pytest.mark.parametrize(("name", "depth"), [("cifar_resnet20", 20), ("resnet32", 32), ("cifar_resnet110", 110)])
def test_cifar_depths(name: str, depth: int) -> None:
    module = build_architecture(name, Options(num_classes=100)).module
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3)]
    assert len(convolutions) == depth - 1
    assert module.fc.out_features == 100


def test_canonical_name() -> None:
    assert canonical_name("cifar_resnet110") == "resnet110"
    assert canonical_name("mobilenet_v2") == "mobilenetv2"
    assert canonical_name("resnet19") is None
    assert all(canonical_name(name) == name for name in ARCHITECTURES)


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(InputError, match=r"6n \+ 2"):
        CifarResNet(21)
    with pytest.raises(InputError, match="square"):
        build_architecture("vit_tiny", Options(input_shape=(3, 32, 64)))
    with pytest.raises(InputError, match="multiple of the patch size 4, got 30"):
        build_architecture("vit_tiny", Options(input_shape=(3, 30, 30)))
    with pytest.raises(InputError, match="multiple of heads"):
        VisionTransformer(dim=10, heads=3)


def test_vit_takes_other_image_sizes() -> None:
    classifier = build_architecture("vit_tiny", Options(input_shape=(3, 16, 16), num_classes=4))
    assert classifier(torch.zeros(2, 3, 16, 16)).shape == (2, 4)


def test_defaults_follow_the_bounds() -> None:
    unit = build_architecture("resnet20", Options()).eval()
    bytes_ = build_architecture("resnet20", Options(bounds=(0.0, 255.0))).eval()
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(unit(image), bytes_(255 * image), rtol=1e-4, atol=1e-4)
