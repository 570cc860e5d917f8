"""What to write instead of functions that take much of a sample's time.

A line names functions as `tracer` does, "PIL.Image.resize" or "Tensor.float", and what an expert
would do about them.  For all other functions nothing is known, and nothing is said.
"""

from __future__ import annotations

import re

KEEP_UINT8 = "keep pixels uint8, and convert the batch on the device: x.float().div_(255)"
ON_DEVICE = "do it for the whole batch on the device"
OPEN_ONCE = "open it once in each worker, at its first sample, not for each sample"
FETCH_AHEAD = "fetch several at once in threads, keep the connection open, or read larger shards"

ADVICE = (
    (r"PIL\.Image\.(resize|thumbnail|reduce)|torchvision\.Resize",
     "decode fewer pixels (image.draft('RGB', size) before it), store images at the size that is "
     "trained on, or cv2.resize on an array"),
    (r"PIL\..*(convert|load|open|draft|decode)|imageio\.",
     "decode with simplejpeg or cv2.imdecode, or store images at the size that is trained on"),
    (r"cv2\.(imread|imdecode)",
     "decode with simplejpeg, or at half the size where that is enough (IMREAD_REDUCED_COLOR_2)"),
    (r"cv2\.(resize|warp|remap)",
     "decode at a reduced size (IMREAD_REDUCED_COLOR_2), so that less is resized; "
     "cv2.setNumThreads(0) in workers"),
    (r"torchvision\.(ToTensor|PILToTensor|ToImage|ToDtype|ConvertImageDtype)", KEEP_UINT8),
    (r"(torchvision|albumentations)\.(Normalize|ToFloat)|torchvision\..*normalize", ON_DEVICE),
    (r"torchvision\.(ColorJitter|GaussianBlur|RandAugment|AutoAugment|TrivialAugment|RandomErasing"
     r"|RandomRotation|RandomAffine|RandomPerspective|ElasticTransform)",
     "torchvision.transforms.v2 on uint8 tensors after cropping, or " + ON_DEVICE),
    (r"torchvision\.(RandomResizedCrop|CenterCrop|RandomCrop|RandomHorizontalFlip)",
     "crop before anything else, on uint8; or crop and flip on the device"),
    (r"albumentations\.", "crop first, on uint8 arrays; cv2.setNumThreads(0) in workers"),
    (r"(Tensor\.(float|double|div|div_|sub|sub_|mul|to))|ndarray\.astype|numpy\.float", KEEP_UINT8),
    (r"Tensor\.(permute|transpose|contiguous|clone)|numpy\.(ascontiguousarray|transpose|copy)",
     "collate as it is stored, and permute the batch on the device"),
    (r"(torch|numpy)\.(zeros|ones|full|empty|eye)",
     "make it once and reuse it, or make it on the device"),
    (r"torch\.(stack|cat)|default_collate",
     "return tensors of one shape from the data set, and nothing but torch.stack in collate_fn"),
    (r"pandas\.", "look values up in a NumPy array that is made once: frame['column'].to_numpy()"),
    (r"json\.|orjson\.|ujson\.|yaml\.|xml\.|csv\.|numpy\.(loadtxt|genfromtxt)",
     "parse once, when the data set is made, and keep arrays"),
    (r"gzip\.|bz2\.|lzma\.|zlib\.|\bdecompress",
     "store it uncompressed, or compressed with lz4 or zstd, which decompress much faster"),
    (r"zipfile\.|tarfile\.|h5py\.File|lmdb\.open|lmdb\.Environment|sqlite3\.connect", OPEN_ONCE),
    (r"h5py\.", "store chunks of one sample, chunks=(1, …), without compression"),
    (r"lmdb\.", "one environment for each worker, with readahead=True"),
    (r"sqlite3\.", "one connection for each worker, and many rows with each query"),
    (r"numpy\.(load|lib)|NpzFile", "np.load(path, mmap_mode='r') once, .npy instead of .npz"),
    (r"torch\.(load|serialization)|pickle\.|Unpickler|joblib\.",
     "one array file that is mapped, np.load(path, mmap_mode='r'), not a pickle per sample"),
    (r"scipy\.|skimage\.", "OpenCV has most of these functions, for uint8 arrays, and faster"),
    (r"(^|\.)random\.|numpy\.random|RandomState\.|Generator\.",
     "draw for many samples at once: rng.random(n)"),
    (r"(listdir|scandir|glob|iterdir|walk|exists|is_file)\b",
     "list the files once, when the data set is made"),
    (r"(requests|urllib3?|http|socket|ssl|boto3|botocore|s3fs|gcsfs|fsspec|aiohttp)\.",
     FETCH_AHEAD),
    (r"copy\.(deepcopy|copy)", "return new objects instead of copies"),
    (r"(Tensor|TensorBase)\.(item|tolist|numpy)|ndarray\.tolist",
     "operations on whole arrays instead of Python numbers"),
    (r"librosa\.|torchaudio\.|soundfile\.",
     "store decoded or resampled audio; spectrograms for the whole batch on the device"),
    (r"decord\.|av\.|torchcodec\.", "decode only the frames that are used, and seek to keyframes"),
)  # fmt: skip
"""Pattern of a function's name -> what to write instead."""


def advice_for(name: str) -> str:
    """Return what to write instead of a function; "" where nothing is known of it.

    Examples:
        >>> advice_for("pandas.DataFrame.__getitem__").partition(":")[0]
        'look values up in a NumPy array that is made once'
        >>> advice_for("own.augment")
        ''
    """
    return next((text for pattern, text in ADVICE if re.search(pattern, name)), "")
