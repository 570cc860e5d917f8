"""What to write instead of functions that take much of a sample's time.

A line names functions as `tracer` does, "PIL.Image.resize" or "Tensor.float", and what an expert
would do about them.  For all other functions nothing is known, and nothing is said.
"""

from __future__ import annotations

import re

KEEP_UINT8 = "keep pixels uint8, and convert the batch on the device: x.float().div_(255)"
ON_DEVICE = "do it for the whole batch on the device"
CROP_FIRST = "crop and resize first, so that it touches fewer pixels, or do it on the device"
OPEN_ONCE = "open it once in each worker, at its first sample, not for each sample"
FETCH_AHEAD = "fetch several at once in threads, keep the connection open, or read larger shards"

ADVICE = (
    (r"PIL\.Image\.(resize|thumbnail|reduce)|torchvision\.Resize",
     "decode fewer pixels (image.draft('RGB', size) before it), store images at the size that is "
     "trained on, or cv2.resize on an array"),
    (r"PIL\..*(convert|load|open|draft|decode)|imageio\.",
     "decode with simplejpeg or cv2.imdecode, or store images at the size that is trained on"),
    (r"PIL\.(Image\.(crop|rotate|transpose|transform|filter)$|_Enhance\.|GaussianBlur\.)",
     CROP_FIRST),
    (r"cv2\.(imread|imdecode)",
     "decode with simplejpeg, or at half the size where that is enough (IMREAD_REDUCED_COLOR_2)"),
    (r"cv2\.(resize|warp|remap)",
     "decode at a reduced size (IMREAD_REDUCED_COLOR_2), so that less is resized; "
     "cv2.setNumThreads(0) in workers"),
    (r"cv2\.cvtColor$",
     "convert after resizing, or decode to RGB at once: simplejpeg.decode_jpeg, or "
     "cv2.IMREAD_COLOR_RGB"),
    (r"cv2\.(GaussianBlur|blur|boxFilter|medianBlur|bilateralFilter|filter2D|sepFilter2D)$",
     CROP_FIRST),
    (r"torchvision\.(ToTensor|PILToTensor|ToImage|ToDtype|ConvertImageDtype)", KEEP_UINT8),
    (r"(torchvision|albumentations)\.(Normalize|ToFloat)|torchvision\..*normalize", ON_DEVICE),
    (r"torchvision\.(ColorJitter|GaussianBlur|RandAugment|AutoAugment|TrivialAugment|RandomErasing"
     r"|RandomRotation|RandomAffine|RandomPerspective|ElasticTransform)",
     "torchvision.transforms.v2 on uint8 tensors after cropping, or " + ON_DEVICE),
    (r"torchvision\.(RandomResizedCrop|CenterCrop|RandomCrop|RandomHorizontalFlip)",
     "crop before anything else, on uint8; or crop and flip on the device"),
    (r"albumentations\.", "crop first, on uint8 arrays; cv2.setNumThreads(0) in workers"),
    (r"Tensor\.(float|double|half|to|(div|sub|mul)_?)$|ndarray\.astype$|numpy\.float(16|32|64)$",
     KEEP_UINT8),
    (r"Tensor\.(cpu|cuda)$",
     "make samples on the CPU, and copy whole batches to the device in the training loop"),
    (r"Tensor\.(permute|transpose|view|reshape|unsqueeze|squeeze|expand|flip|contiguous|clone)$"
     r"|ndarray\.(transpose|reshape|copy)$|numpy\.(ascontiguousarray|transpose|copy)$",
     "collate as it is stored, and reshape or permute the batch on the device"),
    (r"torch\.(tensor|as_tensor)$|numpy\.(array|asarray|stack|concatenate)$",
     "make one array when the data set is made, and return views: torch.from_numpy(array[i])"),
    (r"(torch|numpy)\.(zeros|ones|full|empty|eye)",
     "make it once and reuse it, or make it on the device"),
    (r"torch\.(stack|cat|default_collate|collate)$",
     "return tensors of one shape from the data set, and nothing but torch.stack in collate_fn"),
    (r"pandas\.", "look values up in a NumPy array that is made once: frame['column'].to_numpy()"),
    (r"json\.|orjson\.|ujson\.|yaml\.|xml\.|csv\.|numpy\.(loadtxt|genfromtxt)",
     "parse once, when the data set is made, and keep arrays"),
    (r"(gzip|bz2|lzma|Decompress|BZ2Decompressor|LZMADecompressor)\.|zlib\.decompress",
     "store it uncompressed, or compressed with lz4 or zstd, which decompress much faster"),
    (r"(zipfile\.ZipFile|tarfile\.TarFile|h5py\.File)\.__init__|tarfile\.(TarFile\.)?\w*open$"
     r"|lmdb\.(open|Environment)$|sqlite3\.connect$", OPEN_ONCE),
    (r"h5py\.", "store chunks of one sample, chunks=(1, …), without compression"),
    (r"lmdb\.", "one environment for each worker, with readahead=True"),
    (r"sqlite3\.", "one connection for each worker, and many rows with each query"),
    (r"numpy\.(load$|lib\.)|(numpy\.)?NpzFile\b",
     "np.load(path, mmap_mode='r') once, .npy instead of .npz"),
    (r"torch\.(load$|serialization)|pickle\.|(pickle\.)?Unpickler\.|joblib\.",
     "one array file that is mapped, np.load(path, mmap_mode='r'), not a pickle per sample"),
    # Names have the package alone, so these are the functions of scipy.ndimage.
    (r"skimage\.|scipy\.(ndimage\.|(zoom|rotate|shift|affine_transform|geometric_transform|sobel"
     r"|map_coordinates|gaussian_(filter|laplace|gradient_magnitude)|uniform_filter|median_filter"
     r"|(grey|binary)_(dilation|erosion|opening|closing)|distance_transform_edt)(1d)?$)",
     "OpenCV has most of these functions, for uint8 arrays, and faster"),
    (r"random\.|numpy\.random|RandomState\."
     r"|Generator\.(random|integers|normal|uniform|choice|permutation|shuffle|standard_normal)$",
     "draw for many samples at once: rng.random(n)"),
    (r"(os|posix|nt|glob|pathlib|\w+path)\.(\w+\.)*"
     r"(listdir|scandir|i?glob1?|_iterdir|rglob|iterdir|_?walk|exists|is_file|isfile|isdir)$",
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
"""Pattern of the beginning of a function's name -> what to write instead."""


def advice_for(name: str) -> str:
    """Return what to write instead of a function; "" where nothing is known of it.

    Examples:
        >>> advice_for("pandas.DataFrame.__getitem__").partition(":")[0]
        'look values up in a NumPy array that is made once'
        >>> advice_for("own.augment")
        ''
    """
    function = name.partition(" in ")[0]  # a read's name ends with the transform it is part of
    return next((text for pattern, text in ADVICE if re.match(pattern, function)), "")
