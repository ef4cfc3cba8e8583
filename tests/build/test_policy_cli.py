"""The command line on policies: deploy, export, verify and inspect, with what a checkpoint doesn't say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewright.bundle import read_manifest
from edgewright.cli import main
from policy_builds import source_of
from policy_goldens import POLICY_GOLDENS, TOKENIZER

LIBERO = [
    "--no-discrete-state", "--max-prompt", "40", "--action-dim", "7", "--state-dim", "8", "--tokenizer", str(TOKENIZER),
]  # fmt: skip

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *words: object) -> tuple[int, str, str]:
    """Run a verb quietly; returns its code, stdout and stderr."""
    code = main([*map(str, words), "--quiet"])
    text = capsys.readouterr()
    return code, text.out, text.err


def test_from_deploy_to_verify(tmp_path: Path, capsys: Capture) -> None:
    source, bundle = source_of("pi05_libero"), tmp_path / "b"
    limits = tmp_path / "limits.yaml"
    limits.write_text("maximum: [1, 1, 1, 1, 1, 1, 1]\nfallback: stop\n")
    more = ["--limits", limits, "--delta-actions", "1,1,1,1,1,1,0", "--steps", 4, "--feature", "kv-transposed=on"]
    code, out, err = run(capsys, "deploy", source, "-o", bundle, *LIBERO, *more)
    assert (code, err) == (0, "")
    assert "verdict   passed" in out
    manifest = read_manifest(bundle)
    spec = manifest.model["policy"]
    assert manifest.recipe["name"] == "policy-int8"
    assert spec["limits"]["maximum"] == [1.0] * 7
    assert spec["delta_mask"] == [True] * 6
    assert (spec["steps"], spec["max_tokens"], spec["action_dim"]) == (4, 40, 7)
    assert manifest.model["features"]["kv-transposed"] is True
    code, out, _ = run(capsys, "deploy", source, "-o", bundle, *LIBERO, *more)
    assert (code, "unchanged, nothing to do" in out) == (0, True)
    code, out, _ = run(capsys, "verify", bundle, "--against", source, "--tokenizer", TOKENIZER, "--json")
    assert code == 0
    assert json.loads(out)["status"] == "passed"
    code, out, _ = run(capsys, "verify", bundle, "--against", source, "--memory", "1e-6")
    assert code == 0
    assert "verdict   partly checked" in out
    assert read_manifest(bundle).verdict["status"] == "partly checked"
    code, out, err = run(capsys, "verify", bundle, "--against", POLICY_GOLDENS / "pi05_libero")
    assert code == 3
    assert "was built for" in err


def test_a_wrong_bundle_fails_with_words(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from policy_builds import deploy_changed, with_tensor

    change = with_tensor("language_model.layers.1.self_attn.v_proj.weight", lambda w: 1.5 * w)
    deploy_changed(monkeypatch, "pi05", tmp_path / "b", change)
    code, out, err = run(capsys, "verify", tmp_path / "b", "--against", source_of("pi05"), "--json")
    assert code == 1
    assert json.loads(out)["status"] == "failed"
    assert "the bundle failed verification: weights:" in err
    assert read_manifest(tmp_path / "b").verdict["status"] == "failed"


def test_goldens_are_told_from_checkpoints(tmp_path: Path, capsys: Capture) -> None:
    assert run(capsys, "export", source_of("pi05"), "-o", tmp_path / "e", "--feature", "time-table=off")[0] == 0
    code, out, _ = run(capsys, "verify", tmp_path / "e", "--against", POLICY_GOLDENS / "pi05")
    assert code == 0
    assert "golden: passed" in out


def test_what_inspect_shows(tmp_path: Path, capsys: Capture) -> None:
    _, out, _ = run(capsys, "inspect", source_of("pi05"))
    assert "robot policy, lerobot" in out
    assert "buildable     yes" in out
    assert "not used: model.paligemma_with_expert.gemma_expert.lm_head.weight (the action expert" in out
    _, out, _ = run(capsys, "inspect", source_of("pi05_libero"))
    assert "not as it is:" in out
    assert "discrete_state" in out
    run(capsys, "export", source_of("pi0_lerobot"), "-o", tmp_path / "e", "--tokenizer", TOKENIZER)
    _, out, _ = run(capsys, "inspect", tmp_path / "e")
    places = [out.index(f"stage {name}: ") for name in ("vision", "prefix", "denoise")]
    assert places == sorted(places)
    assert "prefix_key.0 to 1" in out
    assert "loop=step" in out
    assert "schedule of 10 steps by float64-linear, in the graph" in out
    _, out, _ = run(capsys, "inspect", tmp_path / "e", "--json")
    assert json.loads(out)["policy"]["kind"] == "pi0"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["pi05", "--max-context", "64"], 2, "--max-context"),
        (["pi05", "--vocab-size", "64"], 2, "--vocab-size"),
        (["pi05", "--feature", "loop"], 2, "NAME=VALUE"),
        (["pi05", "--feature", "lop=graph"], 2, "The feature 'lop' is unknown"),
        (["pi05", "--delta-actions", "1,2"], 2, "not a mask"),
        (["pi05", "--cameras", "a,,b"], 2, "empty name"),
        (["pi05", "--size", "text.heads=many"], 2, "NAME=NUMBER"),
        (["pi05", "--size", "text.heads=8", "--size", "text.heads=9"], 2, "text.heads is given twice"),
        (["pi05", "--size", "text.epsilon=1"], 3, "can't be given for pi05"),
        (["pi05", "--no-verify", "--memory", "4"], 2, "--memory is for the verification"),
        (["pi05", "--max-prompt", "9"], 3, "option max_tokens (--max-prompt) is 9"),
        (["pi05", "--no-discrete-state"], 3, "discrete_state"),
        (["pi05", "--recipe", "int4-gptq"], 3, "observations"),
        (["pi05_libero", "--no-discrete-state"], 3, "tokenizer"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_is_refused(words: list[str], code: int, message: str, tmp_path: Path, capsys: Capture) -> None:
    case, *more = words
    found, _, err = run(capsys, "deploy", source_of(case), "-o", tmp_path / "b", "--no-verify", *more)
    assert found == code
    assert message in err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speed: [1]\n", "limits.yaml has speed where limits are minimum, maximum"),
        ("[1, 2]\n", "limits.yaml is no list of `name: value` lines, as limits are"),
        ("", "limits.yaml has no keys"),
        ("fallback: stop\nrate: [1, 1, 1, 1, 1, 1, 1]\nfallback: hold\n", "limits.yaml has 'fallback' twice: keep one"),
        (
            "minimum: [0, 0, 2, 0, 0, 0, 0]\nmaximum: [1, 1, 1, 1, 1, 1, 1]\n",
            "below policy.limits.maximum (it isn't at 2)",
        ),
        ("rate: [0]\n", "rate[0] must be a number above 0"),
        ("maximum: [1, 2]\n", "one number for each of the 7"),
        ("a: [\n", "limits.yaml is not valid YAML"),
    ],
    ids=["unknown", "list", "empty", "twice", "no room", "zero", "too few", "broken"],
)
def test_wrong_limits(text: str, message: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "limits.yaml").write_text(text)
    words = ["deploy", source_of("pi05"), "-o", tmp_path / "b", "--no-verify", "--limits", tmp_path / "limits.yaml"]
    code, _, err = run(capsys, *words)
    assert code in (2, 3)
    assert message in err


def test_flags_of_policies_on_language_models(tmp_path: Path, capsys: Capture) -> None:
    llama = POLICY_GOLDENS.parent / "text" / "llama"
    code, _, err = run(capsys, "deploy", llama, "-o", tmp_path / "b", "--steps", 3, "--feature", "loop=graph")
    assert code == 2
    assert "(--steps, --feature)" in err
    assert run(capsys, "deploy", llama, "-o", tmp_path / "b", "--no-verify")[0] == 0
    code, _, err = run(capsys, "verify", tmp_path / "b", "--against", llama, "--memory", 4)
    assert code == 2
    assert "--memory has a meaning for robot policies only" in err
    run(capsys, "export", source_of("pi05"), "-o", tmp_path / "p")
    code, _, err = run(capsys, "verify", tmp_path / "p", "--against", source_of("pi05"), "--live", "python")
    assert code == 2
    assert "--live has a meaning for language models only" in err
