"""Policies, what they cost, budgets, quantizers, and the files that hold quantized networks."""

from arquant.base.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "artifact": ["load_artifact", "save_artifact"],
        "budget": ["Budget"],
        "costs": ["Bops", "FileBytes", "LatencyTable", "WeightBytes"],
        "latency": ["read_table"],
        "policy": ["Bits", "Policy"],
        "quantized": ["QuantizedClassifier", "quantize"],
        "quantizers": ["register_quantizer"],
    },
)
