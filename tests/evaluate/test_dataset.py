"""The reader gives back what LeRobot wrote and reads, and what the drawn datasets hold, in both layouts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from dataset_files import TASKS, Written, write_dataset
from safetensors.numpy import load_file

from edgewright.evaluate import open_dataset

GOLDENS = Path(__file__).parents[1] / "goldens" / "datasets"
LAYOUTS = ("v2.1", "v3.0")
WRIST, TOP = "observation.images.wrist", "observation.images.top"


@pytest.fixture(scope="module", params=[(layout, seed) for layout in LAYOUTS for seed in (0, 7)])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    layout, seed = request.param
    lengths = (9, 5, 12) if seed == 0 else (1, 14, 3, 6)
    return write_dataset(tmp_path_factory.mktemp("data") / "set", layout, lengths, seed)


@pytest.mark.parametrize("name", ["v21", "v30"])
def test_what_lerobot_wrote_is_what_lerobot_reads(name: str) -> None:
    expected, facts = load_file(GOLDENS / name / "expected.safetensors"), _json(GOLDENS / name / "expected.json")
    with open_dataset(GOLDENS / name) as dataset:
        frames = list(dataset.frames())
        assert dataset.info.layout == facts["layout"]
        assert dataset.info.fps == facts["fps"]
    assert np.array_equal([frame.state for frame in frames], expected["state"])
    assert np.array_equal([frame.action for frame in frames], expected["action"])
    assert np.array_equal(np.float32([frame.seconds for frame in frames]), expected["timestamp"])
    assert [frame.episode for frame in frames] == expected["episode"].tolist()
    assert [frame.task for frame in frames] == facts["tasks"]
    assert [frame.index for frame in frames] == list(range(len(frames)))
    for number, index in enumerate(expected["pictured"]):
        images = frames[index].images
        assert np.array_equal(images[WRIST], expected["wrist"][number])
        # Decoders may round the last bit differently from version to version.
        assert np.abs(images[TOP][::3, ::3].astype(int) - expected["top"][number]).max() <= 1


def _json(path: Path) -> dict[str, object]:
    return dict(json.loads(path.read_bytes()))


def test_drawn_datasets_are_read_as_they_were_drawn(written: Written) -> None:
    with open_dataset(written.folder) as dataset:
        assert dataset.action.names == ("a", "b", "c", "d", "Gripper")
        for index, drawn in enumerate(written.episodes):
            recording = dataset.recording(index)
            assert recording.state is not None
            assert recording.state.dtype == recording.action.dtype == np.float32
            assert np.array_equal(recording.state, drawn.state)
            assert np.array_equal(recording.action, drawn.action)
            assert np.allclose(recording.seconds, np.arange(len(drawn.tasks)) / written.fps, atol=1e-6)
            assert list(recording.tasks) == [TASKS[task] for task in drawn.tasks]
            assert recording.episode.start == sum(len(one.tasks) for one in written.episodes[:index])
            for step in range(len(drawn.tasks)):
                images = dataset.frame(recording, step).images
                assert np.array_equal(images[WRIST], drawn.wrist[step]), (index, step)
                assert np.array_equal(images[TOP], drawn.top[step]), (index, step)


def test_frames_in_any_order_are_the_same(written: Written) -> None:
    rng = np.random.default_rng(3)
    with open_dataset(written.folder) as dataset:
        for _ in range(30):
            index = int(rng.integers(len(written.episodes)))
            drawn = written.episodes[index]
            step = int(rng.integers(len(drawn.tasks)))
            images = dataset.frame(dataset.recording(index), step).images
            assert np.array_equal(images[WRIST], drawn.wrist[step])
            assert np.array_equal(images[TOP], drawn.top[step])


def test_only_the_cameras_asked_for_are_decoded(written: Written) -> None:
    top = next(written.folder.rglob("*.mp4"))
    data = top.read_bytes()
    top.write_bytes(b"broken")
    try:
        with open_dataset(written.folder) as dataset:
            assert list(dataset.frame(dataset.recording(0), 0, [WRIST]).images) == [WRIST]
            assert not dataset.frame(dataset.recording(0), 0, []).images
    finally:
        top.write_bytes(data)


def test_one_row_group_for_all_episodes_is_read_too(written: Written) -> None:
    for path in (written.folder / "data").rglob("*.parquet"):
        pq.write_table(pq.read_table(path), path)
    with open_dataset(written.folder) as dataset:
        for index, drawn in enumerate(written.episodes):
            recording = dataset.recording(index)
            assert np.array_equal(recording.action, drawn.action)
            last = len(drawn.tasks) - 1
            assert np.array_equal(dataset.frame(recording, last, [WRIST]).images[WRIST], drawn.wrist[last])


def test_episodes_in_chunks_of_two(tmp_path: Path) -> None:
    """Layout v2.1 keeps `chunks_size` episodes in a folder."""
    written = write_dataset(tmp_path / "set", "v2.1", (3, 4, 5), 6)
    info = written.folder / "meta/info.json"
    info.write_text(json.dumps({**_json(info), "chunks_size": 2}))
    for path in sorted(written.folder.rglob("episode_000002.*")):
        place = written.folder / path.relative_to(written.folder).as_posix().replace("chunk-000", "chunk-001")
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    with open_dataset(written.folder) as dataset:
        frames = list(dataset.frames())
    assert np.array_equal(frames[-1].action, written.episodes[2].action[-1])
    assert np.array_equal(frames[-1].images[TOP], written.episodes[2].top[-1])


def test_images_may_be_files_of_the_folder(tmp_path: Path) -> None:
    written = write_dataset(tmp_path / "set", "v2.1", (4,), 3)
    path = next((tmp_path / "set/data").rglob("*.parquet"))
    table = pq.read_table(path).to_pylist()
    (tmp_path / "set/images").mkdir()
    for step, row in enumerate(table):
        (tmp_path / f"set/images/{step}.png").write_bytes(row[WRIST]["bytes"])
        row[WRIST] = {"bytes": None, "path": f"images/{step}.png"}
    schema = pq.read_schema(path).set(2, pq.read_schema(path).field(2).with_type(_image_type()))
    pq.write_table(pq.read_table(path).from_pylist(table, schema), path)
    with open_dataset(written.folder) as dataset:
        for frame in dataset.frames(cameras=[WRIST]):
            assert np.array_equal(frame.images[WRIST], written.episodes[0].wrist[frame.step])


def _image_type() -> object:
    import pyarrow as pa

    return pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def test_a_cache_of_links_is_read(tmp_path: Path) -> None:
    """The cache of huggingface_hub keeps a snapshot's files as links into a folder beside it."""
    written = write_dataset(tmp_path / "set", "v3.0", (3, 4), 1)
    snapshot = tmp_path / "datasets--x" / "snapshots" / "abc"
    blobs = tmp_path / "datasets--x" / "blobs"
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(path for path in written.folder.rglob("*") if path.is_file())):
        place = snapshot / path.relative_to(written.folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(blobs / str(number))
        place.symlink_to(blobs / str(number))
    with open_dataset(snapshot) as dataset:
        assert len(list(dataset.frames())) == 7
