import pytest
from torch import nn

from arquant.base.errors import InputError
from arquant.loading.models import load_model
from arquant.models.architectures import registry
from arquant.models.architectures.registry import register_architecture


@pytest.fixture(autouse=True)
def _registry_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ARCHITECTURES", dict(registry.ARCHITECTURES))


def test_a_registered_network_is_a_model_with_its_own_shape_and_classes() -> None:
    @register_architecture("slate", num_classes=3, input_shape=(1, 4, 6), mean=(0.5,), std=(0.25,))
    def slate(num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
        channels, height, width = input_shape
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, num_classes))

    model = load_model("slate", weights_required=False)
    assert (model.num_classes, model.input_shape) == (3, (1, 4, 6))
    assert load_model("slate", num_classes=7, weights_required=False).num_classes == 7
    assert model.fingerprint() == load_model("slate", weights_required=False).fingerprint()


@pytest.mark.parametrize("name", ["resnet20", "cifar_resnet20"])
def test_a_name_of_ours_or_its_alias_is_not_given_away(name: str) -> None:
    with pytest.raises(InputError, match="already registered"):
        register_architecture(name)(lambda classes, shape: nn.Identity())
