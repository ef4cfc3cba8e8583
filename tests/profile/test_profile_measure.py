from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from profile_cases import GOLDENS, decode_phase, profile_of

from browser import SCHEMES, browser
from edgewright.build.pipeline import deploy
from edgewright.bundle import read_manifest
from edgewright.errors import BundleError, ProfileError, TargetMismatchError, UsageError
from edgewright.profile.document import to_json
from edgewright.profile.from_file import File, Ran, profile_file
from edgewright.profile.measure import _fresh_memory, profile_bundle
from edgewright.profile.page import page
from edgewright.profile.peaks import platform_peaks
from edgewright.profile.profile import Peaks, Phase
from edgewright.profile.record import Called, open_recorder
from edgewright.profile.schedule import Request
from edgewright.profile.table import OUTSIDE, rows
from edgewright.targets.platform import find_platform

TESTS = Path(__file__).parent.parent
LLAMA = TESTS / "goldens" / "text" / "llama"
#: Sizes of the golden: hidden, heads, key heads, width of a head, width of the mlp, tokens, layers.
HIDDEN, HEADS, KV_HEADS, HEAD, WIDE, VOCAB, LAYERS = 40, 4, 2, 10, 44, 97, 3


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An int8 bundle of the golden llama; not to be changed."""
    folder = tmp_path_factory.mktemp("profiled") / "bundle"
    deploy(LLAMA, folder, recipe="int8", verify=False)
    return folder


@pytest.fixture(scope="module")
def openvino_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for OpenVINO."""
    folder = tmp_path_factory.mktemp("profiled-openvino") / "bundle"
    deploy(LLAMA, folder, recipe="int8", verify=False, target="openvino")
    return folder


def macs(phase: Phase) -> dict[str, int]:
    """Multiply-adds by group."""
    return {row.label: row.macs for row in rows(phase, Peaks("")) if row.macs}


def check_sums(phase: Phase) -> None:
    found = rows(phase, Peaks(""))
    assert sum(row.mean_ms for row in found) == pytest.approx(phase.mean_ms)
    assert found[-1].label == OUTSIDE
    assert all(row.mean_ms >= 0 for row in found)


def test_prefill_and_decode_of_onnx_runtime(bundle: Path) -> None:
    profile = profile_bundle(bundle, Request(tokens=9, past=4, after=5, repeats=3), threads=1)
    assert [phase.name for phase in profile.phases] == ["prefill", "decode"]
    assert profile.engines["llm"].startswith("onnxruntime ")
    assert profile.peak_rss_bytes is None or profile.peak_rss_bytes > (profile.peak_anonymous_bytes or 0)
    prefill, decode = profile.phases
    assert dict(prefill.sizes) == {"tokens": 9, "past": 4}
    assert dict(decode.sizes) == {"tokens": 1, "past": 5 + 2 + 1}
    for phase in profile.phases:
        check_sums(phase)
        assert len(phase.totals_ms) == len(phase.latencies_ms) == 3
        assert all(len(layer.times_ms) == 3 for layer in phase.layers)
        assert (phase.planned, phase.unplaced_macs, phase.unplaced_bytes) == (True, 0, 0)
        assert "no module" not in {layer.group for layer in phase.layers}
        assert phase.timeline
    # The last layer's mlp and the head run for one token; two layers for all nine.
    mlp = 3 * HIDDEN * WIDE
    assert macs(prefill)["mlp"] == 2 * 9 * mlp + mlp
    assert macs(decode) == {**macs(decode), "mlp": 3 * mlp, "head": HIDDEN * VOCAB}


def test_openvino_tells_means_and_has_the_same_work(bundle: Path, openvino_bundle: Path) -> None:
    request = Request(tokens=9, after=5, repeats=3)
    one, other = (profile_bundle(folder, request, threads=1, memory=False) for folder in (bundle, openvino_bundle))
    assert other.engines["llm"].startswith("openvino ")
    for phase, twin in zip(other.phases, one.phases, strict=True):
        check_sums(phase)
        assert len(phase.totals_ms) == 3
        assert all(layer.times_ms == () for layer in phase.layers)
        assert phase.planned
        named = sum(layer.mean_ms for layer in phase.layers if layer.modules)
        assert named >= 0.9 * sum(layer.mean_ms for layer in phase.layers)
        # Layers that take less than a microsecond are not told of, so that a little work may have no place.
        placed = {name: sum(macs(one).values()) for name, one in (("openvino", phase), ("onnxruntime", twin))}
        # The body that ONNX Runtime runs multiplies the slots that a token doesn't see as well.
        hidden = 9 * 8 // 2 if phase.name == "prefill" else 1  # of decode the slot of the step that follows
        assert placed["openvino"] + phase.unplaced_macs == placed["onnxruntime"] - LAYERS * HEADS * hidden * 2 * HEAD


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(tokens=300), "A prefill of 300 tokens after 0 doesn't fit into the context of 256"),
        (Request(past=256), "A prefill of 1 tokens after 256"),
        (Request(after=250), "22 steps of decode after 250 tokens"),
        (Request(repeats=255), "257 steps of decode after 1 tokens"),
        (Request(stages=("vision",)), "no stage vision to profile: its stages are llm"),
    ],
)
def test_requests_without_room(bundle: Path, request_: Request, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        profile_bundle(bundle, request_)


def test_engines_and_machines_that_can_t_be_timed(bundle: Path) -> None:
    entry = read_manifest(bundle).stages["llm"]
    with pytest.raises(ProfileError, match="runs on qnn, whose layers can't be timed here"):
        open_recorder(bundle, replace(entry, runtime="qnn"), None)
    assert entry.machine is not None
    other = replace(entry, machine=replace(entry.machine, arch="sparc"))
    with pytest.raises(TargetMismatchError):
        open_recorder(bundle, other, None)


def test_a_changed_bundle_is_refused(bundle: Path, tmp_path: Path) -> None:
    spoilt = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    (spoilt / "stages" / "llm" / "weights.bin").write_bytes(b"no")
    with pytest.raises(BundleError):
        profile_bundle(spoilt, Request(tokens=4, repeats=1), memory=False)


def test_stages_of_a_policy(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    deploy(TESTS / "goldens" / "policies" / "pi05" / "checkpoint", folder, recipe="int8", verify=False)
    profile = profile_bundle(folder, Request(repeats=2, stages=("vision", "denoise")), memory=False)
    assert [phase.name for phase in profile.phases] == ["vision", "denoise"]
    assert set(profile.engines) == {"vision", "denoise"}
    vision, denoise = profile.phases
    assert dict(vision.sizes) == {"views": 3}
    assert denoise.sizes["horizon"] == 12
    for phase in profile.phases:
        check_sums(phase)
        assert phase.unplaced_macs == 0
        assert {"attention", "mlp", "norm"} <= {layer.group for layer in phase.layers}


def test_a_file_of_onnx_runtime_with_its_bundle(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    deploy(LLAMA, folder, recipe="float32", verify=False)
    peaks = platform_peaks(find_platform("jetson-orin-nx-16gb"))
    profile = profile_file(File(GOLDENS / "ort.json", "ort"), folder, Ran(), peaks)
    prefill, decode = profile.phases
    assert (prefill.name, dict(prefill.sizes)) == ("prefill", {"tokens": 7, "past": 0})
    assert (decode.name, dict(decode.sizes)) == ("decode", {"tokens": 1, "past": 32})
    assert any("--decode-after 32 is assumed" in note for note in profile.notes)
    mlp = 3 * HIDDEN * WIDE
    assert macs(prefill) == {**macs(prefill), "mlp": 15 * mlp, "head": HIDDEN * VOCAB}
    assert prefill.unplaced_macs == decode.unplaced_macs == 0
    assert "no module" not in {layer.group for layer in (*prefill.layers, *decode.layers)}
    softmax = [layer for layer in prefill.layers if layer.kind == "Softmax"]
    assert {layer.modules for layer in softmax} == {(f"model.layers.{index}.self_attn",) for index in range(LAYERS)}
    told = profile_file(File(GOLDENS / "ort.json", "ort"), folder, Ran(past=2, after=9), peaks)
    assert [dict(phase.sizes)["past"] for phase in told.phases] == [2, 9]
    assert not any("assumed" in note for note in told.notes)


def test_work_that_the_checkpoint_tells(tmp_path: Path) -> None:
    """What experts do depends on data in the bundle's graph; the model's own says how many are chosen."""
    source, folder = TESTS / "goldens" / "text" / "gpt_oss", tmp_path / "bundle"
    deploy(source, folder, recipe="int8", verify=False)
    request = Request(tokens=5, repeats=1)
    silent = profile_bundle(folder, request, memory=False)
    assert not any(phase.planned for phase in silent.phases)
    assert len(silent.notes) == 2
    told = profile_bundle(folder, request, memory=False, checkpoint=source)
    for phase in told.phases:
        assert (phase.planned, phase.unplaced_macs) == (True, 0)
        assert macs(phase)["experts"] > 0
    with pytest.raises(UsageError, match="of llama and the bundle of gpt_oss"):
        profile_bundle(folder, request, memory=False, checkpoint=LLAMA)


def test_a_file_of_trtexec_with_its_bundle(bundle: Path) -> None:
    names = [GOLDENS / f"trtexec_{name}.json" for name in ("profile", "layers", "times")]
    profile = profile_file(File(names[0], "trtexec", *names[1:]), bundle, Ran(tokens=7), Peaks(""))
    (phase,) = profile.phases
    assert phase.name == "prefill"
    check_sums(phase)
    assert phase.mean_ms == pytest.approx(0.25)
    assert phase.latencies_ms == (0.30, 0.31, 0.29, 0.30)
    by_name = {layer.name: layer for layer in phase.layers}
    (foreign,) = (layer for name, layer in by_name.items() if name.startswith("{ForeignNode["))
    assert foreign.modules == (
        "model.layers.1.post_attention_layernorm", "model.layers.1.mlp.gate_proj+up_proj", "model.layers.1.mlp",
        "model.layers.1.mlp.down_proj",
    )  # fmt: skip
    assert sum(foreign.macs.values()) == 7 * 3 * HIDDEN * WIDE
    assert foreign.group == "mlp"
    tail = by_name["__myl_FcAdd_myl0_7"]
    assert sum(tail.macs.values()) == HIDDEN * WIDE + HIDDEN * VOCAB
    assert tail.group == "head"
    qk = by_name["model.layers.0.self_attn.q_proj/Linear + model.layers.0.self_attn.k_proj/Linear"]
    assert sum(qk.macs.values()) == 7 * HIDDEN * HEAD * (HEADS + KV_HEADS)
    assert by_name["Reformatting CopyNode for Output Tensor 0"].group == "no module"
    silent = profile_file(File(names[0], "trtexec"), bundle, Ran(), Peaks(""))
    assert not silent.phases[0].planned
    assert any("--tokens" in note for note in silent.notes)


def test_a_file_alone_and_what_can_t_be_asked_of_one(bundle: Path) -> None:
    profile = profile_file(File(GOLDENS / "qnn.csv", "qnn"), None, Ran(), Peaks(""))
    (phase,) = profile.phases
    assert (profile.bundle, phase.name, len(phase.totals_ms)) == ("", "run", 3)
    assert {layer.group for layer in phase.layers} == {"no module"}
    check_sums(phase)
    named = profile_file(File(GOLDENS / "qnn.csv", "qnn"), bundle, Ran(tokens=1, after=3), Peaks(""))
    assert named.phases[0].name == "decode"
    with pytest.raises(UsageError, match="--layer-info and --times"):
        File(GOLDENS / "qnn.csv", "qnn", times=GOLDENS / "qnn.csv").read()
    with pytest.raises(UsageError, match="no stage vision"):
        profile_file(File(GOLDENS / "qnn.csv", "qnn"), bundle, Ran("vision"), Peaks(""))


def test_the_process_for_memory_runs_no_code_of_where_it_is_begun(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numpy", "onnx", "json", "edgewright"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken from here')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    peaks = _fresh_memory(bundle, Request(tokens=2, repeats=1), 1)
    assert peaks[0] is None or peaks[0] > (peaks[1] or 0) > 0


def test_nothing_is_left_on_the_disk_when_a_phase_fails(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> Phase:
        raise ProfileError("no phase")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("edgewright.profile.measure.phase_of_runs", failing)
    with pytest.raises(ProfileError, match="no phase") as caught:  # which keeps all frames alive
        profile_bundle(bundle, Request(tokens=2, repeats=1), memory=False)
    assert caught.value.__traceback__ is not None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("float16", 2), ("int8", 1)])
def test_caches_move_as_wide_as_they_are(bundle: Path, dtype: str, width: int) -> None:
    from edgewright.profile.planned import Graphs

    manifest = read_manifest(bundle)
    sizes, moved = {"batch": 1, "seq": 1, "positions": 1, "capacity": 256}, []
    for kind in ("float32", dtype):
        entry = manifest.stages["llm"]
        narrow = replace(entry, contract=replace(entry.contract, kv_dtype=kind))
        graphs = Graphs(bundle, replace(manifest, stages={"llm": narrow}))
        moved.append(sum(item.cache_bytes for item in graphs.work([Called("llm", sizes, 8, 0.0)])["llm"]))
    assert moved[0] > 0
    assert moved[1] * 4 == moved[0] * width


def test_rope_tables_count_by_rows_and_shapes_read_no_cache(bundle: Path) -> None:
    """Of tables of cosines and sines a row a position moves, and what asks for a cache's size doesn't read it."""
    from edgewright.profile.planned import Graphs

    graphs = Graphs(bundle, read_manifest(bundle))
    sizes = {"batch": 1, "seq": 1, "positions": 1, "capacity": 256}
    work = graphs.work([Called("llm", sizes, 8, 0.0)])["llm"]
    assert not any(item.cache_bytes for item in work if item.op == "Shape")
    tables = [item for item in work if item.op == "Gather" and item.module.endswith("self_attn")]
    assert all(item.weight_bytes <= 4 * HEAD // 2 for item in tables)


def test_peaks_of_a_platform() -> None:
    platform = find_platform("jetson-orin-nx-16gb")
    peaks = platform_peaks(platform)
    assert (peaks.title, peaks.bytes_per_s) == (platform.title, platform.bandwidth_bytes_per_s)
    assert peaks.ops_per_s["float"] == platform.peak_ops_per_s["float16"]
    assert peaks.ops_per_s["int8"] == platform.peak_ops_per_s["int8"]
    assert platform_peaks(platform, 5e9).bytes_per_s == 5e9
    assert platform_peaks(find_platform("cpu")).ops_per_s == {}


def test_the_page_says_what_the_profile_says() -> None:
    text = page(profile_of(decode_phase(), peaks=Peaks("here & <there>", 4e9, {"float": 1e9, "int8": 2e9})))
    for words in (
        "a.q_proj",
        "attention",
        "outside of layers",
        "tokens 1, past 32",
        "here &amp; &lt;there&gt;",
        "a note",
    ):
        assert words in text
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_the_page_in_a_browser(bundle: Path, tmp_path: Path) -> None:
    profile = profile_bundle(bundle, Request(tokens=6, after=3, repeats=2), memory=False)
    path = tmp_path / "profile.html"
    path.write_text(page(profile), encoding="utf-8")
    with browser() as tab:
        for width in (1400, 420):
            for scheme in SCHEMES:
                tab.open(path, width, scheme)
                assert tab.faults() == []


def test_the_document_of_a_bundle_is_plain_json(bundle: Path) -> None:
    profile = profile_bundle(bundle, Request(tokens=4, repeats=1), memory=False)
    data = json.loads(json.dumps(to_json(profile), allow_nan=False))
    assert data["phases"][0]["total"]["label"] == "total"
