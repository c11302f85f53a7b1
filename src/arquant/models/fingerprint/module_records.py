"""Which attributes of a module say nothing about the function that it computes."""

from torch import nn

from arquant.models.fingerprint.code_origin import origin

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
"""where torch keeps the hooks of a module that can change what it computes"""
MODULE_INTERNALS = frozenset((*vars(nn.Module()), "_compiled_call_impl", "_c", "_concrete_type", "_initializing"))
"""what torch keeps on every module; hooks and tensors among it are spelled one by one"""
_LEFT_OUT = {
    ("torch", "OptimizedModule"): (
        "dynamo_ctx", "forward", "_forward", "_super_module_initialized", "_torchdynamo_orig_callable",
        "_torchdynamo_wrapper_id", "get_compiler_config",
    ),
    ("torch", "ParameterDict"): ("_keys",),
    ("torch", "RNNBase"): ("_flat_weight_refs", "_flat_weights", "_flat_weights_names", "_all_weights"),
    ("torch", "GraphModule"): ("_graph", "_code", "meta"),
    ("torch", "ScriptModule"): ("forward",),
    ("ours", "Classifier"): (
        "num_classes", "input_shape", "bounds", "name", "arch", "sigma", "made_by", "seen", "class_names", "fit",
        "layers", "clip", "per_channel", "learn", "statistics", "_quantizers", "_weight_clips", "memory_format", "path",
        "facts", "function_facts",
    ),
}  # fmt: skip
_WEIGHTS_ORIGIN = ("pretrained_cfg", "default_cfg")
"""where the public weights of timm's networks come from, which differs when a file has others"""


def left_out(module: nn.Module) -> frozenset[str]:
    """Name the attributes of a module that are never spelled: torch's own records, and what does not change the function."""
    names = set(MODULE_INTERNALS)
    for above in type(module).__mro__:
        names.update(_LEFT_OUT.get((origin(above.__module__), above.__name__), ()))
        if above.__module__.startswith("timm."):
            names.update(_WEIGHTS_ORIGIN)
    return frozenset(names)
