"""The optimizers of a recipe: which parameters learn at which rate and with which weight decay, and their state as tensors."""

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor, nn

from arquant.models.classifier import Classifier
from arquant.quantization.quantizers import learned_sizes
from arquant.training.recipe import Recipe

_BETA2 = 0.999
_KERNELS = (nn.Linear, nn.modules.conv._ConvNd)


def make_optimizer(model: Classifier, recipe: Recipe, head: Collection[str] = ()) -> torch.optim.Optimizer:
    """Return the optimizer of a recipe over the parameters that require a gradient.

    Each group has a `factor` by which the learning rate of a step is multiplied.

    Args:
        head: names of the parameters whose learning rate is not `recipe.backbone_lr` times; by default the last layer's.
    """
    groups = _groups(model, recipe, head)
    if recipe.optimizer == "adamw":
        betas = (recipe.momentum, _BETA2)
        fused = model.mean.device.type in ("cpu", "cuda")
        return torch.optim.AdamW(groups, lr=recipe.lr, betas=betas, fused=fused)
    nesterov = recipe.nesterov and recipe.momentum > 0  # without momentum both are the same
    return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, nesterov=nesterov)


def _groups(model: Classifier, recipe: Recipe, head: Collection[str]) -> list[dict[str, object]]:
    """Return weights, then the quantizers' clips; weights are divided only where a recipe tells them apart."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    sizes = {id(size) for size in learned_sizes(model)}
    head = head or last_layer(model)

    def group(factor: float, decay: float, names: Iterator[str]) -> dict[str, object]:
        return {"params": [trained[name] for name in names], "factor": factor, "weight_decay": decay}

    weights = [name for name, parameter in trained.items() if id(parameter) not in sizes]
    clips = (name for name, parameter in trained.items() if id(parameter) in sizes)
    spares = recipe.optimizer == "adamw"
    places = (True, False) if recipe.backbone_lr != 1 else (None,)
    found = []
    for in_head in places:
        here = [name for name in weights if in_head is None or (name in head) == in_head]
        factor = recipe.backbone_lr if in_head is False else 1.0
        decayed = {name for name in here if not spares or _decays(name, trained[name])}
        found.append(group(factor, recipe.weight_decay, (name for name in here if name in decayed)))
        found.append(group(factor, 0.0, (name for name in here if name not in decayed)))
    return [*found, group(recipe.clip_lr, 0.0 if spares else recipe.weight_decay, clips)]


def _decays(name: str, parameter: Tensor) -> bool:
    """Tell matrices and kernels, which are called weights everywhere, from norms, biases, tokens and embeddings."""
    return parameter.ndim >= 2 and name.endswith("weight")


def last_layer(model: nn.Module) -> set[str]:
    """Return the names of the parameters of the linear layer or convolution that was registered last."""
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, _KERNELS)]
    if not layers:
        return set()
    name, layer = layers[-1]
    return {f"{name}.{own}" for own, _ in layer.named_parameters(recurse=False)}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return what an optimizer remembers: `<parameter>` for SGD's momentum, `<parameter>.<name>` for all else."""
    found = {}
    for index, parameter in enumerate(_parameters(optimizer)):
        for name, value in optimizer.state[parameter].items():
            if value is not None:
                found[str(index) if name == "momentum_buffer" else f"{index}.{name}"] = value
    return found


def restore_optimizer_(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give back what `optimizer_tensors` returned, in the memory layout of the parameters."""
    parameters = _parameters(optimizer)
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        parameter = parameters[int(index)]
        if name == "step":  # PyTorch keeps this count beside the parameter only where one kernel updates all
            state = value.to(parameter.device) if optimizer.defaults["fused"] else value
        else:
            state = torch.empty_like(parameter, requires_grad=False).copy_(value)
        optimizer.state[parameter][name or "momentum_buffer"] = state


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
