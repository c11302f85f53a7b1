"""The settings of a search: defaults for two cores, the paper's presets, and what a flag changes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from arquant.base.errors import InputError
from arquant.base.identity import differences
from arquant.base.journal import read_journal
from arquant.searching.method import BUILT_IN
from arquant.searching.options import SECOND_LOOKS, reward_of, search_options

RESULTS = Path(__file__).parents[2] / "results" / "search"


def test_defaults_are_those_for_two_cores():
    options = search_options(0.5)
    assert (options.search_n, options.reference_n, options.shortlist, options.n) == (200, 2000, 1, 10_000)
    assert (options.recipe.steps, options.recipe.batch, options.recipe.lr) == (60, 256, 0.05)
    assert (options.final_recipe.epochs, options.final_recipe.steps) == (10, 0)
    assert options.strategy == "arq"
    assert options.recipe.sigma == options.final_recipe.sigma == 0.5


def test_paper_cifar_is_what_the_paper_states():
    options = search_options(0.5, preset="paper-cifar")
    assert (options.search_images, options.reference_n, options.search_n, options.n) == (500, 10_000, 500, 1_000_000)
    assert (options.alpha, options.alpha_zeta, options.gamma) == (0.001, 0.001, 0.99)
    short, full = options.recipe, options.final_recipe
    assert (short.epochs, short.lr, short.schedule, short.momentum, short.weight_decay) == (
        1,
        0.01,
        "constant",
        0.9,
        1e-4,
    )
    assert (full.epochs, full.lr, full.schedule, full.milestones, full.batch) == (10, 0.01, "step", (5.0,), 256)
    assert (options.strategy, options.clip, options.shortlist) == ("arq-paper", "kl", 1)


def test_paper_imagenet_is_what_the_paper_states():
    options = search_options(0.25, preset="paper-imagenet")
    assert (options.alpha, options.alpha_zeta, options.gamma) == (0.01, 0.01, 0.995)
    short, full = options.recipe, options.final_recipe
    assert (short.images, short.lr, short.batch) == (60_000, 0.001, 128)
    assert (full.schedule, full.epochs, full.batch) == ("plateau", 10, 128)
    assert full.images == 0, "only candidates are fine-tuned on a subset"


def test_flags_override_presets_and_reach_the_right_recipe():
    options = search_options(
        0.5, preset="paper-cifar", search_n=100, epochs=0.5, final_lr=0.02, train_batch=64, distill=0.5, seed=7, n=None
    )
    assert (options.search_n, options.n) == (100, 1_000_000)
    assert (options.recipe.epochs, options.recipe.lr, options.recipe.batch, options.recipe.distill) == (
        0.5,
        0.01,
        64,
        0.5,
    )
    assert (options.final_recipe.epochs, options.final_recipe.lr, options.final_recipe.batch) == (10, 0.02, 64)
    assert options.seed == options.recipe.seed == options.final_recipe.seed == 7


def test_epochs_replace_steps_and_steps_replace_epochs():
    assert search_options(0.5, epochs=2).recipe.total_steps(100) == 200
    assert search_options(0.5, final_steps=7).final_recipe.total_steps(100) == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search_n": 0}, "search_n must be at least 1"),
        ({"search_n": 3000}, "must not exceed"),
        ({"min_bits": 6, "max_bits": 3}, "min_bits=6 must not exceed max_bits=3"),
        ({"final_start": "best"}, "final_start must be one of float, kept, got 'best'"),
        ({"controls": ("flot",)}, "controls must be one of float, uniform, got 'flot'; did you mean float"),
        ({"preset": "paper"}, "preset must be one of paper-cifar, paper-imagenet"),
        ({"lr": -1.0}, "lr must be positive"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"shortlist_n": -5}, "shortlist_n must be at least 1, got -5"),
        ({"shortlist": 1, "shortlist_steps": 90}, "have no effect with a shortlist of 1"),
        ({"shortlist_steps": 0}, "shortlist_steps must be at least 1, got 0"),
        ({"gamma": 1.5}, "gamma must be a probability, got 1.5"),
        ({"alpha_zeta": -0.1}, "alpha_zeta must be positive, got -0.1"),
        ({"alpha_zeta": 0.0}, "alpha_zeta must be positive, got 0.0"),
        ({"alpha": 1.0}, "alpha must lie strictly between 0 and 1"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        search_options(0.5, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search_n": 8}, r"reward 'acr\+acc' would be the same.*8 votes .*larger --search-n"),
        ({"shortlist_n": 8, "shortlist": 3}, r"reward 'acr\+acc' would be the same.*8 votes .*larger --shortlist-n"),
        ({"search_n": 8, "reference_n": 8}, "8 votes per image of the float model certify none"),
    ],
)
def test_a_reward_that_tells_no_candidates_apart_names_what_is_too_small(changes, message):
    reward_of(search_options(0.5, reward="acr+acc"))
    with pytest.raises(InputError, match=message):
        reward_of(search_options(0.5, reward="acr+acc", **changes))


def test_what_a_method_fixes_is_its_own():
    assert search_options(0.5, strategy="pact", learn="lsq").learn == "pact"
    assert search_options(0.5, strategy="uniform", learn="lsq").learn == "lsq"
    assert [search_options(0.5, strategy=name).shortlist for name in ("additive", "haq")] == [3, 1]
    assert [search_options(0.5, strategy=name).races for name in ("additive", "haq")] == [True, False]
    assert not search_options(0.5, strategy="additive", racing=False).races


@pytest.mark.parametrize("name", ["arq", "arq-paper", "random"])
def test_a_published_search_has_the_options_that_this_version_would_record(name):
    """So that a search which was begun before can go on."""
    published, _ = read_journal(RESULTS / name / "journal.jsonl")
    there = published["options"]
    here = search_options(
        0.5, strategy=name, final_epochs=4, search_images=500, adaptive=there["adaptive"],
        tolerance=there["tolerance"], controls=(),
        train_precision="bfloat16",
    ).to_json()  # fmt: skip
    here["strategy_options"] = there["strategy_options"]  # the strategy's own
    assert differences(there, json.loads(json.dumps(here)), SECOND_LOOKS) == ""
    assert there.keys() <= here.keys(), "an older journal lacks options that came later, whose default is None"


def test_the_help_names_every_method_without_importing_them():
    program = (
        "import sys\n"
        "from arquant.base.options import options_of\n"
        "from arquant.commands.search import Search\n"
        "(option,) = (each for each in options_of(Search) if each.name == 'strategy')\n"
        "assert 'torch' not in sys.modules\n"
        "print(option.help)"
    )
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    names = shown.partition(", or yours")[0].split(", ")
    assert names == [method.name for method in BUILT_IN]
