"""Our networks against their published counts and against torchvision's and timm's own modules."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from arquant.base.errors import InputError
from arquant.models.architectures.registry import ARCHITECTURES, build_architecture, canonical_name
from arquant.models.architectures.resnet_cifar import CifarResNet
from arquant.models.architectures.vit import Attention, VisionTransformer
from arquant.models.optional import import_timm, import_torchvision
from arquant.models.options import Options


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
        "mobilenetv2": lambda: torchvision.models.mobilenet_v2(weights=None),
        "vit_tiny": lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, num_classes=10),
    }
    return builders[name]()


@pytest.mark.parametrize("name", ["resnet50", "mobilenetv2", "vit_tiny"])
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
