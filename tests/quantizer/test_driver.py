"""The run from a checkpoint to its quantized form: the same bytes every time, resumable, bounded, honest about data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from conftest import ArrayTensor, arrays, with_tensors
from edgewright.calibration import Samples, load_samples
from edgewright.checkpoint import open_checkpoint
from edgewright.checkpoint.safetensors_writer import array_spec, write_safetensors
from edgewright.errors import CalibrationDataError, OutputError, RecipeError
from edgewright.files import cache_home, sha256_of
from edgewright.models import build_llm
from edgewright.quantizer.plan import plan_of
from edgewright.quantizer.stream import FloatModel, Spool, run_all
from quantizer_cases import AWQ, INT4, StopError, Watch, checkpoint_of, digest, recipe_of, run, samples_of, write

W8A8 = (
    "body: {format: int8, group: channel}\nlm_head: {format: int8, activations: none}\nembedding: {format: int8}\n"
    "activations: {format: int8, mode: static}\n"
)
FLOATS = "body: {format: float32}\nlm_head: {format: float32}\nembedding: {format: float32}\n"
LAYERS = ["embedding", "layer 0", "layer 1", "layer 2", "head"]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("recipe", [INT4, AWQ, W8A8 + "transforms: {smoothing: 0.5, bias_correction: true}\n"])
def test_the_same_gives_the_same_bytes(recipe: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama")
    samples = samples_of(checkpoint)
    made = [
        digest(write(tmp_path / str(i), checkpoint, recipe, samples, run(checkpoint, recipe, samples, threads=threads)))
        for i, threads in enumerate((1, 1, 2))
    ]
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize(
    ("error", "transforms"), [(StopError, ""), (KeyboardInterrupt, "transforms: {sequential: true}\n")]
)
def test_an_interrupted_run_goes_on(
    error: type[BaseException], transforms: str, tmp_path: Path, own_cache: Path
) -> None:
    checkpoint, recipe = checkpoint_of("llama"), INT4 + transforms
    samples = samples_of(checkpoint)
    whole = digest(write(tmp_path / "whole", checkpoint, recipe, samples, run(checkpoint, recipe, samples)))
    for stop_at in ("layer 1", "layer 2"):
        with pytest.raises(error):
            run(checkpoint, recipe, samples, progress=Watch(stop_at, error))
        assert not list(own_cache.rglob("floats-*"))
    watch = Watch()
    done = run(checkpoint, recipe, samples, progress=watch)
    assert [step for step in watch.steps if step in LAYERS] == ["layer 2", "head"]
    assert digest(write(tmp_path / "again", checkpoint, recipe, samples, done)) == whole
    assert not list((own_cache / "edgewright" / "quantizing").iterdir())


_KILLED = """
import sys, time
sys.path[:0] = [{tests!r}]
from quantizer_cases import *
class Slow(Watch):
    @contextmanager
    def step(self, title, total=0):
        with super().step(title, total) as advance:
            print(title, flush=True)
            if title == "layer 1":
                time.sleep(60)
            yield advance
checkpoint = checkpoint_of("llama")
run(checkpoint, INT4, samples_of(checkpoint), progress=Slow())
"""


def test_a_killed_run_goes_on_and_keeps_others_out(tmp_path: Path, own_cache: Path) -> None:
    checkpoint = checkpoint_of("llama")
    samples = samples_of(checkpoint)
    whole = digest(write(tmp_path / "whole", checkpoint, INT4, samples, run(checkpoint, INT4, samples)))
    code = _KILLED.format(tests=str(Path(__file__).parents[1]))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as child:
        assert child.stdout is not None
        assert any(line.strip() == "layer 1" for line in child.stdout)
        with pytest.raises(OutputError, match="Another run is making the same quantized checkpoint"):
            run(checkpoint, INT4, samples)
        child.send_signal(signal.SIGKILL)
    watch = Watch()
    done = run(checkpoint, INT4, samples, progress=watch)
    assert [step for step in watch.steps if step in LAYERS] == ["layer 1", "layer 2", "head"]
    assert not list(own_cache.rglob("floats-*"))
    assert digest(write(tmp_path / "again", checkpoint, INT4, samples, done)) == whole


def test_broken_work_is_made_again(tmp_path: Path, own_cache: Path) -> None:
    checkpoint = checkpoint_of("llama")
    samples = samples_of(checkpoint)
    whole = digest(write(tmp_path / "whole", checkpoint, INT4, samples, run(checkpoint, INT4, samples)))
    for index, pattern in enumerate(("segment-0001.safetensors", "value-*.bin", "state.json")):
        with pytest.raises(StopError):
            run(checkpoint, INT4, samples, progress=Watch("layer 2"))
        (found, *_) = sorted(own_cache.rglob(pattern))
        found.write_bytes(found.read_bytes()[:40])
        watch = Watch()
        done = run(checkpoint, INT4, samples, progress=watch)
        assert [step for step in watch.steps if step in LAYERS] == LAYERS
        assert digest(write(tmp_path / f"again{index}", checkpoint, INT4, samples, done)) == whole


def test_other_data_is_other_work(own_cache: Path) -> None:
    checkpoint = checkpoint_of("llama")
    first, second = samples_of(checkpoint, seed=0), samples_of(checkpoint, seed=1)
    with pytest.raises(StopError):
        run(checkpoint, INT4, first, progress=Watch("layer 2"))
    watch = Watch()
    run(checkpoint, INT4, Samples(second.rows, first.record), progress=watch).work.remove()
    assert [step for step in watch.steps if step in LAYERS] == LAYERS


def test_padding_changes_nothing(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama")
    rows = samples_of(checkpoint).rows
    made = []
    for pad in (0, 100):
        samples = load_samples(padded(tmp_path / f"data{pad}", rows, pad), None, vocab_size=97, max_context=512)
        assert sum(map(len, samples.rows)) == sum(map(len, rows))
        same = Samples(samples.rows, {})
        made.append(digest(write(tmp_path / f"{pad}", checkpoint, INT4, same, run(checkpoint, INT4, same))))
    assert made[0] == made[1]


def padded(folder: Path, rows: Sequence[np.ndarray], pad: int) -> Path:
    """Write sequences as one padded array with a mask."""
    folder.mkdir()
    ids = np.full((len(rows), max(map(len, rows)) + pad), 3, np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)], mask[index, : len(row)] = row, 1
    path = folder / "shard.safetensors"
    write_safetensors(path, {"input_ids": array_spec(ids), "attention_mask": array_spec(mask)})
    entry = {"file": path.name, "sha256": sha256_of(path), "count": len(rows)}
    index_file = {"schema": 1, "kind": "tokens", "shards": [entry], "record": {}}
    (folder / "calibration.json").write_text(json.dumps(index_file))
    return folder


_MEASURED = """
import resource, sys
sys.path[:0] = [{tests!r}]
from quantizer_cases import *
checkpoint = checkpoint_of("llama")
run(checkpoint, INT4, samples_of(checkpoint, count={count}, length=64)).work.remove()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_number_of_samples(tmp_path: Path) -> None:
    tests, peaks = str(Path(__file__).parents[1]), []
    for count in (16, 128):
        env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / str(count))}
        code = _MEASURED.format(tests=tests, count=count)
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
        peaks.append(int(result.stdout))
    assert peaks[1] <= peaks[0] * 1.05


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "file"
    place.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    checkpoint = checkpoint_of("llama")
    with pytest.raises(OutputError, match="calibration's work"):
        run(checkpoint, INT4, samples_of(checkpoint))


def test_a_full_disk_is_said(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = checkpoint_of("llama")
    samples = samples_of(checkpoint)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("edgewright.quantizer.stream.Spool.write", full)
        with pytest.raises(OutputError, match="No space is left while writing the calibration's work"):
            run(checkpoint, INT4, samples)
    with monkeypatch.context() as patch:
        patch.setattr("edgewright.quantizer.work.write_safetensors", full)
        with pytest.raises(OutputError, match="No space is left"):
            run(checkpoint, INT4, samples)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(OutputError, match=r"float32 form needs .* MB"):
        run(checkpoint, INT4, samples)


def test_an_empty_set_is_refused() -> None:
    with pytest.raises(CalibrationDataError, match="empty"):
        run(checkpoint_of("llama"), INT4, Samples((), {}))
    with pytest.raises(RecipeError, match="give it calibration data"):
        run(checkpoint_of("llama"), INT4, None)


def test_one_token_and_repeated_samples_are_borne(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama")
    for rows in ((np.array([5]),), (np.array([7, 7, 7, 7]),) * 3):
        done = run(checkpoint, INT4, Samples(rows, {}))
        assert all(np.isfinite(report.weight_rmse) for report in done.reports)
        done.work.remove()


def test_an_overflowing_model_names_the_layer(own_cache: Path) -> None:
    checkpoint = checkpoint_of("llama")
    name = "model.layers.1.mlp.up_proj.weight"
    broken = with_tensors(checkpoint, **{name: ArrayTensor(name, arrays(checkpoint)[name] * np.float32(1e38))})
    with pytest.raises(CalibrationDataError, match=r"model\.layers\.1\.mlp\.down_proj is not finite"):
        run(broken, INT4, samples_of(checkpoint))


def test_a_dead_channel_is_borne(own_cache: Path) -> None:
    checkpoint = checkpoint_of("llama")
    name = "model.layers.1.input_layernorm.weight"
    norm = arrays(checkpoint)[name].copy()
    norm[[0, 3]] = 0
    broken = with_tensors(checkpoint, **{name: ArrayTensor(name, norm)})
    for recipe in (INT4, AWQ, W8A8 + "transforms: {smoothing: 0.5}\n"):
        done = run(broken, recipe, samples_of(checkpoint))
        reports = {report.module: report for report in done.reports}
        q = reports["model.layers.1.self_attn.q_proj"]
        assert q.dead_inputs == 2
        assert q.weight_sqnr_db is not None
        assert q.weight_sqnr_db > 12
        done.work.remove()


def test_a_stage_the_model_lacks_is_refused_with_its_line() -> None:
    text = INT4 + "stages:\n  vision:\n    body: {format: int8}\n"
    with pytest.raises(RecipeError, match=r"r\.yaml:\d+: the model has no stage 'vision'; it has llm"):
        run(checkpoint_of("llama"), text, samples_of(checkpoint_of("llama")))


def test_sequential_runs_see_the_rounded_layers_before() -> None:
    checkpoint = checkpoint_of("llama")
    samples = samples_of(checkpoint)
    text = INT4.replace("int4", "int4, group: 128")
    plain, sequential = (run(checkpoint, text + t, samples) for t in ("", "transforms: {sequential: true}\n"))
    by_name = [{r.module: r for r in done.reports} for done in (plain, sequential)]
    first, last = "model.layers.0.self_attn.q_proj", "model.layers.2.mlp.down_proj"
    assert by_name[0][last].output_error != by_name[1][last].output_error
    # The weights are those of the checkpoint all the same, not rounded twice: a tied table as well.
    for name in (first, last, "model.embed_tokens"):
        limits = [reports[name].limit for reports in by_name]
        assert limits[0] == limits[1]
    for done in (plain, sequential):
        done.work.remove()


def test_ranges_after_scaling_have_a_histogram() -> None:
    checkpoint = checkpoint_of("llama")
    for extra in ("range: percentile, percentile: 99.0", "range: mse"):
        text = W8A8.replace("mode: static", f"mode: static, {extra}") + "transforms: {smoothing: 0.5}\n"
        done = run(checkpoint, text, samples_of(checkpoint))
        assert len(done.reports) > 10
        done.work.remove()


def test_work_lies_in_the_cache(own_cache: Path) -> None:
    checkpoint = checkpoint_of("llama")
    done = run(checkpoint, INT4, samples_of(checkpoint))
    assert done.work.folder.is_relative_to(cache_home())
    assert not list(done.work.folder.glob("spool/*"))
    done.work.remove()
    assert not done.work.folder.exists()


@pytest.mark.parametrize("scope", ["head", "tensor"])
@pytest.mark.parametrize("recipe", [AWQ, W8A8 + "transforms: {smoothing: 0.8}\n"])
def test_scales_of_a_cache_are_those_of_the_values_as_they_will_be(scope: str, recipe: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of("llama")
    name = "model.layers.{}.self_attn.{}_proj.weight"
    weights, changes = arrays(checkpoint), {}
    for layer in range(3):  # values of one head that are small, and made up for behind the attention
        v, o = weights[name.format(layer, "v")].copy(), weights[name.format(layer, "o")].copy()
        v[: len(v) // 2] *= np.float32(0.01)
        o[:, : o.shape[1] // 2] *= np.float32(100)
        changes |= {name.format(layer, kind): w for kind, w in (("v", v), ("o", o))}
    uneven = with_tensors(checkpoint, **{key: ArrayTensor(key, values) for key, values in changes.items()})
    samples = samples_of(checkpoint)
    recipe += f"kv: {{format: int8, scope: {scope}}}\n"
    folder = write(tmp_path / "out", uneven, recipe, samples, run(uneven, recipe, samples))
    written = open_checkpoint(folder)
    assert written.quantization is not None
    plan = plan_of(build_llm(written, max_context=64), recipe_of(FLOATS))
    model = FloatModel(build_llm(written, max_context=64), tmp_path / "float", None, 1)
    spool = Spool(tmp_path / "spool")
    largest: dict[str, np.ndarray] = {}
    for segment, taps in zip(plan.segments, plan.caches, strict=True):
        wanted = [*segment.gives, *(tap.value for tap in taps)]
        for sample, values in run_all(model, segment, spool, samples.rows, wanted):
            for given in segment.gives:
                spool.write(given, sample, values[given])
            for tap in taps:
                found = np.abs(values[tap.value]).reshape(-1, tap.kv_heads, values[tap.value].shape[-1] // tap.kv_heads)
                largest[tap.module] = np.maximum(largest.get(tap.module, np.float32(0)), found.max(axis=(0, 2)))
    assert len(largest) == 3
    for module, (_, scale) in written.quantization.kv_scales.items():
        peaks = largest[module] if scope == "head" else largest[module].max(keepdims=True)
        np.testing.assert_allclose(scale * 127, peaks, rtol=0.25)  # weights are rounded since


def test_the_folder_is_free_again_when_anything_fails(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise StopError

    checkpoint = checkpoint_of("llama")
    samples = samples_of(checkpoint)
    kept = []  # nothing is freed by the collector
    for place in ("driver.report_from_json", "work.Work._load"):
        with monkeypatch.context() as patch:
            patch.setattr(f"edgewright.quantizer.{place}", broken)
            with pytest.raises(StopError) as error:
                run(checkpoint, INT4, samples)
            kept.append(error)
    done = run(checkpoint, INT4, samples)
    with pytest.raises(StopError), done.work:
        raise StopError
    run(checkpoint, INT4, samples).work.remove()
