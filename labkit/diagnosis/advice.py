"""What to write instead of functions that take much time, in making a sample or in a step.

A line names functions as `tracer` does, "PIL.Image.resize" or "Tensor.float", and what an expert
would do about them where they compute, and where they wait: a faster disk does not help what
computes, nor a faster decoder what waits for a disk.  For all other functions nothing is known, and
nothing is said.
"""

from __future__ import annotations

import re
from typing import NamedTuple

KEEP_UINT8 = "keep pixels uint8, and convert the batch on the device: x.float().div_(255)"
CROP_FIRST = "crop and resize first, so that it touches fewer pixels, or do it on the device"
FEWER_PIXELS = (
    "decode fewer pixels (image.draft('RGB', size) before it), store images at the size that is "
    "trained on, or cv2.resize on an array"
)
RESHAPE_BATCH = "collate as it is stored, and reshape or permute the batch on the device"
UNCOMPRESSED = "store it uncompressed, or compressed with lz4 or zstd, which decompress much faster"


class Advice(NamedTuple):
    """What to write instead of some functions; "" where nothing is known."""

    functions: str
    """Pattern of the beginning of their names."""
    computing: str = ""
    """Where they mostly compute."""
    waiting: str = ""
    """Where they mostly wait: for a disk, a server, another process."""
    always: str = ""
    """The same in both cases."""


# The first line that fits counts.
IN_SAMPLE = (
    # --- pixels
    Advice(r"torchvision\.(pil_loader|default_loader|accimage_loader)$",
           "ImageFolder(root, loader=…) with a function that decodes with simplejpeg or "
           "cv2.imread, or store images at the size that is trained on"),
    Advice(r"torchvision\.(decode_(image|jpeg|png|webp)|read_image)$",
           "decode JPEG at a reduced size, simplejpeg.decode_jpeg(data, min_height=…, "
           "min_width=…), or store images at the size that is trained on"),
    # Versions 1 and 2 of torchvision, classes and functions.
    Advice(r"torchvision\.(Resize|ScaleJitter|RandomShortestSize|RandomResize|resize)(_\w+)?$",
           FEWER_PIXELS),
    Advice(r"torchvision\.(ToTensor|PILToTensor|ToImage(Tensor)?|ToDtype|ConvertImageDtype"
           r"|to_tensor|pil_to_tensor|to_image(_tensor)?|to_dtype|convert_image_dtype)",
           KEEP_UINT8),
    Advice(r"(torchvision|albumentations)\.(Normalize|ToFloat)|torchvision\.normalize",
           "do it for the whole batch on the device"),
    Advice(r"torchvision\.(ColorJitter|GaussianBlur|GaussianNoise|RandAugment|AutoAugment|AugMix"
           r"|TrivialAugment|RandomErasing|RandomRotation|RandomAffine|RandomPerspective"
           r"|ElasticTransform|RandomPhotometricDistort|RandomAdjustSharpness|RandomAutocontrast"
           r"|RandomEqualize|RandomPosterize|RandomSolarize|RandomGrayscale|Grayscale|adjust_\w+"
           r"|gaussian_blur|rotate|affine|perspective|elastic(_transform)?|erase|autocontrast"
           r"|equalize|posterize|solarize|rgb_to_grayscale|to_grayscale)",
           "torchvision.transforms.v2 on uint8 tensors after cropping, or do it for the whole "
           "batch on the device"),
    Advice(r"torchvision\.(RandomResizedCrop|CenterCrop|RandomCrop|RandomIoUCrop|FiveCrop|TenCrop"
           r"|Random(Horizontal|Vertical)Flip|crop|center_crop|resized_crop|[hv]flip"
           r"|(horizontal|vertical)_flip|five_crop|ten_crop)",
           "crop before anything else, on uint8; or crop and flip on the device"),
    Advice(r"PIL\.(Image\.(resize|thumbnail|reduce)|fit|contain|cover|pad|scale)$", FEWER_PIXELS),
    Advice(r"PIL\..*(convert|load|open|draft|decode)|imageio\.",
           "decode with simplejpeg or cv2.imdecode, or store images at the size that is trained "
           "on"),
    Advice(r"PIL\.(Image\.(crop|rotate|transpose|transform|filter|point|blend|paste)$|_Enhance\."
           r"|\w*Blur\.|UnsharpMask\.|(autocontrast|equalize|posterize|solarize|invert|colorize"
           r"|grayscale|exif_transpose)$)", CROP_FIRST),
    Advice(r"cv2\.(imread|imdecode)",
           "decode with simplejpeg, or at half the size where that is enough "
           "(IMREAD_REDUCED_COLOR_2)"),
    Advice(r"cv2\.(resize|warp|remap)|albumentations\.(\w*Resize|(Longest|Smallest)MaxSize)$",
           "decode at a reduced size (IMREAD_REDUCED_COLOR_2), so that less is resized; "
           "cv2.setNumThreads(0) in workers"),
    Advice(r"cv2\.cvtColor$",
           "convert after resizing, or decode to RGB at once: simplejpeg.decode_jpeg, or "
           "cv2.IMREAD_COLOR_RGB"),
    Advice(r"cv2\.(GaussianBlur|blur|boxFilter|medianBlur|bilateralFilter|filter2D|sepFilter2D"
           r"|fastNlMeansDenoising\w*|morphologyEx|erode|dilate|Canny)$", CROP_FIRST),
    Advice(r"albumentations\.ToTensorV2$", RESHAPE_BATCH),
    Advice(r"albumentations\.", "crop first, on uint8 arrays; cv2.setNumThreads(0) in workers"),
    # Names have the package alone, so these are the functions of scipy.ndimage.
    Advice(r"skimage\.|scipy\.(ndimage\.|(zoom|rotate|shift|affine_transform|geometric_transform"
           r"|sobel|map_coordinates|gaussian_(filter|laplace|gradient_magnitude)|uniform_filter"
           r"|median_filter|(grey|binary)_(dilation|erosion|opening|closing)"
           r"|distance_transform_edt)(1d)?$)",
           "OpenCV has most of these functions, for uint8 arrays, and faster"),
    Advice(r"pycocotools\.(COCO\.)?(annTo|decode|frPyObjects|merge)",
           "draw each mask once, and store it as a PNG file beside its image"),
    # --- arrays and tensors
    Advice(r"Tensor\.(float|double|half|to|(div|sub|mul)_?)$|ndarray\.astype$"
           r"|numpy\.float(16|32|64)$", KEEP_UINT8),
    Advice(r"Tensor\.(cpu|cuda)$",
           always="make samples on the CPU, and copy whole batches to the device in the training "
           "loop"),
    Advice(r"Tensor\.(permute|transpose|view|reshape|unsqueeze|squeeze|expand|flip|contiguous|clone"
           r"|movedim)$|ndarray\.(transpose|reshape|copy)$"
           r"|numpy\.(ascontiguousarray|transpose|copy|moveaxis|flip|fliplr|flipud|rot90)$",
           RESHAPE_BATCH),
    Advice(r"torch\.(tensor|as_tensor)$|numpy\.(array|asarray|stack|concatenate)$",
           "make one array when the data set is made, and return views: "
           "torch.from_numpy(array[i])"),
    Advice(r"(torch|numpy)\.(zeros|ones|full|empty|eye)",
           "make it once and reuse it, or make it on the device"),
    Advice(r"torch\.(stack|cat|default_collate|collate)$",
           "return tensors of one shape from the data set, and nothing but torch.stack in "
           "collate_fn"),
    Advice(r"(Tensor|TensorBase)\.(item|tolist|numpy)$|ndarray\.(tolist|item)$",
           "operations on whole arrays instead of Python numbers"),
    Advice(r"random\.|numpy\.random|RandomState\."
           r"|Generator\.(random|integers|normal|uniform|choice|permutation|shuffle"
           r"|standard_normal)$",
           "draw for many samples at once: rng.random(n)"),
    Advice(r"copy\.(deepcopy|copy)", "return new objects instead of copies"),
    # --- tables and texts
    Advice(r"pandas\.(read_\w+|TextFileReader)",
           always="read it once, when the data set is made, and keep NumPy arrays: "
           "frame['column'].to_numpy()"),
    Advice(r"pandas\.",
           "look values up in a NumPy array that is made once: frame['column'].to_numpy(); the "
           "rows of each key: frame.groupby('key').indices"),
    Advice(r"json\.|orjson\.|ujson\.|yaml\.|xml\.|csv\.|numpy\.(loadtxt|genfromtxt)",
           always="parse once, when the data set is made, and keep arrays"),
    # --- files
    Advice(r"(gzip|bz2|lzma|Decompress|BZ2Decompressor|LZMADecompressor)\.|zlib\.decompress",
           UNCOMPRESSED),
    Advice(r"(zipfile\.ZipFile|tarfile\.TarFile|h5py\.File)\.__init__|tarfile\.(TarFile\.)?\w*open$"
           r"|lmdb\.(open|Environment)$|sqlite3\.connect$",
           always="open it once in each worker, at its first sample, not for each sample"),
    Advice(r"zipfile\.(ZipFile\.(read|open)|ZipExtFile\.)",
           "store images as they are, ZipFile(path, 'w', zipfile.ZIP_STORED), as JPEG and PNG are "
           "compressed already"),
    Advice(r"tarfile\.",
           "note where each file begins, member.offset_data, and read it with os.pread; a search "
           "by name reads the whole archive"),
    Advice(r"h5py\.",
           "store chunks of one sample, chunks=(1, …), without compression",
           "store chunks of one sample, chunks=(1, …), so that no other sample is read"),
    Advice(r"lmdb\.",
           "one environment for each worker, and env.begin(buffers=True), which copies nothing",
           "lmdb.open(path, readahead=False) where the file is larger than memory"),
    Advice(r"sqlite3\.",
           always="one connection for each worker, and many rows with each query"),
    Advice(r"numpy\.(load$|lib\.)|(numpy\.)?NpzFile\b",
           "np.load(path, mmap_mode='r') once, .npy instead of .npz"),
    Advice(r"torch\.(load$|serialization)|pickle\.|(pickle\.)?Unpickler\.|joblib\.",
           "one array file that is mapped, np.load(path, mmap_mode='r'), not a pickle per sample"),
    Advice(r"(os|posix|nt|glob|pathlib|\w+path)\.(\w+\.)*"
           r"(listdir|scandir|i?glob1?|_iterdir|rglob|iterdir|_?walk|exists|is_file|isfile|isdir)$",
           always="list the files once, when the data set is made"),
    Advice(r"(requests|urllib3?|http|socket|ssl|boto3|botocore|s3fs|gcsfs|fsspec|aiohttp)\.",
           always="fetch several at once in threads, keep the connection open, or read larger "
           "shards"),
    Advice(r"subprocess\.",
           always="start no process for each sample: convert the files once, or call a library"),
    # --- audio and video
    Advice(r"librosa\.|torchaudio\.|soundfile\.",
           "store decoded or resampled audio; spectrograms for the whole batch on the device"),
    Advice(r"(cv2\.)?VideoCapture\.",
           "skip frames with VideoCapture.grab(), which does not convert them, or store the frames "
           "that are used"),
    Advice(r"decord\.|av\.|torchcodec\.",
           "decode only the frames that are used, and seek to keyframes"),
)  # fmt: skip
"""Functions that make samples: "torchvision.Resize", "PIL.Image.resize"."""

# Names are searched in lower case with words apart, "timm.model_ema_v2.update".
IN_STEP = (
    (r"^torch\.averaged_model\.",
     "AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay)), which "
     "averages all weights in one call, or only every 10 steps"),
    (r"^timm\.model_ema",
     "timm.utils.ModelEmaV3(model, foreach=True), which averages all weights in one call, or only "
     "every 10 steps"),
    (r"(^|[._])(?<!with_)(ema|swa|polyak)(_\w+)?$"  # functions
     r"|(^|[._])(ema|swa|averaged)(_model|_v\d)?\._?(update|step|average)\w*$"  # methods
     r"|moving_average(\.\w+)?$|average_(model|weights)\w*$",
     "average all weights in one call, torch._foreach_lerp_(averages, weights, 1 - decay), or only "
     "every 10 steps"),
    (r"^tqdm\.", "set_postfix(…, refresh=False), and tqdm(…, mininterval=1)"),
    (r"^(sklearn|torchmetrics|pycocotools)\.",
     "collect what the metrics need, and compute them once per epoch"),
    (r"^(matplotlib|seaborn|plotly)\.", "draw only every 100 steps, or after the epoch"),
)  # fmt: skip
"""Functions of a step: pattern of a name -> what to write instead."""


def advice_for(name: str, *, waits: bool = False) -> str:
    """Return what to write instead of a function that makes samples; "" where nothing is known.

    Args:
        name: as of a `Stage`.
        waits: whether it mostly waits, and does not compute.

    Examples:
        >>> advice_for("pandas.DataFrame.__getitem__").partition(":")[0]
        'look values up in a NumPy array that is made once'
        >>> advice_for("cv2.imread", waits=True)
        ''
        >>> advice_for("own.augment")
        ''
    """
    function = name.partition(" in ")[0]  # a read's name ends with the transform it is part of
    for advice in IN_SAMPLE:
        if re.match(advice.functions, function):
            return advice.always or (advice.waiting if waits else advice.computing)
    return ""


def advice_in_step(name: str) -> str:
    """Return what to write instead of a function that a step calls; "" where nothing is known.

    >>> advice_in_step("tqdm.tqdm.set_postfix")
    'set_postfix(…, refresh=False), and tqdm(…, mininterval=1)'
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    return next((text for pattern, text in IN_STEP if re.search(pattern, words)), "")
