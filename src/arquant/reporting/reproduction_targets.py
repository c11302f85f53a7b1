"""The tables and figures of the paper: for each, what is run, which rows it has, and the paper's numbers with their place.

The numbers are those printed in arq.tex. Its figures are pictures without data: their points are known only where a table or
the text has them too.
"""

from collections.abc import Mapping
from typing import Any

from arquant.reporting.paper_numbers import AGENT, FLOAT, IMAGENET, MAIN, WITH_IRS, WITH_RS, radii
from arquant.reporting.reproduction import Job, Row, Target
from arquant.reporting.reproduction_scales import MAIN_BITS, MAIN_SIGMA, SIGMAS, Scale

NO_WEIGHTS = "Without weights trained with noise, a network has costs only, and a search nothing to choose by."
ATTACKS = (
    "Deflected: pixels are replaced by others near them, a defence without proof. An attack that fails proves nothing; the "
    "last rows hold for every attack. The paper's picture has no numbers."
)
PICTURE = "The pictures of the paper hold more points than its text and tables."
NOT_RUN = "Rows without a number of ours are not run at this scale."


def _benchmark(scale: Scale, sigma: float = MAIN_SIGMA, bits: int = MAIN_BITS, *, suffix: str = "", **more: Any) -> Job:
    """Return methods side by side on ResNet-20; each is a part."""
    options = {
        "model": f"resnet20:sigma={sigma:g}", "data": scale.data, "sigma": sigma, "budget": f"bops@paper<={bits}bit",
        "seeds": scale.seeds, **scale.benchmark, **more,
    }  # fmt: skip
    return Job(f"resnet20-{sigma:g}-{bits}bit{suffix}", "benchmark", options)


def _on_weights(scale: Scale, network: str, sigma: float, bits: int, *, imagenet: bool) -> Job | None:
    """Return the same on the user's weights of another network; None without any."""
    model, data = scale.trained(network, sigma), scale.imagenet if imagenet else scale.data
    if model is None or data is None:
        return None
    preset = {"preset": "paper-imagenet"} if imagenet and "preset" in scale.benchmark else {}
    job = _benchmark(scale, sigma, bits, model=model, data=data, **preset)
    return Job(f"{network}-{sigma:g}-{bits}bit", "benchmark", job.options)


PAPERS = (AGENT, "arq", "haq", "limpq", "nipq", "hawq", "pact")
NAMES = {AGENT: "ARQ", "arq": "(our arq)", **{name: name.upper() for name in ("haq", "limpq", "nipq", "hawq", "pact")}}
PARTS = {"FP 32": "float", **{label: method for method, label in NAMES.items()}}
VARIANTS: dict[str, dict[str, Any]] = {
    "arq-paper-acc": {"reward": "acc"},
    "arq-paper-acc@0.5": {"reward": "acc@0.5"},
    "arq-paper-acr+acc": {"reward": "acr+acc"},
    "arq-paper-rs": {"reward": "acr"},
    "arq-paper-lr-1e-3": {"strategy_options": {"actor_lr": 1e-3}},
    "arq-paper-lr-1e-5": {"strategy_options": {"actor_lr": 1e-5}},
}
"""what the ablations change in the method of the paper"""


def _irs(values: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(("acr", "accuracy", "gbops"), values, strict=True))


def _front_paper(sigma: float, bits: int, method: str) -> Mapping[str, float]:
    found: Mapping[str, float] = {}
    if (sigma, bits) == (MAIN_SIGMA, MAIN_BITS):
        found = MAIN.get(method, {})
    elif bits == MAIN_BITS and method == AGENT:
        found = _irs(WITH_IRS[sigma])
    if not found:
        return {}
    return {**found, "percent": 100 * found["gbops"] / 42.04, "d0": found["accuracy"] - FLOAT[sigma]["accuracy"]}


def _cost_rows(scale: Scale) -> list[Row]:
    rows = []
    for sigma in SIGMAS:
        jobs = {bits: _benchmark(scale, sigma, bits) for bits in (3, 4, 5) if (sigma, bits) in scale.front}
        why = "" if jobs else NOT_RUN
        rows.append(
            Row(
                f"σ {sigma:g}: FP 32",
                FLOAT[sigma],
                next(iter(jobs.values()), None),
                "float",
                "FP 32",
                why,
                f"σ {sigma:g}",
            )
        )
        for bits in (3, 4, 5):
            numbers = {method: _front_paper(sigma, bits, method) for method in PAPERS}
            rows += [
                Row(
                    f"σ {sigma:g}, {bits} bits: {NAMES[method]}",
                    paper,
                    jobs.get(bits),
                    method,
                    NAMES[method],
                    PICTURE,
                    f"σ {sigma:g}",
                )
                for method, paper in numbers.items()
                if paper or bits in jobs
            ]
    return rows


UNIFORM = ("PACT", "HAWQ")
"""whose rows are the uniform policy: of widths 4 and 8, HAWQ-V3's, only 4 fits the budget"""


def _imagenet_rows(scale: Scale) -> list[Row]:
    rows = []
    for network, methods in IMAGENET.items():
        for method, numbers in methods.items():
            for sigma, four in zip(SIGMAS, numbers, strict=True):
                paper = dict(zip(("acr", "accuracy", "gbops", "mib"), four, strict=True))
                job = _on_weights(scale, network, sigma, 4, imagenet=True)
                rows.append(_network_row(f"{network}, σ {sigma:g}: {method}", method, paper, job, network))
    return rows


def _network_row(
    label: str, method: str, paper: Mapping[str, float], job: Job | None, network: str, bits: int = 4
) -> Row:
    """Return a row of a network: of its benchmark, else the cost of a policy that needs no search."""
    if job is not None:
        return Row(label, paper, job, PARTS[method])
    part = {"FP 32": "float", **dict.fromkeys(UNIFORM, str(bits))}.get(method)
    costs = Job(f"{network}-costs", "costs", {"model": network})
    return Row(label, paper, None if part is None else costs, part or "", why=NO_WEIGHTS)


def _vit_rows(scale: Scale) -> list[Row]:
    job = _on_weights(scale, "vit_tiny", MAIN_SIGMA, 4, imagenet=False)
    numbers = {
        "FP 32": (373.87, 0.406, (53.8, 42.6, 32.2, 24.6, 17.2, 10.0, 6.4, 2.8)),
        "ARQ": (25.45, 0.388, (51.4, 40.2, 32.8, 23.0, 17.0, 9.6, 5.0, 2.8)),
        "PACT": (25.45, 0.369, (49.4, 39.4, 29.4, 21.4, 15.0, 8.6, 4.6, 2.6)),
    }
    return [
        _network_row(method, method, {"gbops": gbops, "acr": acr, **radii(*shares)}, job, "vit_tiny")
        for method, (gbops, acr, shares) in numbers.items()
    ]


def _latency_rows(scale: Scale) -> list[Row]:
    numbers = {
        "ARQ": (4, (0.774, 17.12, 4.60)), "HAQ": (4, (0.683, 17.19, 4.61)), "4-bit PACT": (4, (0.757, 16.55, 4.62)),
        "5-bit PACT": (5, (0.776, 21.55, 7.21)),
    }  # fmt: skip
    return [
        _network_row(
            label, label.split()[-1], dict(zip(("acr", "ms", "gbops"), three, strict=True)),
            _on_weights(scale, "mobilenetv2", 1.0, bits, imagenet=True), "mobilenetv2", bits,
        )
        for label, (bits, three) in numbers.items()
    ]  # fmt: skip


def _icr_rows(scale: Scale) -> list[Row]:
    job = _benchmark(scale, bits=8)
    theirs = {
        AGENT: (2.588, (0.2, 0.4, 0.2, 0.4, 0.6, 1.0, 0.6)),
        "icr": (2.596, (-2.0, -2.0, -4.0, -3.0, 0.0, 0.0, -1.0)),
    }
    deltas = {
        method: {"gbops": gbops, **{f"d{0.25 * place:g}": value for place, value in enumerate(values)}}
        for method, (gbops, values) in theirs.items()
    }
    names = {AGENT: "ARQ", "icr": "ICR"}
    return [Row(names[method], paper, job, method) for method, paper in deltas.items()]


def _atmc_rows(scale: Scale) -> list[Row]:
    paper = {"ARQ": (0.432, 0.543, 0.555), "ATMC": (0.031, 0.072, 0.159)}
    rows = []
    for place, sigma in enumerate(SIGMAS):
        there = sigma in scale.sigmas
        arq = _benchmark(scale, sigma, 8) if there else None
        trained = Job(
            "resnet20-atmc", "adversarial", {"data": scale.data, "recipe": scale.final, "certify": scale.certify}
        )
        rows += [
            Row(f"σ {sigma:g}: ARQ", {"acr": paper["ARQ"][place]}, arq, AGENT, why="" if there else NOT_RUN),
            Row(f"σ {sigma:g}: ATMC", {"acr": paper["ATMC"][place]}, trained if there else None, f"{sigma:g}"),
            Row(f"σ {sigma:g}: (one answer for all)", {}, arq, "constant"),
        ]
    return rows


def _search_time_rows(scale: Scale) -> list[Row]:
    columns = (AGENT, "haq", "limpq", "nipq")
    hours = {
        "ResNet-50": (71.89, 42.65, 23.74, 121.39, 32.86), "MobileNetV2": (67.83, 29.37, 14.35, 78.31, 17.61),
        "ResNet-20": (2.83, 2.31, 0.09, 0.717, 0.47),
    }  # fmt: skip
    rows = []
    for network, numbers in hours.items():
        job = _benchmark(scale) if network == "ResNet-20" else None
        for method, time in zip(columns, numbers[:-1], strict=True):
            paper = {"hours": time, "final_hours": numbers[-1]}
            rows.append(Row(f"{network}: {NAMES[method]}", paper, job, method, why="" if job else NO_WEIGHTS))
    return rows


def _time_budget_rows(scale: Scale) -> list[Row]:
    """Return ARQ with less and less time, as shares of its candidates."""
    shorter = {
        2.18: {"acr": 0.528, "gbops": 0.354, **radii(66.8, 54.4, 42.8, 32.4, 22.0, 14.0, 7.2, 4.2)},
        0.25: {"acr": 0.521, "gbops": 0.354, **radii(66.2, 53.8, 43.0, 32.0, 21.8, 13.8, 7.2, 4.0)},
    }
    rows = [Row("ARQ, 2.83 h", {"hours": 2.83, **MAIN[AGENT]}, _benchmark(scale), AGENT)]
    for hours, numbers in shorter.items():
        trials = max(1, round(scale.trials * hours / 2.83))
        job = _benchmark(scale, suffix=f"-{hours:g}h", trials=trials)
        rows.append(Row(f"ARQ, {hours:g} h: {trials} candidates", {"hours": hours, **numbers}, job, AGENT))
    return [
        *rows,
        Row("HAQ", {"hours": 2.31, **MAIN["haq"]}, _benchmark(scale), "haq"),
        Row("LIMPQ", {"hours": 0.09, **MAIN["limpq"]}, _benchmark(scale), "limpq"),
    ]


def _reward_rows(scale: Scale) -> list[Row]:
    job = _benchmark(scale)
    numbers: dict[str, tuple[str, dict[str, float]]] = {
        "Acc": ("arq-paper-acc", {"gbops": 0.360, "acr": 0.512, **radii(67.0, 53.2, 42.6, 31.4, 20.4, 13.2, 6.8, 3.6)}),
        "Acc at 0.5": (
            "arq-paper-acc@0.5", {"gbops": 0.362, "acr": 0.525, **radii(65.8, 55.6, 43.8, 31.8, 21.6, 13.0, 7.4, 4.0)},
        ),
        "ACR+Acc": (
            "arq-paper-acr+acc", {"gbops": 0.362, "acr": 0.526, **radii(67.2, 54.2, 43.8, 31.6, 21.2, 13.6, 7.2, 4.2)},
        ),
    }  # fmt: skip
    return [
        Row("FP 32", FLOAT[MAIN_SIGMA], job, "float"),
        Row("ARQ", MAIN[AGENT], job, AGENT),
        Row("Val (HAQ)", MAIN["haq"], job, "haq"),
        *(Row(label, paper, job, method) for label, (method, paper) in numbers.items()),
    ]


def _irs_rows(scale: Scale) -> list[Row]:
    rows = []
    for sigma in SIGMAS:
        job = _benchmark(scale, sigma) if sigma in scale.sigmas else None
        rows += [
            Row(f"σ {sigma:g}: FP 32", FLOAT[sigma], job, "float", why="" if job else NOT_RUN),
            Row(f"σ {sigma:g}: ARQ, IRS", _irs(WITH_IRS[sigma]), job, AGENT),
            Row(f"σ {sigma:g}: ARQ, RS", _irs(WITH_RS[sigma]), job, "arq-paper-rs"),
        ]
    return rows


def _policy_rows(scale: Scale) -> list[Row]:
    rows = []
    for sigma in SIGMAS:
        job = _benchmark(scale, sigma) if sigma in scale.sigmas else None
        rows.append(Row(f"ARQ, σ {sigma:g}", {}, job, AGENT, why="" if job else NOT_RUN))
    return rows


def _length_rows(scale: Scale) -> list[Row]:
    longer = {
        AGENT: {"acr": 0.545, "accuracy": 67.6}, "limpq": {"acr": 0.535, "accuracy": 67.0},
        "haq": {"acr": 0.534, "accuracy": 66.8}, "pact": {"acr": 0.524, "accuracy": 66.6},
    }  # fmt: skip
    main = _benchmark(scale)
    options = {"times": scale.long, "recipe": scale.final, "certify": scale.certify, "data": scale.data}
    job = Job(f"{main.folder}-longer", "longer", options, after=main)
    rows = [Row("FP 32, usual length", {}, main, "float"), Row(f"FP 32, {scale.long} times as long", {}, job, "float")]
    for method, numbers in longer.items():
        cost = {"gbops": 0.365 if method == "haq" else MAIN[method]["gbops"]}
        short = {name: MAIN[method][name] for name in ("acr", "accuracy")}
        rows += [
            Row(f"{NAMES[method]}, usual length", {**short, **cost}, main, method),
            Row(f"{NAMES[method]}, {scale.long} times as long", {**numbers, **cost}, job, method),
        ]
    return rows


def _learning_rate_rows(scale: Scale) -> list[Row]:
    job = _benchmark(scale)
    faster = {"acr": 0.524, "gbops": 0.355, **radii(66.8, 54.0, 42.6, 32.2, 21.8, 13.8, 7.2, 4.0)}
    slower = {"acr": 0.521, "gbops": 0.354, **radii(66.6, 53.6, 42.8, 31.8, 21.8, 13.6, 7.2, 3.8)}
    return [
        Row("1e-3", faster, job, "arq-paper-lr-1e-3"),
        Row("1e-4", MAIN[AGENT], job, AGENT),
        Row("1e-5", slower, job, "arq-paper-lr-1e-5"),
    ]


def _empirical_rows(scale: Scale) -> list[Row]:
    options = {
        "model": f"resnet20:sigma={MAIN_SIGMA:g}", "data": scale.data, "sigma": MAIN_SIGMA, "epsilon": (0.25, 0.5, 1.0),
        "certify": {**scale.certify, "images": scale.attack["images"]}, **scale.attack,
    }  # fmt: skip
    job = Job("resnet20-attacks", "attacks", options)
    kinds = {
        "fgsm": ("FGSM", "plain network"), "fgsm-defended": ("FGSM, deflected", "plain network"),
        "pgd": ("PGD", "plain network"), "pgd-defended": ("PGD, deflected", "plain network"),
        "smoothed": ("PGD, smoothed", "smoothed network"), "certified": ("proved", "any attack on the smoothed network"),
    }  # fmt: skip
    return [
        Row(f"{name}: {network}, ε {epsilon:g}", {}, job, f"{kind} {epsilon:g}", name, ATTACKS)
        for kind, (name, network) in kinds.items()
        for epsilon in options["epsilon"]
    ]


_CURVE = tuple(f"r{radius:g}" for radius in (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75))
_AGENT = (
    "ARQ",
    "one method",
    "arq-paper follows it to the letter; our arq is another method and has no number of the paper",
)
_RESNET50 = ("network", "ResNet-50 on ImageNet", "ResNet-20 on CIFAR-10, whose weights are shipped")
TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            "bops", "ACR and accuracy against BOPs", "Figure 1 (fig:1)",
            ("acr", "accuracy", "percent", "gbops"), _cost_rows, (_AGENT,), (("percent", "acr"), ("percent", "d0")),
        ),
        Target(
            "size", "ACR and accuracy against the size of the weights", "Figure 2 (fig:2)",
            ("acr", "accuracy", "mib"), _cost_rows, (_AGENT,), (("mib", "acr"), ("mib", "d0")),
        ),
        Target(
            "imagenet", "ImageNet", "tablei", ("acr", "accuracy", "gbops", "mib"), _imagenet_rows,
            (("weights", "trained with noise on ImageNet", "none: costs only"),),
        ),
        Target(
            "vit", "ViT-tiny", "table_vit", ("gbops", "acr", "accuracy", *_CURVE), _vit_rows,
            (("weights", "trained with noise on CIFAR-10", "none: costs only"),),
        ),
        Target(
            "latency", "Latency of MobileNetV2, 16 images", "table_latency", ("acr", "ms", "gbops"), _latency_rows,
            (("latency per layer", "HAQ's table of BISMO", "a roofline of it, within 2 % of that table in total; --table"),),
        ),
        Target(
            "icr", "ICR: certified accuracy minus that of the float network", "table_ICR",
            ("gbops", *(f"d{radius:g}" for radius in (0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5))), _icr_rows,
            (
                ("ICR's row", "quoted from ICR's own paper", "run here: docs/methods/icr.md"),
                ("ICR's weights", "affine, as far as is known", "symmetric, a scale per layer, as for all methods"),
                _AGENT,
            ),
        ),
        Target(
            "atmc", "ATMC: certified robustness of a network that saw no noise", "table_empirical", ("acr", "accuracy"),
            _atmc_rows,
            (
                ("ATMC", "sparse factors, k-means values", "uniform 8 bits, nothing pruned: docs/methods/atmc.md"),
                (
                    "ATMC's training", "not stated (750 epochs in four stages, as released)",
                    "from random weights, as long as a final fine-tuning (at scale paper 200 epochs); then a fine-tuning",
                ),
                ("ARQ's bits", "not stated", "within 8 bits"), _AGENT,
            ),
        ),
        Target(
            "search-time", "Time of the search", "tablet", ("hours", "steps", "final_hours"), _search_time_rows,
            (("machine", "48 cores, two RTX A5000", "this one"), _AGENT),
        ),
        Target(
            "time-budget", "ARQ with less time", "table_time", ("hours", "gbops", "acr", "accuracy", *_CURVE),
            _time_budget_rows, (("less time", "hours", "the same share of the candidates"), _AGENT),
        ),
        Target(
            "reward", "Rewards", "table ablation", ("gbops", "acr", "accuracy", *_CURVE), _reward_rows, (_AGENT,),
        ),
        Target("irs", "Incremental certificates as a reward", "table_IRS", ("acr", "accuracy", "gbops"), _irs_rows, (_AGENT,)),
        Target(
            "policies", "Bits per layer", "Figure fig:b", ("bits", "gbops", "acr"), _policy_rows, (_RESNET50, _AGENT),
        ),
        Target(
            "finetune-length", "Longer fine-tuning", "table_finetune", ("gbops", "acr", "accuracy"), _length_rows,
            (_AGENT,),
        ),
        Target(
            "actor-lr", "Learning rate of the actor", "table:actor_lr", ("gbops", "acr", "accuracy", *_CURVE),
            _learning_rate_rows, (_AGENT,),
        ),
        Target(
            "empirical", "Attacks, a defence without proof, and certificates", "Figure fig:robust",
            ("plain", "attacked"), _empirical_rows, (_RESNET50, ("distance", "not stated", "l2")), (("epsilon", "attacked"),),
        ),
    )
}  # fmt: skip
