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
    ],
)
def test_a_known_function_gets_advice(name, words):
    assert words in advice_for(name)


@pytest.mark.parametrize("name", ["augment", "Photos.__getitem__", "mine.blur", "collate"])
def test_nothing_is_said_of_the_users_own_functions(name):
    assert advice_for(name) == ""


def test_every_line_can_be_reached():
    assert len(ADVICE) >= 30
    assert len({text for _, text in ADVICE}) > 20
