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

import cv2
import h5py
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from labkit.diagnosis.advice import IN_SAMPLE, IN_STEP, advice_for, advice_in_step
from labkit.diagnosis.probe import probe_stages

KNOWN = [
    # --- pixels
    ("torchvision.pil_loader", "ImageFolder(root, loader=…)"),
    ("torchvision.decode_image", "simplejpeg.decode_jpeg(data, min_height=…"),
    ("torchvision.ToTensor", "keep pixels uint8"),
    ("torchvision.to_tensor", "keep pixels uint8"),
    ("torchvision.ToDtype", "keep pixels uint8"),
    ("torchvision.Normalize", "on the device"),
    ("torchvision.normalize", "on the device"),
    ("torchvision.Resize", "image.draft"),
    ("torchvision.resize", "image.draft"),
    ("torchvision.RandomShortestSize", "image.draft"),
    ("torchvision.ColorJitter", "transforms.v2"),
    ("torchvision.adjust_hue", "transforms.v2"),
    ("torchvision.gaussian_blur", "transforms.v2"),
    ("torchvision.RandomPhotometricDistort", "transforms.v2"),
    ("torchvision.RandomResizedCrop", "crop before anything else"),
    ("torchvision.resized_crop", "crop before anything else"),
    ("torchvision.hflip", "crop before anything else"),
    ("PIL.Image.resize", "image.draft"),
    ("PIL.fit", "image.draft"),
    ("PIL.Image.convert", "simplejpeg or cv2.imdecode"),
    ("PIL.open", "simplejpeg or cv2.imdecode"),
    ("PIL.Image.crop", "crop and resize first"),
    ("PIL.Image.rotate", "crop and resize first"),
    ("PIL.autocontrast", "crop and resize first"),
    ("cv2.imread", "IMREAD_REDUCED_COLOR_2"),
    ("cv2.imdecode", "IMREAD_REDUCED_COLOR_2"),
    ("cv2.resize", "decode at a reduced size"),
    ("cv2.cvtColor", "convert after resizing"),
    ("cv2.GaussianBlur", "crop and resize first"),
    ("albumentations.ShiftScaleRotate", "crop first"),
    ("albumentations.Normalize", "on the device"),
    ("albumentations.SmallestMaxSize", "decode at a reduced size"),
    ("albumentations.ToTensorV2", "reshape or permute the batch"),
    ("scipy.gaussian_filter1d", "OpenCV has most"),
    ("skimage.resize", "OpenCV has most"),
    ("pycocotools.COCO.annToMask", "draw each mask once"),
    # --- arrays and tensors
    ("Tensor.float", "keep pixels uint8"),
    ("Tensor.mul_", "keep pixels uint8"),
    ("ndarray.astype", "keep pixels uint8"),
    ("Tensor.cpu", "make samples on the CPU"),
    ("Tensor.view", "reshape or permute the batch"),
    ("Tensor.item", "instead of Python numbers"),
    ("Tensor.tolist", "instead of Python numbers"),
    ("torch.tensor", "return views"),
    ("numpy.array", "return views"),
    ("numpy.stack", "return views"),
    ("torch.zeros", "make it once"),
    ("torch.stack", "collate_fn"),
    ("torch.default_collate", "tensors of one shape"),
    ("numpy.random.rand", "many samples at once"),
    ("Generator.random", "many samples at once"),
    ("copy.deepcopy", "new objects"),
    # --- tables and texts
    ("pandas.read_csv", "read it once"),
    ("pandas.DataFrame.__getitem__", "to_numpy()"),
    ("pandas.DataFrame.__getitem__", "groupby('key').indices"),
    ("json.loads", "parse once"),
    ("csv.DictReader.__next__", "parse once"),
    # --- files
    ("gzip.GzipFile.read", "uncompressed"),
    ("BZ2Decompressor.decompress", "uncompressed"),
    ("zlib.decompress", "uncompressed"),
    ("zipfile.ZipFile.__init__", "open it once in each worker"),
    ("h5py.File.__init__", "open it once in each worker"),
    ("tarfile.TarFile.gzopen", "open it once in each worker"),
    ("tarfile.TarFile.open in crop", "open it once in each worker"),
    ("zipfile.ZipFile.read", "ZIP_STORED"),
    ("tarfile.TarFile.extractfile", "os.pread"),
    ("h5py.Dataset.__getitem__", "chunks of one sample"),
    ("h5py.File.__getitem__", "chunks of one sample"),
    ("lmdb.Transaction.get", "one environment for each worker"),
    ("sqlite3.Cursor.execute", "many rows with each query"),
    ("numpy.load", "mmap_mode"),
    ("NpzFile.__getitem__", ".npy instead of .npz"),
    ("numpy.NpzFile.__getitem__", ".npy instead of .npz"),
    ("pickle.load", "not a pickle per sample"),
    ("torch.load", "not a pickle per sample"),
    ("posix.listdir", "list the files once"),
    ("os.walk", "list the files once"),
    ("os._walk", "list the files once"),
    ("posix.scandir in os._walk", "list the files once"),
    ("pathlib.Path.iterdir", "list the files once"),
    ("requests.get", "in threads"),
    ("subprocess.run", "no process for each sample"),
    # --- audio and video
    ("librosa.resample", "decoded or resampled audio"),
    ("VideoCapture.read", "VideoCapture.grab()"),
    ("decord.VideoReader.get_batch", "decode only the frames"),
]


@pytest.mark.parametrize(("name", "words"), KNOWN)
def test_a_known_function_gets_advice(name, words):
    assert words in advice_for(name)


@pytest.mark.parametrize(
    "name",
    [
        "augment", "Photos.__getitem__", "mine.blur", "collate", "mine.walk", "walk", "mycsv.read",
        "Generator.forward", "mine.decompress", "mine.random.draw",
    ],
)  # fmt: skip
def test_nothing_is_said_of_the_users_own_functions(name):
    assert advice_for(name) == ""


@pytest.mark.parametrize(
    "name",
    [
        "Tensor.topk", "Tensor.multinomial", "Tensor.double_", "numpy.float_power",
        "scipy.lfilter", "scipy.gaussian_kde.__init__", "scipy.convolve",
        "lz4.decompress", "cv2.circle", "PIL.ImageDraw.line", "torchvision.ImageFolder.__init__",
    ],
)  # fmt: skip
def test_nothing_is_said_of_what_an_advice_does_not_fit(name):
    assert advice_for(name) == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # No decoder is faster at waiting for a disk, and no other operation on pixels.
        ("cv2.imread", ""),
        ("PIL.open", ""),
        ("torchvision.pil_loader", ""),
        ("numpy.load", ""),
        ("torch.load", ""),
        ("gzip.GzipFile.read", ""),
        ("zipfile.ZipFile.read", ""),
        ("cv2.resize", ""),
        # What is done once is not waited for again.
        ("pandas.read_csv", "read it once"),
        ("json.load", "parse once"),
        ("zipfile.ZipFile.__init__", "open it once"),
        ("posix.listdir", "list the files once"),
        ("requests.get", "in threads"),
        ("subprocess.run", "no process for each sample"),
        ("h5py.Dataset.__getitem__", "so that no other sample is read"),
        ("lmdb.Transaction.get", "readahead=False"),
        ("Tensor.cpu", "make samples on the CPU"),
    ],
)
def test_waiting_is_not_answered_as_computing_is(name, words):
    advice = advice_for(name, waits=True)
    assert words in advice and bool(words) == bool(advice)


def test_every_line_can_be_reached():
    names = [name.partition(" in ")[0] for name, _ in KNOWN]
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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch.AveragedModel.update_parameters", "multi_avg_fn="),
        ("timm.ModelEmaV2._update", "ModelEmaV3"),
        ("timm.ModelEmaV3.update", "every 10 steps"),
        ("update_ema", "torch._foreach_lerp_"),
        ("ema_step", "torch._foreach_lerp_"),
        ("moving_average", "torch._foreach_lerp_"),
        ("ModelEMA.update", "torch._foreach_lerp_"),
        ("ultralytics.ModelEMA.update", "torch._foreach_lerp_"),
        ("diffusers.EMAModel.step", "torch._foreach_lerp_"),
        ("tqdm.tqdm.set_postfix", "refresh=False"),
        ("sklearn.average_precision_score", "once per epoch"),
        ("torchmetrics.MulticlassAccuracy.forward", "once per epoch"),
        ("matplotlib.Figure.savefig", "every 100 steps"),
        ("schema_of", ""),
        ("AverageMeter.update", ""),
        ("EMATrainer.training_step", ""),
        ("train_with_ema", ""),
        ("average_precision", ""),
        ("train_step", ""),
    ],
)
def test_of_a_step_what_averages_reports_and_counts_gets_advice(name, words):
    advice = advice_in_step(name)
    assert words in advice and bool(words) == bool(advice)


# --- real functions, in a real loader -----------------------------------------------------------

PIXELS = np.random.default_rng(0).integers(0, 256, (400, 600, 3), np.uint8)
TEXT = json.dumps(list(range(20_000)))


class Files(Dataset):
    """Makes every sample by the same function of a folder."""

    def __init__(self, make, folder):
        self.make, self.folder = make, folder

    def __len__(self):
        return 64

    def __getitem__(self, i):
        self.make(self)  # as a method: what it calls are stages
        return i


def gunzip(files):
    path = files.folder / "pixels.gz"
    if not path.exists():
        path.write_bytes(gzip.compress(PIXELS.tobytes()))
    with gzip.open(path) as file:
        file.read()


def unpack_bz2(files):
    path = files.folder / "pixels.bz2"
    if not path.exists():
        path.write_bytes(bz2.compress(20 * TEXT.encode()))
    with bz2.open(path) as file:
        file.read()


def unpack_lzma(files):
    path = files.folder / "pixels.xz"
    if not path.exists():
        path.write_bytes(lzma.compress(20 * TEXT.encode()))
    with lzma.open(path) as file:
        file.read()


def open_zip(files):
    path = files.folder / "many.zip"
    if not path.exists():
        with zipfile.ZipFile(path, "w") as archive:
            for n in range(2000):
                archive.writestr(f"{n}.txt", b"text")
    with zipfile.ZipFile(path) as archive:
        archive.read("7.txt")


def inflate_member(files):
    path = files.folder / "deflated.zip"
    if not path.exists():
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("pixels", PIXELS.tobytes())
    with zipfile.ZipFile(path) as archive:
        archive.read("pixels")


def search_tar(files):
    path = files.folder / "many.tar"
    if not path.exists():
        (files.folder / "small").write_bytes(b"text")
        with tarfile.open(path, "w") as archive:
            for n in range(500):
                archive.add(files.folder / "small", f"{n}.txt")
    with tarfile.open(path) as archive:
        archive.extractfile("499.txt").read()


def parse_json(files):
    path = files.folder / "numbers.json"
    if not path.exists():
        path.write_text(TEXT)
    with path.open() as file:
        json.load(file)


def read_csv(files):
    path = files.folder / "table.csv"
    if not path.exists():
        pd.DataFrame({"image": np.arange(20_000), "label": 1}).to_csv(path)
    pd.read_csv(path)


FRAME = pd.DataFrame({"image": np.arange(200_000) % 1000, "label": 1})


def search_frame(files):
    return FRAME[FRAME["image"] == 7]


def load_npz(files):
    path = files.folder / "pixels.npz"
    if not path.exists():
        np.savez_compressed(path, pixels=PIXELS)
    np.load(path)["pixels"]


def unpickle(files):
    path = files.folder / "numbers.pickle"
    if not path.exists():
        path.write_bytes(pickle.dumps([str(n) for n in range(50_000)]))
    with path.open("rb") as file:
        pickle.load(file)


def read_hdf5(files):
    path = files.folder / "pixels.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            file.create_dataset("pixels", data=PIXELS, compression="gzip")
    with h5py.File(path) as file:
        file["pixels"][7]


def photo(files):
    path = files.folder / "photo.jpg"
    if not path.exists():
        cv2.imwrite(str(path), PIXELS)
    return path


def use_pil(files):
    np.asarray(Image.open(photo(files)).convert("RGB"))


PICTURE = Image.fromarray(PIXELS)


def resize_with_pil(files):
    PICTURE.resize((300, 200))


def use_opencv(files):
    cv2.imread(str(photo(files)))


def warp(files):
    cv2.warpAffine(PIXELS, np.eye(2, 3), (600, 400), flags=cv2.INTER_LANCZOS4)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (gunzip, "store it uncompressed"),
        (unpack_bz2, "store it uncompressed"),
        (unpack_lzma, "store it uncompressed"),
        (open_zip, "open it once in each worker"),
        (inflate_member, "ZIP_STORED"),
        (search_tar, "os.pread"),
        (parse_json, "parse once"),
        (read_csv, "read it once"),
        (search_frame, "groupby('key').indices"),
        (load_npz, ".npy instead of .npz"),
        (unpickle, "not a pickle per sample"),
        (read_hdf5, "chunks of one sample"),
        (use_pil, "simplejpeg or cv2.imdecode"),
        (resize_with_pil, "store images at the size"),
        (use_opencv, "IMREAD_REDUCED_COLOR_2"),
        (warp, "decode at a reduced size"),
    ],
)
def test_a_real_functions_name_leads_to_its_advice(make, words, tmp_path):
    files = Files(make, tmp_path)
    make(files)
    found = probe_stages(DataLoader(files, batch_size=4), seconds=0.3)
    slowest = found.stages[0]
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


def use_load(files):
    load(photo(files))


def make_picture(files):
    load_image(photo(files))


def use_shrink(files):
    shrink(PIXELS)


SHRINK = Shrink()


def use_class(files):
    SHRINK(PIXELS)


def use_own_loop(files):
    count_bright(PIXELS)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (use_load, "PIL.Image.convert in test_advice.load", "simplejpeg or cv2.imdecode"),
        (make_picture, "PIL.Image.convert in test_advice.load_image",
         "simplejpeg or cv2.imdecode"),
        (use_shrink, "cv2.resize in test_advice.shrink", "decode at a reduced size"),
        (use_class, "cv2.resize in test_advice.Shrink", "decode at a reduced size"),
        (use_own_loop, "test_advice.count_bright", ""),
    ],
)  # fmt: skip
def test_what_the_users_own_function_mostly_calls_is_named_with_it(make, name, words, tmp_path):
    files = Files(make, tmp_path)
    make(files)
    slowest = probe_stages(DataLoader(files, batch_size=4), seconds=0.3).stages[0]
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
