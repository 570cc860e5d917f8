"""The example delivers batches, and its step trains or occupies a simulated GPU."""

import re

import pytest
import torch

from labkit.diagnosis import example
from labkit.diagnosis.example import example_loop
from labkit.machine.gpu import CudaState


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(example, "cuda", lambda: CudaState(works=False, reason="none here"))


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_float_planes_with_labels_and_occupy_the_device(photos, no_gpu, workers):
    loop = example_loop(str(photos), num_workers=workers)
    before_s = loop.device.compute_s
    batches = list(loop.loader)
    assert len(batches) == 3  # of 24 photographs
    pictures, labels = batches[0]
    assert (pictures.shape, pictures.dtype) == ((8, 3, 256, 256), torch.float32)
    assert labels.dtype == torch.int64
    assert abs(pictures.mean()) < 1.5 and 0.2 < pictures.std() < 3
    loop.step(batches[0])
    assert loop.device.compute_s > before_s


def test_an_epoch_has_at_most_as_many_images_as_asked_for(photos, no_gpu):
    loop = example_loop(str(photos), images=8)
    assert len(loop.loader) == 1
    assert len(loop.files) == 8
    assert all(path.is_file() for path in loop.files)


def test_colours_are_red_green_blue(tmp_path):
    import cv2
    import numpy as np

    red_bgr = np.zeros((32, 32, 3), np.uint8)
    red_bgr[:, :, 2] = 255
    jpeg = cv2.imencode(".jpg", red_bgr)[1].tobytes()
    image = example.decode(jpeg)
    assert image[..., 0].mean() > 240 and image[..., 2].mean() < 15
    planes = example.normalize(example.resize(image))
    assert planes[0].mean() > 2 and planes[2].mean() < -1


def test_a_folder_without_photographs_is_refused(tmp_path):
    message = f"data must be a folder with .jpg files, got none in {tmp_path}"
    with pytest.raises(ValueError, match=re.escape(message)):
        example_loop(str(tmp_path))


@pytest.mark.needs_cuda
def test_on_cuda_a_model_is_trained(photos):
    loop = example_loop(str(photos))
    assert loop.device is None
    loop.step(next(iter(loop.loader)))
    torch.cuda.synchronize()
