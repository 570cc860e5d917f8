"""What is said of a function is what an expert would say, or nothing."""

import pytest

from labkit.diagnosis.advice import ADVICE, advice_for


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("PIL.Image.resize", "image.draft"),
        ("PIL.Image.convert", "simplejpeg or cv2.imdecode"),
        ("cv2.imdecode", "IMREAD_REDUCED_COLOR_2"),
        ("torchvision.ToTensor", "keep pixels uint8"),
        ("torchvision.Normalize", "on the device"),
        ("torchvision.ColorJitter", "transforms.v2"),
        ("albumentations.ShiftScaleRotate", "crop first"),
        ("pandas.DataFrame.__getitem__", "to_numpy()"),
        ("json.loads", "parse once"),
        ("gzip.GzipFile.read", "uncompressed"),
        ("zipfile.ZipFile.__init__", "open it once in each worker"),
        ("h5py.Dataset.__getitem__", "chunks of one sample"),
        ("lmdb.Transaction.get", "one environment for each worker"),
        ("numpy.load", "mmap_mode"),
        ("torch.stack", "collate_fn"),
        ("torch.zeros", "make it once"),
        ("Tensor.float", "keep pixels uint8"),
        ("ndarray.astype", "keep pixels uint8"),
        ("requests.get", "in threads"),
        ("numpy.random.rand", "many samples at once"),
        ("Generator.random", "many samples at once"),
        ("scipy.gaussian_filter1d", "OpenCV has most"),
        ("skimage.resize", "OpenCV has most"),
        ("posix.listdir", "list the files once"),
        ("os.walk", "list the files once"),
        ("os._walk", "list the files once"),
        ("posix.scandir in os._walk", "list the files once"),
        ("tarfile.TarFile.open in crop", "open it once in each worker"),
        ("pathlib.Path.iterdir", "list the files once"),
        ("tarfile.TarFile.gzopen", "open it once in each worker"),
        ("NpzFile.__getitem__", ".npy instead of .npz"),
        ("numpy.NpzFile.__getitem__", ".npy instead of .npz"),
        ("h5py.File.__init__", "open it once in each worker"),
        ("h5py.File.__getitem__", "chunks of one sample"),
        ("zlib.decompress", "uncompressed"),
        ("PIL.open", "simplejpeg or cv2.imdecode"),
        ("PIL.Image.crop", "crop and resize first"),
        ("PIL.Image.rotate", "crop and resize first"),
        ("cv2.cvtColor", "convert after resizing"),
        ("cv2.GaussianBlur", "crop and resize first"),
        ("torch.tensor", "return views"),
        ("numpy.array", "return views"),
        ("numpy.stack", "return views"),
        ("torch.default_collate", "tensors of one shape"),
        ("Tensor.view", "reshape or permute the batch"),
        ("Tensor.cpu", "make samples on the CPU"),
        ("Tensor.item", "instead of Python numbers"),
        ("Tensor.tolist", "instead of Python numbers"),
        ("Tensor.mul_", "keep pixels uint8"),
    ],
)
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
        "zipfile.ZipFile.read", "zipfile.ZipFile.open", "tarfile.TarFile.extractfile",
        "lz4.decompress",
    ],
)  # fmt: skip
def test_nothing_is_said_of_what_an_advice_does_not_fit(name):
    assert advice_for(name) == ""


def test_every_line_can_be_reached():
    assert len(ADVICE) >= 30
    assert len({text for _, text in ADVICE}) > 20
