"""One file per image: every layout, in order, with its boxes, and what is wrong where it is."""

import json
import re

import cv2
import numpy as np
import pytest

from labkit.contracts import Annotation
from labkit.parts.packing.boxes import synthesize_boxes
from labkit.parts.packing.folder import open_folder, write_folder


def jpeg(width_px=64, height_px=48, level=0):
    image = np.full((height_px, width_px, 3), level, np.uint8)
    return cv2.imencode(".jpg", image)[1].tobytes()


def boxes(*rows, category_id=1):
    return Annotation(
        boxes_xyxy=np.array(rows, np.float32).reshape(-1, 4),
        category_ids=np.full(len(rows), category_id, np.int64),
    )


def put(root, *names):
    for level, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(jpeg(level=level))


def write_coco(file, names, rows=()):
    """Write COCO JSON in which image ids count down, so that they are not the names' order."""
    file.parent.mkdir(parents=True, exist_ok=True)
    images = [{"id": 100 - i, "file_name": name} for i, name in enumerate(names)]
    file.write_text(json.dumps({"images": images, "annotations": list(rows), "categories": []}))


SAMPLES = [
    ("b.jpg", jpeg(level=10), boxes([1, 2, 30.5, 40.25], [0, 0, 64, 48], category_id=90)),
    ("a.jpg", jpeg(level=20), boxes()),
    ("straße 7/ä ö.jpeg", jpeg(level=30), boxes([5, 5, 6, 6], category_id=13)),
]


@pytest.fixture
def written(tmp_path):
    write_folder(SAMPLES, tmp_path / "data", images=3, about={})
    return tmp_path / "data"


@pytest.mark.parametrize("images", ["val2017", "images/val2017", "images"])
def test_coco_layouts_are_found_in_the_order_of_image_ids(tmp_path, images):
    put(tmp_path / images, "1.jpg", "2.jpg")
    write_coco(tmp_path / "annotations/instances_val2017.json", ["1.jpg", "2.jpg"])
    (tmp_path / "annotations/captions_val2017.json").write_text("not read")
    reader = open_folder(tmp_path)
    assert [path.name for path in reader.paths] == ["2.jpg", "1.jpg"]
    assert (reader.boxes, reader.has_manifest) == ("coco", False)


def test_several_coco_splits_ask_for_one_of_them(tmp_path):
    for split in ("train2017", "val2017"):
        put(tmp_path / split, "1.jpg")
        write_coco(tmp_path / f"annotations/instances_{split}.json", ["1.jpg"])
    with pytest.raises(
        ValueError, match=r"data must be one of COCO's image folders, got .* with 2"
    ):
        open_folder(tmp_path)
    reader = open_folder(tmp_path / "train2017")
    assert (reader.paths, reader.boxes) == ((tmp_path / "train2017" / "1.jpg",), "coco")


def test_crowds_empty_boxes_and_absent_images_are_left_out(tmp_path):
    def row(image_id, bbox, **more):
        polygon = [[1.5, 2e3, -3]]
        return {
            "image_id": image_id,
            "bbox": bbox,
            "category_id": 7,
            "segmentation": polygon,
            **more,
        }

    put(tmp_path / "val2017", "here.jpg", "boxless.jpg")
    rows = [
        row(100, [1, 2, 3, 4]),
        row(100, [9, 9, 9, 9], iscrowd=1, segmentation={"counts": [1, 2], "size": [3, 4]}),
        row(100, [9, 9, 0, 9]),
        row(99, [9, 9, 9, 0]),
        row(98, [9, 9, 9, 9]),
    ]
    names = ["here.jpg", "boxless.jpg", "absent.jpg"]
    write_coco(tmp_path / "annotations/instances_val2017.json", names, rows)
    reader = open_folder(tmp_path)
    found = {reader.paths[i].name: reader.read(i)[1] for i in range(len(reader))}
    assert {name: a.boxes_xyxy.tolist() for name, a in found.items()} == {
        "here.jpg": [[1, 2, 4, 6]],
        "boxless.jpg": [],
    }
    assert found["boxless.jpg"].boxes_xyxy.shape == (0, 4)
    assert found["here.jpg"].category_ids.tolist() == [7]


def test_a_tree_is_sorted_by_path_and_gets_synthesized_boxes(tmp_path):
    put(tmp_path, "b/1.JPG", "a b/ü.jpeg", "z.Jpg", "note.png", ".hidden/1.jpg", "._z.jpg")
    reader = open_folder(tmp_path)
    names = [path.relative_to(tmp_path).as_posix() for path in reader.paths]
    assert names == ["a b/ü.jpeg", "b/1.JPG", "z.Jpg"]
    assert (reader.boxes, reader.has_manifest) == ("synthesized", False)
    expected = synthesize_boxes("a b/ü.jpeg", 64, 48)
    np.testing.assert_array_equal(reader.read(0)[1].boxes_xyxy, expected.boxes_xyxy)


def test_links_to_folders_and_files_work_and_loops_end(tmp_path):
    put(tmp_path / "elsewhere", "1.jpg")
    put(tmp_path / "data", "real/2.jpg")
    try:
        (tmp_path / "data/linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
        (tmp_path / "data/real/up").symlink_to(tmp_path / "data", target_is_directory=True)
        (tmp_path / "data/3.jpg").symlink_to(tmp_path / "elsewhere/1.jpg")
        (tmp_path / "short").symlink_to(tmp_path / "data", target_is_directory=True)
    except OSError:
        pytest.skip("this system does not let us make links")
    reader = open_folder(tmp_path / "short")
    names = [path.relative_to(tmp_path / "short").as_posix() for path in reader.paths]
    assert names == ["3.jpg", "linked/1.jpg", "real/2.jpg"]
    assert reader.read(0)[0] == reader.read(1)[0]


def test_verify_names_each_file_that_changed_or_is_missing(written):
    reader = open_folder(written)
    assert reader.verify(range(3)) == []
    files = reader.paths
    files[0].write_bytes(files[0].read_bytes() + b"more")
    files[1].write_bytes(files[1].read_bytes()[:-1] + b"\x00")
    files[2].unlink()
    (written / "annotations.json").write_text("{}")
    lines = reader.verify(range(3))
    assert re.search(r"annotations.json must have SHA-256 \w+, got \w+", lines[0])
    assert re.search(r"b.jpg must have \d+ bytes, got \d+", lines[1])
    assert re.search(r"a.jpg must have SHA-256 \w+, got \w+", lines[2])
    assert re.search(r"ö.jpeg must be a readable file, got No such file", lines[3])
    assert reader.verify([]) == lines[:1]


@pytest.mark.parametrize("name", ["b.jpg", "../b.jpg", "/b.jpg"])
def test_names_given_twice_or_outside_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=re.escape("name must be a new path inside images/, got")):
        write_folder([SAMPLES[0], (name, jpeg(), boxes())], tmp_path, images=2, about={})
