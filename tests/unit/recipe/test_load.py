"""Finding, layering and checking recipes, and the place of every value and every problem."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from grpo_cli.errors import GrpoError, Problem
from grpo_cli.objective.kinds.clip import Clip
from grpo_cli.recipe import locate
from grpo_cli.recipe.load import (
    Absent,
    Loaded,
    diff,
    find,
    is_setup_file,
    leaves,
    load,
    summary_of,
)
from grpo_cli.recipe.problems import kind_of, node_classes, schema_paths
from grpo_cli.recipe.schema import ALGORITHM_KEYS, SETUP_KEYS, Recipe

SETUP = """\
summary: a setup
model: {id: some/model}
task: {kind: arithmetic}
verifier: {name: exact_integer}
sampling: {prompts_per_step: 4, group_size: 2, max_tokens: 8}
optim: {lr: 1e-3, steps: 5}
eval: {num_questions: 3, samples_per_question: 1}
"""
BASE = """\
summary: base
setup: small
objective: {kind: clip, low: 0.1, high: 0.2}
overlong: {kind: soft, cache_frac: 0.5, penalty: 0.7}
"""


class Folder:
    """A working directory with `small.yaml`, `base.yaml` and whatever a test adds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("small", SETUP)
        self.write("base", BASE)

    def write(self, name: str, text: str) -> str:
        (self.path / f"{name}.yaml").write_text(text)
        return f"{name}.yaml"

    def load(self, text: str, *sets: str, setup: str | None = None) -> Loaded:
        return load(self.write("it", text), setup=setup, sets=sets)

    def problems(self, text: str, *sets: str, setup: str | None = None) -> list[Problem]:
        with pytest.raises(GrpoError) as caught:
            self.load(text, *sets, setup=setup)
        assert caught.value.exit_code == 2
        return list(caught.value.problems)

    def problem(self, text: str, *sets: str, setup: str | None = None) -> Problem:
        (problem,) = self.problems(text, *sets, setup=setup)
        return problem


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


def at(problem: Problem) -> tuple[str, int, int]:
    assert problem.span is not None, problem
    return problem.span.path, problem.span.line, problem.span.column


# Shipped files


@pytest.mark.parametrize("name", locate.recipe_names())
def test_shipped_recipes_load_from_any_folder(here: Folder, name: str) -> None:
    loaded = load(name)
    assert loaded.name == name
    assert next(iter(loaded.sources)) == f"recipes/{name}.yaml"
    assert all(not source.startswith("/") for source in loaded.sources)
    assert loaded.recipe.summary


@pytest.mark.parametrize("name", locate.setup_names())
def test_every_algorithm_runs_with_every_setup(name: str) -> None:
    for algorithm in locate.recipe_names():
        if algorithm == "self_verify" and name in ("tiny", "tiny-text"):
            # The model never judges its answers, and next_token has no room for it.
            with pytest.raises(GrpoError, match=r"task\.self_check"):
                load(algorithm, setup=name)
            continue
        assert load(algorithm, setup=name).recipe.setup == name


def test_the_papers_settings() -> None:
    grpo, dapo, dr_grpo = (load(name).recipe for name in ("grpo", "dapo", "dr_grpo"))
    for recipe, high in ((grpo, 0.2), (dapo, 0.28), (dr_grpo, 0.2)):
        assert recipe.objective == Clip(low=0.2, high=high)
    assert (grpo.kl.beta, dapo.kl.beta, dr_grpo.kl.beta) == (0.04, 0.0, 0.0)
    assert [r.aggregate.kind for r in (grpo, dapo, dr_grpo)] == [
        "seq_mean",
        "token_mean",
        "constant",
    ]
    assert [r.advantage.scale for r in (grpo, dapo, dr_grpo)] == ["group", "group", "none"]
    assert [r.filter.kind for r in (grpo, dapo, dr_grpo)] == ["none", "dynamic_sampling", "none"]
    assert [r.overlong.kind for r in (grpo, dapo, dr_grpo)] == ["none", "soft", "none"]


def test_the_two_kinds_of_key_cover_the_recipe() -> None:
    assert set(Recipe.model_fields) == ALGORITHM_KEYS | SETUP_KEYS
    assert {"summary", "optim"} == ALGORITHM_KEYS & SETUP_KEYS


# Finding


def test_a_name_means_the_same_in_every_folder(here: Folder) -> None:
    here.write("grpo", "nonsense: [")
    (here.path / "dapo").mkdir()
    assert load("grpo").path == locate.recipes_dir() / "grpo.yaml"
    assert find("dapo") == locate.recipes_dir() / "dapo.yaml"
    assert find("./grpo.yaml") == Path("./grpo.yaml")


def test_an_installed_wheel_uses_its_own_data(
    here: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = here.path / "site-packages"
    data = site / "grpo_cli" / "_data"
    shutil.copytree(locate.recipes_dir(), data / "recipes")
    (site / "recipes").mkdir()  # of another project
    monkeypatch.setattr(locate, "_PACKAGE", site / "grpo_cli")
    assert locate.verifiers_dir() == data / "verifiers"
    assert load("dapo").path == data / "recipes" / "dapo.yaml"
    assert load("dapo").origins["objective.high"] == "recipes/dapo.yaml:6"
    with pytest.raises(GrpoError) as caught:
        load("recipes/dapo.yaml")
    assert "use its name, `dapo`" in (caught.value.problems[0].hint or "")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("dapoo", "did you mean `dapo`?"),
        ("recipes/dapo.yaml", "`dapo` is a shipped recipe: use its name, `dapo`"),
        ("dapo.yaml", "`dapo` is a shipped recipe: use its name, `dapo`"),
        ("tiny", "`tiny` is a setup: use `--setup tiny` with a recipe"),
        ("x" * 5000, "shipped recipes: "),
        ("a\0b", "shipped recipes: "),
    ],
)
def test_an_unknown_recipe(here: Folder, typed: str, hint: str) -> None:
    with pytest.raises(GrpoError) as caught:
        load(typed)
    (problem,) = caught.value.problems
    assert problem.code == "GR107"
    assert problem.hint is not None
    assert problem.hint.startswith(hint)


def test_an_unknown_setup(here: Folder) -> None:
    typed = here.problem(BASE, setup="tny")
    assert (typed.code, typed.hint) == ("GR107", "did you mean `tiny`?")
    written = here.problem("setup: tny\nobjective: {kind: clip}\n")
    assert (written.code, written.hint) == ("GR107", "did you mean `tiny`?")
    assert at(written) == ("it.yaml", 1, 8)


def test_a_folder_is_not_a_recipe(here: Folder) -> None:
    (here.path / "sub").mkdir()
    with pytest.raises(GrpoError, match="is a folder"):
        load("sub")


def test_files_look_beside_themselves_before_the_shipped_folder(here: Folder) -> None:
    sub = here.path / "sub"
    sub.mkdir()
    (sub / "own.yaml").write_text("extends: grpo.yaml\nsetup: tiny\nkl: {beta: 0.5}\n")
    assert list(load("sub/own.yaml").sources) == [
        "sub/own.yaml",
        "recipes/grpo.yaml",
        "recipes/setup/tiny.yaml",
    ]
    (sub / "grpo.yaml").write_text("objective: {kind: clip, high: 0.9}\n")
    (sub / "tiny.yaml").write_text(SETUP)
    loaded = load("sub/own.yaml")
    assert list(loaded.sources) == ["sub/own.yaml", "sub/grpo.yaml", "sub/tiny.yaml"]
    assert loaded.origins["objective.high"] == "sub/grpo.yaml:1"


def test_a_file_of_the_same_shown_path_as_a_shipped_one(here: Folder) -> None:
    (here.path / "recipes").mkdir()
    (here.path / "recipes" / "grpo.yaml").write_text(
        "setup: tiny\nextends: ../dapo_like.yaml\nkl: {beta: 0.5}\n"
    )
    (here.path / "dapo_like.yaml").write_text(f"extends: {locate.recipes_dir() / 'grpo.yaml'}\n")
    loaded = load("recipes/grpo.yaml")
    assert len(loaded.sources) == 4
    assert loaded.origins["kl.beta"] == "recipes/grpo.yaml:3"
    assert loaded.origins["kl.kind"] == "shipped/recipes/grpo.yaml:8"


# Layers


def test_mappings_merge_and_other_values_replace(here: Folder) -> None:
    here.write("small", SETUP + "lora: {rank: 4, targets: [a, b]}\n")
    loaded = here.load(
        "extends: base.yaml\nobjective: {high: 0.3}\noptim: {betas: [0.8, 0.9]}\n",
        "lora.targets=[c]",
    )
    recipe = loaded.recipe
    assert recipe.objective == Clip(low=0.1, high=0.3)
    assert recipe.optim.betas == (0.8, 0.9)
    assert recipe.optim.lr == 1e-3
    assert recipe.lora.targets == ("c",)
    assert recipe.lora.rank == 4
    assert loaded.name == "it"


def test_every_leaf_has_an_origin(here: Folder) -> None:
    loaded = here.load(
        "extends: base.yaml\n\nobjective: {high: 0.3}\n", "kl.beta=0.5", "optim={lr: 1e-6}"
    )
    assert loaded.origins.keys() == leaves(loaded.recipe).keys()
    expected = {
        "objective.kind": "base.yaml:3",
        "objective.high": "it.yaml:3",
        "sampling.group_size": "small.yaml:5",
        "kl.beta": "--set #1",
        "optim.lr": "--set #2",
        "optim.steps": "small.yaml:6",
        "kl.kind": "default",
        "lora.rank": "default",
        "setup": "base.yaml:2",
    }
    assert {leaf: loaded.origins[leaf] for leaf in expected} == expected
    assert loaded.sources["base.yaml"] == BASE


def test_a_changed_kind_replaces_the_whole_node(here: Folder) -> None:
    hard = here.load("extends: base.yaml\noverlong: {kind: hard}\n").recipe
    assert hard.overlong.model_dump() == {"kind": "hard", "penalty": 1.0}  # not the parent's 0.7


def test_the_same_kind_or_no_kind_merges(here: Folder) -> None:
    for node in ("{cache_frac: 0.4}", "{kind: soft, cache_frac: 0.4}"):
        soft = here.load(f"extends: base.yaml\noverlong: {node}\n").recipe
        assert soft.overlong.model_dump()["cache_frac"] == 0.4
        assert soft.overlong.model_dump()["penalty"] == 0.7


def test_a_kind_that_changes_twice_does_not_remember(here: Folder) -> None:
    here.write("middle", "extends: base.yaml\noverlong: {kind: none}\n")
    again = here.load("extends: middle.yaml\noverlong: {kind: soft}\n").recipe
    assert again.overlong.model_dump()["penalty"] == 1.0
    by_set = here.load(BASE, "overlong.kind=none", "overlong={kind: soft, cache_frac: 0.1}").recipe
    assert by_set.overlong.model_dump()["penalty"] == 1.0


def test_a_list_of_parents_goes_left_to_right(here: Folder) -> None:
    here.write("one", "kl: {beta: 0.1}\nadvantage: {ddof: 0}\n")
    here.write("two", "kl: {beta: 0.2}\n")
    loaded = here.load("extends: [base.yaml, one, two.yaml]\n")
    assert loaded.recipe.kl.beta == 0.2
    assert loaded.recipe.advantage.ddof == 0
    assert loaded.origins["kl.beta"] == "two.yaml:1"
    assert here.load("extends: [base.yaml, two, one]\n").recipe.kl.beta == 0.1


def test_a_diamond_is_not_a_circle(here: Folder) -> None:
    here.write("one", "extends: base.yaml\nkl: {beta: 0.1}\n")
    here.write("two", "extends: base.yaml\n")
    assert here.load("extends: [one, two]\n").recipe.kl.beta == 0.1


def test_circles_show_the_chain(here: Folder) -> None:
    here.write("a", "extends: b\n")
    here.write("b", "kl: {beta: 0}\nextends: [base, c]\n")
    here.write("c", "extends: a\n")
    with pytest.raises(GrpoError) as caught:
        load("a.yaml")
    (problem,) = caught.value.problems
    assert problem.code == "GR108"
    assert "a.yaml -> b.yaml -> c.yaml -> a.yaml" in problem.message
    assert at(problem) == ("c.yaml", 1, 10)
    assert "it.yaml -> it.yaml" in here.problem("extends: it.yaml\n").message
    here.write("s", SETUP + "extends: s\n")
    assert here.problem(BASE, setup="s.yaml").code == "GR108"


def test_a_long_chain_is_refused_and_a_wide_one_is_cheap(here: Folder) -> None:
    for i in range(30):
        here.write(f"w{i}", f"extends: [w{i + 1}, w{i + 1}]\n")  # 2^30 paths
    here.write("w30", BASE)
    assert load("w0.yaml").recipe.objective.kind == "clip"
    for i in range(60):
        here.write(f"n{i}", f"extends: n{i + 1}\n")
    here.write("n60", BASE)
    with pytest.raises(GrpoError, match="a chain of more than 50"):
        load("n0.yaml")


def test_setup_layers(here: Folder) -> None:
    here.write("other", "extends: small\nsummary: other\nmodel: {id: new}\noptim: {steps: 9}\n")
    loaded = here.load(BASE + "optim: {steps: 7}\n", setup="other.yaml")
    assert loaded.recipe.model.id == "new"
    assert loaded.recipe.optim.steps == 7  # the algorithm file lies on top
    assert loaded.recipe.optim.lr == 1e-3
    assert loaded.recipe.summary == "base"
    assert loaded.recipe.setup == "other.yaml"
    assert loaded.origins["setup"] == "--setup"
    unnamed = here.load("setup: small\nobjective: {kind: clip}\n")
    assert unnamed.recipe.summary == ""


def test_no_setup_is_one_clear_problem(here: Folder) -> None:
    problem = here.problem("objective: {kind: clip}\n")
    assert problem.code == "GR103"
    assert "no `setup`" in problem.message
    assert problem.hint is not None
    assert "tiny" in problem.hint


def test_keys_in_the_wrong_kind_of_file(here: Folder) -> None:
    here.write("small", SETUP + "kl: {beta: -1}\nsetup: tiny\n")
    problems = here.problems(BASE + "model: {id: 3}\n")
    assert [(p.code, *at(p)) for p in problems] == [
        ("GR109", "it.yaml", 5, 1),
        ("GR102", "it.yaml", 5, 13),
        ("GR109", "small.yaml", 8, 1),
        ("GR102", "small.yaml", 8, 12),
        ("GR109", "small.yaml", 9, 1),
    ]
    assert problems[0].message == "`model` belongs in a setup file, not in an algorithm file"
    assert problems[0].hint == "move it to a setup file, or use `--set model=…`"
    assert here.load(BASE, setup="tiny").recipe.setup == "tiny"


# Problems


def test_all_problems_of_all_files_in_file_order(here: Folder) -> None:
    here.write("parent", "setup: small\nobjective: {kind: clip, low: 2}\nkl: {beta: x, bta: 1}\n")
    here.write("small", SETUP.replace("group_size: 2", "group_size: 1") + "device: tpu\n")
    problems = here.problems(
        "summary: 3\nextends: parent\nagregate: {}\nkl: {kind: k3, kind: k3}\n",
        "optim.stps=3",
        "checkpoint.every=0",
    )
    assert [(p.code, *at(p)) for p in problems] == [
        ("GR102", "it.yaml", 1, 10),
        ("GR101", "it.yaml", 3, 1),
        ("GR105", "it.yaml", 4, 16),
        ("GR102", "parent.yaml", 2, 30),
        ("GR102", "parent.yaml", 3, 12),
        ("GR101", "parent.yaml", 3, 15),
        ("GR102", "small.yaml", 5, 45),
        ("GR102", "small.yaml", 8, 9),
        ("GR101", "--set #1", 1, 7),
        ("GR102", "--set #2", 1, 18),
    ]


@pytest.mark.parametrize(
    ("line", "code", "column", "message", "hint"),
    [
        ("objective: {hgih: 0.3}", "GR101", 13, "unknown key `objective.hgih`", "`high`"),
        ("objectve: {}", "GR101", 1, "unknown key `objectve`", "`objective`"),
        ("lr: 1e-6", "GR101", 1, "unknown key `lr`", "`optim.lr`"),
        ("<<: {kl: 1}", "GR101", 1, "unknown key `<<`", "use `extends`"),
        ("optim: {lr: '1e-6'}", "GR102", 13, "must be a number, but is the text `1e-6`", "quotes"),
        ("optim: {lr: 0}", "GR102", 13, "`optim.lr` must be above 0, but is 0", None),
        ("optim: {lr: .inf}", "GR102", 13, "must be a finite number", None),
        ("optim: {lr: .nan}", "GR102", 13, "must be a finite number", None),
        ("optim: {lr: 1e999}", "GR102", 13, "must be a finite number", None),
        ("optim: {steps: 1e3}", "GR102", 16, "must be a whole number", "write `1000`"),
        ("optim: {steps: true}", "GR102", 16, "must be a whole number, but is true", None),
        ("optim: {betas: [0.9]}", "GR102", 16, "`optim.betas` needs at least 2 entries", None),
        ("optim: {betas: [0, x]}", "GR102", 20, "`optim.betas.1` must be a number", None),
        ("optim: {betas: [1, 1, 1]}", "GR102", 16, "at most 2 entries", None),
        ("kl: 0.1", "GR102", 5, "`kl` must be a mapping of keys, but is 0.1", None),
        ("kl:", "GR102", 4, "`kl` must be a mapping of keys, but is null", None),
        (
            "kl: {kind: k33}",
            "GR102",
            12,
            "`kl.kind` must be one of `k1_reward`, `k2`, `k3`",
            "did you mean `k3`?",
        ),
        (
            "filter: {kind: dynamic}",
            "GR102",
            16,
            "`none`, `zero_variance`, `dynamic_sampling`",
            "`dynamic_sampling`",
        ),
        ("filter: {max_rounds: 3}", "GR103", 1, "`filter.kind` is missing", "`none`"),
        ("advantage: {scale: grop}", "GR102", 20, "`group`, `batch`, `batch_centred`", "`group`"),
        ("overlong: {mask_truncated: no}", "GR102", 28, "must be true or false", None),
        ("setup: 3", "GR102", 8, "`setup` must be text, but is 3", None),
        ("extends: {a: 1}", "GR102", 10, "`extends` must be a file name or a list", None),
        ("extends: [base, 3]", "GR102", 17, "`extends` must be a file name or a list", None),
        ("extends: bse.yaml", "GR107", 10, "no recipe `bse.yaml`", "shipped: "),
    ],
)
def test_a_problem_in_plain_english(
    here: Folder, line: str, code: str, column: int, message: str, hint: str | None
) -> None:
    key = line.partition(":")[0]
    rest = "".join(row + "\n" for row in BASE.splitlines() if not row.startswith(f"{key}:"))
    if key in ("objective", "overlong"):
        rest = "extends: base\n"
    problem = here.problem(f"{line}\n{rest}")
    assert (problem.code, *at(problem)) == (code, "it.yaml", 1, column)
    assert message in problem.message
    if hint is None:
        assert problem.hint is None
    else:
        assert hint in (problem.hint or "")


def test_both_branches_of_a_plain_union_make_one_problem(here: Folder) -> None:
    one = here.problem(BASE, "lora.targets=3")
    assert one.message == "`lora.targets` must be `all-linear` or a list, but is 3"
    inner = here.problem(BASE, "lora.targets=[q_proj, 3]")
    assert inner.message == "`lora.targets.1` must be text, but is 3"
    assert inner.span is not None
    assert inner.span.column == len("lora.targets=[q_proj, ") + 1


def test_a_key_of_another_kind_says_whose_it_is(here: Folder) -> None:
    here.write("hard", "extends: base\noverlong: {kind: hard}\n")
    problem = here.problem("extends: hard\noverlong: {cache_frac: 0.3}\n")
    assert problem.code == "GR101"
    assert at(problem) == ("it.yaml", 2, 12)
    assert (
        problem.hint
        == "`cache_frac` belongs to kind `soft`; this recipe has `hard`, set at hard.yaml:2"
    )


def test_a_key_that_is_called_like_a_kind(here: Folder) -> None:
    problems = here.problems(BASE.replace("kind: soft,", "kind: soft, soft: 1, penalty: -1,"))
    assert [(p.code, p.message) for p in problems if p.code != "GR105"] == [
        ("GR101", "unknown key `overlong.soft`"),
        ("GR102", "`overlong.penalty` must be above 0, but is -1"),
    ]


def test_missing_keys_point_at_what_lacks_them(here: Folder) -> None:
    here.write("small", SETUP.replace(", max_tokens: 8", "").replace("model: {id: some/model}", ""))
    problems = here.problems("setup: small\n")
    found = {p.message: (p.code, *at(p)) for p in problems}
    assert found == {
        "`objective` is missing": ("GR103", "it.yaml", 1, 1),
        "`model` is missing": ("GR103", "it.yaml", 1, 1),
        "`sampling.max_tokens` is missing": ("GR103", "small.yaml", 5, 1),
    }


def test_values_that_do_not_fit_together(here: Folder) -> None:
    problem = here.problem(BASE + "optim: {minibatches: 64}\n")
    assert problem.code == "GR110"
    assert at(problem) == ("it.yaml", 5, 22)
    assert "optim.minibatches is 64" in problem.message
    level = here.problem(BASE, "task={min_level: 4, max_level: 2}")
    assert level.code == "GR110"
    assert at(level) == ("--set #1", 1, 18)


def test_an_unknown_key_does_not_hide_values_that_do_not_fit(here: Folder) -> None:
    problems = here.problems(BASE + "optim: {minibatches: 64, mini: 1}\n")
    assert [p.code for p in problems] == ["GR110", "GR101"]


def test_unreadable_files_are_reported_together(here: Folder) -> None:
    here.write("p", "a: [\n")
    here.write("small", "- a\n")
    problems = here.problems("extends: [p, nope]\nsetup: small\n")
    assert [(p.code, at(p)[0]) for p in problems] == [
        ("GR107", "it.yaml"),
        ("GR104", "p.yaml"),
        ("GR104", "small.yaml"),
    ]
    for text in ("", "# only a comment\n", "[a]\n", "word\n"):
        assert "must be a mapping" in here.problem(text).message


# --set


@pytest.mark.parametrize(
    ("text", "leaf", "value"),
    [
        ("optim.lr=1e-6", "optim.lr", 1e-6),
        ("summary=a=b", "summary", "a=b"),
        ("summary=", "summary", None),
        ('summary="no: \\u00e9"', "summary", "no: \u00e9"),
        ("objective={kind: clip, high: 0.3}", "objective.high", 0.3),
        ("objective.high=0.3", "objective.low", 0.1),
        ("lora.targets=[a, b]", "lora.targets", ["a", "b"]),
        ("model.revision=null", "model.revision", None),
        ("model.revision=no", "model.revision", "no"),
        ("device=cpu", "device", "cpu"),
    ],
)
def test_set(here: Folder, text: str, leaf: str, value: object) -> None:
    if value is None and leaf == "summary":
        assert here.problem(BASE, text).message == "`summary` must be text, but is null"
        return
    loaded = here.load(BASE, text)
    assert leaves(loaded.recipe)[leaf] == value


def test_later_sets_win(here: Folder) -> None:
    loaded = here.load(BASE, "kl.beta=1", "kl.beta=2")
    assert loaded.recipe.kl.beta == 2
    assert loaded.origins["kl.beta"] == "--set #2"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kl", "needs `KEY=VALUE`"),
        ("", "needs `KEY=VALUE`"),
        ("=3", "dotted key"),
        ("a..b=3", "dotted key"),
        ("a b=3", "dotted key"),
        ("kl={beta: 1", "not readable YAML"),
        ("kl={beta: 1, beta: 2}", "twice"),
        ("kl=!!python/name:os.system x", "tags"),
        ("kl=[" + "[" * 3000, "levels deep"),
        ("summary=a\nb", "one line"),
        ("setup=tiny", "cannot be changed"),
        ("extends=grpo", "cannot be changed"),
    ],
)
def test_a_bad_set(here: Folder, text: str, words: str) -> None:
    problem = here.problem(BASE, "kl.beta=0", text)
    assert problem.code == "GR111"
    assert words in problem.message
    assert problem.span is not None
    assert problem.span.path == "--set #2"
    assert problem.span.text in text or problem.span.text == text


def test_a_set_error_points_into_its_text(here: Folder) -> None:
    problem = here.problem(BASE, "kl.beta=0", "objective.clip_hgih=0.3")
    assert (problem.code, *at(problem)) == ("GR101", "--set #2", 1, 11)
    assert problem.span is not None
    assert problem.span.length == len("clip_hgih")
    assert problem.span.text == "objective.clip_hgih=0.3"


# leaves and diff


def test_diff_shows_only_what_differs(here: Folder) -> None:
    one = here.load(BASE).recipe
    assert diff(one, here.load(BASE.replace("base", "another")).recipe) == {}
    other = here.load(BASE, "overlong={kind: hard, penalty: 0.7}", "model.revision=x").recipe
    assert diff(one, other) == {
        "overlong.kind": ("soft", "hard"),
        "overlong.cache_frac": (0.5, Absent.ABSENT),
        "overlong.mask_truncated": (False, Absent.ABSENT),
        "model.revision": (None, "x"),
    }
    assert next(iter(diff(other, one).values())) == ("hard", "soft")


def test_leaves_keep_nulls_and_whole_lists(here: Folder) -> None:
    found = leaves(here.load(BASE).recipe)
    assert found["model.revision"] is None
    assert found["optim.betas"] == [0.9, 0.999]
    assert "optim" not in found


def test_the_hash_does_not_depend_on_how_it_is_written(here: Folder) -> None:
    one = here.load("extends: base\nkl: {beta: 0.5}\n").recipe
    other = here.load(BASE, "kl.beta=5e-1").recipe
    assert one.hash == other.hash
    assert one.hash != here.load(BASE).recipe.hash


# Helpers


def test_what_kind_of_file_it_is(here: Folder) -> None:
    def is_setup(text: str, folder: str = ".") -> bool:
        (here.path / folder).mkdir(exist_ok=True)
        path = here.path / folder / "x.yaml"
        path.write_text(text)
        return is_setup_file(path)

    assert is_setup(SETUP)
    assert not is_setup(BASE)
    assert not is_setup("optim: {lr: 1}\n")
    assert is_setup("optim: {lr: 1}\n", "setup")
    assert not is_setup(BASE, "setup")
    assert is_setup("[", "setup")


def test_summary_of_reads_no_schema(here: Folder) -> None:
    assert summary_of(Path(here.write("s", "summary: hello\nwhatever: 1\n"))) == "hello"


def test_schema_walk() -> None:
    annotation = Recipe.model_fields["overlong"].annotation
    assert [kind_of(cls) for cls in node_classes(annotation)] == ["none", "hard", "mask", "soft"]
    paths = set(schema_paths())
    assert {"optim.lr", "overlong.cache_frac", "objective.high"} <= paths
