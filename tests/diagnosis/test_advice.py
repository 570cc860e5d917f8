"""What is said of a function is what an expert would say, or nothing."""

import bz2
import gzip
import json
import lzma
import os
import pickle
import re
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import cv2
import h5py
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from labkit.diagnosis.advice import IN_SAMPLE, IN_STEP, advice_for, advice_in_step
from labkit.diagnosis.probe import probe_stages


def pairs(table):
    """Pairs of a function's name and words of the advice that it gets."""
    return [(name, words) for words, names in table.items() for name in names]


# Words of an advice -> functions that get it.
ADVISED = {
    "ImageFolder(root, loader=…)": ["torchvision.pil_loader"],
    "simplejpeg.decode_jpeg(data, min_height=…": ["torchvision.decode_image"],
    "keep pixels uint8": [
        "torchvision.ToTensor", "torchvision.to_tensor", "torchvision.ToDtype",
        "Tensor.float", "Tensor.mul_", "ndarray.astype",
    ],
    "on the device": ["torchvision.Normalize", "torchvision.normalize", "albumentations.Normalize"],
    "image.draft": [
        "torchvision.Resize", "torchvision.resize", "torchvision.RandomShortestSize",
        "PIL.Image.resize", "PIL.fit",
    ],
    "transforms.v2": [
        "torchvision.ColorJitter", "torchvision.adjust_hue", "torchvision.gaussian_blur",
        "torchvision.RandomPhotometricDistort",
    ],
    "crop before anything else": [
        "torchvision.RandomResizedCrop", "torchvision.resized_crop", "torchvision.hflip",
    ],
    "simplejpeg or cv2.imdecode": ["PIL.Image.convert", "PIL.open"],
    "crop and resize first": [
        "PIL.Image.crop", "PIL.Image.rotate", "PIL.autocontrast", "cv2.GaussianBlur",
    ],
    "IMREAD_REDUCED_COLOR_2": ["cv2.imread", "cv2.imdecode"],
    "decode at a reduced size": ["cv2.resize", "albumentations.SmallestMaxSize"],
    "convert after resizing": ["cv2.cvtColor"],
    "crop first": ["albumentations.ShiftScaleRotate"],
    "reshape or permute the batch": ["albumentations.ToTensorV2", "Tensor.view"],
    "OpenCV has most": ["scipy.gaussian_filter1d", "skimage.resize"],
    "draw each mask once": ["pycocotools.COCO.annToMask"],
    "make samples on the CPU": ["Tensor.cpu"],
    "instead of Python numbers": ["Tensor.item", "Tensor.tolist"],
    "return views": ["torch.tensor", "numpy.array", "numpy.stack"],
    "make it once": ["torch.zeros"],
    "collate_fn": ["torch.stack"],
    "tensors of one shape": ["torch.default_collate"],
    "many samples at once": ["numpy.random.rand", "Generator.random"],
    "new objects": ["copy.deepcopy"],
    "read it once": ["pandas.read_csv"],
    "to_numpy()": ["pandas.DataFrame.__getitem__"],
    "groupby('key').indices": ["pandas.DataFrame.__getitem__"],
    "parse once": ["json.loads", "csv.DictReader.__next__"],
    "uncompressed": ["gzip.GzipFile.read", "BZ2Decompressor.decompress", "zlib.decompress"],
    "open it once in each worker": [
        "zipfile.ZipFile.__init__", "h5py.File.__init__", "tarfile.TarFile.gzopen",
        "tarfile.TarFile.open in crop",
    ],
    "ZIP_STORED": ["zipfile.ZipFile.read"],
    "os.pread": ["tarfile.TarFile.extractfile"],
    "chunks of one sample": ["h5py.Dataset.__getitem__", "h5py.File.__getitem__"],
    "one environment for each worker": ["lmdb.Transaction.get"],
    "many rows with each query": ["sqlite3.Cursor.execute"],
    "mmap_mode": ["numpy.load"],
    ".npy instead of .npz": ["NpzFile.__getitem__", "numpy.NpzFile.__getitem__"],
    "not a pickle per sample": ["pickle.load", "torch.load"],
    "list the files once": [
        "posix.listdir", "os.walk", "os._walk", "posix.scandir in os._walk",
        "pathlib.Path.iterdir",
    ],
    "in threads": ["requests.get"],
    "no process for each sample": ["subprocess.run"],
    "decoded or resampled audio": ["librosa.resample"],
    "VideoCapture.grab()": ["VideoCapture.read"],
    "decode only the frames": ["decord.VideoReader.get_batch"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "words"), pairs(ADVISED))
def test_a_known_function_gets_advice(name, words):
    assert words in advice_for(name)


@pytest.mark.parametrize(
    "name",
    [
        # The user's own functions, whatever their names are like.
        "augment", "Photos.__getitem__", "mine.blur", "collate", "mine.walk", "walk", "mycsv.read",
        "Generator.forward", "mine.decompress", "mine.random.draw",
        # Those of libraries that no advice fits.
        "Tensor.topk", "Tensor.multinomial", "Tensor.double_", "numpy.float_power",
        "scipy.lfilter", "scipy.gaussian_kde.__init__", "scipy.convolve",
        "lz4.decompress", "cv2.circle", "PIL.ImageDraw.line", "torchvision.ImageFolder.__init__",
    ],
)  # fmt: skip
def test_nothing_is_said_of_what_no_advice_fits(name):
    assert advice_for(name) == ""


WAITING = {
    # No decoder is faster at waiting for a disk, and no other operation on pixels.
    "": [
        "cv2.imread", "PIL.open", "torchvision.pil_loader", "numpy.load", "torch.load",
        "gzip.GzipFile.read", "zipfile.ZipFile.read", "cv2.resize",
    ],
    # What is done once is not waited for again.
    "read it once": ["pandas.read_csv"],
    "parse once": ["json.load"],
    "open it once": ["zipfile.ZipFile.__init__"],
    "list the files once": ["posix.listdir"],
    "in threads": ["requests.get"],
    "no process for each sample": ["subprocess.run"],
    "so that no other sample is read": ["h5py.Dataset.__getitem__"],
    "readahead=False": ["lmdb.Transaction.get"],
    "make samples on the CPU": ["Tensor.cpu"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "words"), pairs(WAITING))
def test_waiting_is_not_answered_as_computing_is(name, words):
    advice = advice_for(name, waits=True)
    assert words in advice and bool(words) == bool(advice)


def test_every_line_can_be_reached():
    names = [name.partition(" in ")[0] for name, _ in pairs(ADVISED)]
    reached = {next(one for one in IN_SAMPLE if re.match(one.functions, name)) for name in names}
    assert reached == set(IN_SAMPLE)


# All names of code in the advice, as the documentation of their libraries has them.
APIS = {
    # torch, torchvision, timm, tqdm
    "x.float", "div_", "torch.from_numpy", "torch.stack", "collate_fn", "torchvision.transforms.v2",
    "ImageFolder", "loader=", "torch._foreach_lerp_", "AveragedModel", "multi_avg_fn=",
    "torch.optim.swa_utils.get_ema_multi_avg_fn", "timm.utils.ModelEmaV3", "foreach=",
    "set_postfix", "refresh=", "tqdm", "mininterval=",
    # PIL, OpenCV, simplejpeg
    "image.draft", "cv2.resize", "cv2.imread", "cv2.imdecode", "cv2.setNumThreads",
    "cv2.IMREAD_COLOR_RGB", "IMREAD_REDUCED_COLOR_2", "simplejpeg.decode_jpeg", "min_height=",
    "min_width=", "VideoCapture.grab",
    # NumPy, pandas, files
    "np.load", "mmap_mode=", "rng.random", "to_numpy", "frame.groupby", "ZipFile",
    "zipfile.ZIP_STORED", "member.offset_data", "os.pread", "chunks=", "env.begin", "buffers=",
    "lmdb.open", "readahead=",
}  # fmt: skip


def test_the_advice_names_nothing_that_does_not_exist():
    sentences = {text for advice in IN_SAMPLE for text in advice[1:]}
    sentences |= {text for _, text in IN_STEP}
    code = r"[A-Za-z_][\w.]*(?=\()|\b[A-Za-z]\w*(?:\.\w*[A-Za-z_]\w*)+|\w+=(?!=)|\w*_\w+"
    names = {name for text in sentences for name in re.findall(code, text)}
    assert names == APIS


@pytest.mark.parametrize(
    "text", sorted({each for advice in IN_SAMPLE for each in advice[1:] if each}, key=str), ids=str
)
def test_a_sentence_begins_small_and_ends_without_a_full_stop(text):
    assert not text.endswith(".") and len(text) < 160


IN_A_STEP = {
    "multi_avg_fn=": ["torch.AveragedModel.update_parameters"],
    "ModelEmaV3": ["timm.ModelEmaV2._update"],
    "every 10 steps": ["timm.ModelEmaV3.update"],
    "torch._foreach_lerp_": [
        "update_ema", "ema_step", "moving_average", "ModelEMA.update",
        "ultralytics.ModelEMA.update", "diffusers.EMAModel.step",
    ],
    "refresh=False": ["tqdm.tqdm.set_postfix"],
    "once per epoch": [
        "sklearn.average_precision_score", "torchmetrics.MulticlassAccuracy.forward",
    ],
    "every 100 steps": ["matplotlib.Figure.savefig"],
    "": [
        "schema_of", "AverageMeter.update", "EMATrainer.training_step", "train_with_ema",
        "average_precision", "train_step",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "words"), pairs(IN_A_STEP))
def test_of_a_step_what_averages_reports_and_counts_gets_advice(name, words):
    advice = advice_in_step(name)
    assert words in advice and bool(words) == bool(advice)


# --- real functions, in a real loader -----------------------------------------------------------

PIXELS = np.random.default_rng(0).integers(0, 256, (400, 600, 3), np.uint8)
TEXT = json.dumps(list(range(20_000)))


class Files(Dataset):
    """Makes every sample by the same function of a file."""

    def __init__(self, make, path):
        self.make, self.path = make, path

    def __len__(self):
        return 64

    def __getitem__(self, i):
        self.make(self)  # as a method: what it calls are stages
        return i


def write_zip(path, compression, members):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def write_tar(path):
    with tarfile.open(path, "w") as archive:
        for number in range(500):
            archive.addfile(tarfile.TarInfo(f"{number}.txt"))


def write_photo(path):
    path.write_bytes(cv2.imencode(".jpg", PIXELS)[1].tobytes())


def write_hdf5(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("pixels", data=PIXELS, compression="gzip")


FRAME = pd.DataFrame({"image": np.arange(200_000) % 1000, "label": 1})
PICTURE, TURN = Image.fromarray(PIXELS), np.eye(2, 3)
MANY = {f"{number}.txt": b"text" for number in range(2000)}
# Words of the advice; what writes a file, and what makes a sample of it.
REAL = {
    "gzip": ("store it uncompressed",
             lambda path: path.write_bytes(gzip.compress(PIXELS.tobytes())),
             lambda files: gzip.open(files.path).read()),
    "bz2": ("store it uncompressed",
            lambda path: path.write_bytes(bz2.compress(20 * TEXT.encode())),
            lambda files: bz2.open(files.path).read()),
    "lzma": ("store it uncompressed",
             lambda path: path.write_bytes(lzma.compress(20 * TEXT.encode())),
             lambda files: lzma.open(files.path).read()),
    "large zip": ("open it once in each worker",
                  lambda path: write_zip(path, zipfile.ZIP_STORED, MANY),
                  lambda files: zipfile.ZipFile(files.path).read("7.txt")),
    "compressed zip": ("ZIP_STORED",
                       lambda path: write_zip(path, zipfile.ZIP_DEFLATED, {"a": PIXELS.tobytes()}),
                       lambda files: zipfile.ZipFile(files.path).read("a")),
    "tar": ("os.pread", write_tar,
            lambda files: tarfile.open(files.path).extractfile("499.txt").read()),
    "json": ("parse once",
             lambda path: path.write_text(TEXT), lambda files: json.load(files.path.open())),
    "csv": ("read it once",
            lambda path: FRAME[:20_000].to_csv(path), lambda files: pd.read_csv(files.path)),
    "frame": ("groupby('key').indices", Path.touch, lambda files: FRAME[FRAME["image"] == 7]),
    "npz": (".npy instead of .npz",
            lambda path: np.savez_compressed(path.open("wb"), pixels=PIXELS),
            lambda files: np.load(files.path)["pixels"]),
    "pickle": ("not a pickle per sample",
               lambda path: path.write_bytes(pickle.dumps([str(n) for n in range(50_000)])),
               lambda files: pickle.load(files.path.open("rb"))),
    "hdf5": ("chunks of one sample", write_hdf5, lambda files: h5py.File(files.path)["pixels"][7]),
    "PIL": ("simplejpeg or cv2.imdecode", write_photo,
            lambda files: np.asarray(Image.open(files.path).convert("RGB"))),
    "resize": ("store images at the size", Path.touch, lambda files: PICTURE.resize((300, 200))),
    "OpenCV": ("IMREAD_REDUCED_COLOR_2", write_photo, lambda files: cv2.imread(str(files.path))),
    "warp": ("decode at a reduced size", Path.touch,
             lambda files: cv2.warpAffine(PIXELS, TURN, (600, 400), flags=cv2.INTER_LANCZOS4)),
}  # fmt: skip


def slowest_stage(make, path):
    files = Files(make, path)
    make(files)  # imports what it needs
    return probe_stages(DataLoader(files, batch_size=4), seconds=0.3).stages[0]


@pytest.mark.alone
@pytest.mark.parametrize(("words", "write", "make"), REAL.values(), ids=REAL)
def test_a_real_functions_name_leads_to_its_advice(words, write, make, tmp_path):
    write(tmp_path / "sample")
    slowest = slowest_stage(make, tmp_path / "sample")
    assert slowest.wait_s < slowest.cpu_s
    assert words in (advice_for(slowest.reader) or advice_for(slowest.name))


def load(path):
    return Image.open(path).convert("RGB")


def load_image(path):
    return Image.open(path).convert("RGB")


def shrink(pixels):
    return cv2.resize(pixels, (300, 200), interpolation=cv2.INTER_LANCZOS4)


class Shrink:
    def __call__(self, pixels):
        return shrink(pixels)


def count_bright(pixels):
    flat = np.ravel(pixels)[:20_000]
    return sum(1 for value in flat if value > 127)


SHRINK = Shrink()


@pytest.mark.alone
@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (lambda files: load(files.path), "PIL.Image.convert in test_advice.load",
         "simplejpeg or cv2.imdecode"),
        (lambda files: load_image(files.path), "PIL.Image.convert in test_advice.load_image",
         "simplejpeg or cv2.imdecode"),
        (lambda files: shrink(PIXELS), "cv2.resize in test_advice.shrink",
         "decode at a reduced size"),
        (lambda files: SHRINK(PIXELS), "cv2.resize in test_advice.Shrink",
         "decode at a reduced size"),
        (lambda files: count_bright(PIXELS), "test_advice.count_bright", ""),
    ],
    ids=["load", "load_image", "shrink", "an object", "a loop"],
)  # fmt: skip
def test_what_the_users_own_function_mostly_calls_is_named_with_it(make, name, words, tmp_path):
    write_photo(tmp_path / "photo.jpg")
    slowest = slowest_stage(make, tmp_path / "photo.jpg")
    assert slowest.name == name
    advice = advice_for(slowest.name)
    assert words in advice and bool(words) == bool(advice)


class Late(Dataset):
    """Texts from a pipe that another thread fills late, as a disk or a server does."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        end, begin = os.pipe()
        threading.Thread(target=write_late, args=(begin,)).start()
        with os.fdopen(end) as file:
            return len(json.load(file))


def write_late(begin):
    time.sleep(0.01)
    with os.fdopen(begin, "w") as file:
        file.write("[1, 2, 3]")


@pytest.mark.alone
def test_a_real_function_that_waits_gets_the_advice_for_waiting():
    slowest = probe_stages(DataLoader(Late(), batch_size=4), seconds=0.3).stages[0]
    assert slowest.name == "json.load"
    assert slowest.wait_s > slowest.cpu_s
    assert "parse once" in advice_for(slowest.name, waits=True)
