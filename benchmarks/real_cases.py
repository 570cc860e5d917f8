"""Slow-downs that real projects reported and fixed: `python -m benchmarks.diagnosis --real`.

    reported   in an issue or a pull request, with its cause and its fix
    rebuilt    in `real_samples` and `real_loops`, before and after the fix

The loops are written from the descriptions, with small synthetic data, two workers and a simulated
GPU.  The cause that the diagnosis names must be the project's; a gain depends on data and machine,
so it differs from the published one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import real_loops as loops
from benchmarks import real_samples as samples
from benchmarks.photo_training import Site


@dataclass(frozen=True, kw_only=True)
class RealCase:
    """A slow-down of a real project; between names that are right stands " or "."""

    make: Callable[[Site, bool], dict[str, object]]
    """Called with a site and `fixed`, returns the arguments of `lab.diagnose`."""
    source: str
    """Where it was reported: owner/project#number."""
    cause: str
    """What took the time, and how it was fixed, as the project describes it."""
    published: str = ""
    """The gain that the project names, or that follows from its figures; "" if there is none."""
    published_for: str = ""
    """What was measured for it."""
    bottleneck: str
    """The cause in the words of the diagnosis."""
    remedy: str
    """The fix in the words of the diagnosis."""
    changes: str = ""
    """What the fix changes in the samples; "" if it delivers the same ones."""


REAL_CASES = {
    case.make.__name__: case
    for case in (
        RealCase(
            make=samples.unused_images_decoded,
            source="huggingface/lerobot#2408",
            cause="actions of several frames were read from whole rows, with their images; "
            "they are read from their column",
            published="6×",
            published_for="200 steps took about 120 s, and less than 20 s before the slow-down",
            bottleneck="decode",
            remedy="faster decode",
        ),
        RealCase(
            make=samples.decoded_in_full_size,
            source="roboflow/rf-detr#1389",
            cause="JPEGs that are larger than needed were decoded in full and then made smaller; "
            "PIL.Image.draft decodes them at a reduced size",
            published="1.4× to 1.9×",
            published_for="decoding alone, in rf-detr#1473",
            bottleneck="decode or transform",  # smaller images are resized faster, too
            remedy="faster decode or faster transform",
            changes="pixels of the reduced size",
        ),
        RealCase(
            make=samples.table_row_per_window,
            source="braindecode/braindecode#89",
            cause="DataFrame.iloc for each window; targets and indices are kept in NumPy arrays",
            published="7×",
            published_for="the training of one example",
            bottleneck="transform",
            remedy="faster transform",
        ),
        RealCase(
            make=samples.distorted_before_crop,
            source="zisianw/FaceBoxes.PyTorch#21",
            cause="colours were distorted before the crop; they are after it",
            bottleneck="transform",
            remedy="faster transform",
        ),
        RealCase(
            make=samples.volume_copied_per_patch,
            source="TorchIO-project/torchio#1308",
            cause="the whole image was copied before a small patch was cropped; the patch is",
            bottleneck="transform",
            remedy="faster transform",
        ),
        RealCase(
            make=samples.compressed_slices,
            source="Lab41/attalos#39",
            cause="slices of a compressed HDF5 dataset were read; it is stored uncompressed",
            published="more than 90×",
            published_for="an iteration took about 90 s, and then much less than 1 s",
            bottleneck="reading",
            remedy="cheaper reads",
        ),
        RealCase(
            make=samples.file_opened_per_sample,
            source="ctlearn-project/ctlearn#2",
            cause="the HDF5 file was opened and closed for each example; it is opened once",
            published="1.4×",
            published_for="about 30 % less time for 1,000 examples",
            bottleneck="reading",
            remedy="cheaper reads",
        ),
        RealCase(
            make=samples.rows_one_by_one,
            source="huggingface/datasets#5512",
            cause="the rows of a batch were fetched one by one; __getitems__ fetches all at once",
            bottleneck="transform",
            remedy="faster transform",
        ),
        RealCase(
            make=loops.opencv_threads,
            source="open-mmlab/mmdetection#6867",
            cause="OpenCV started a thread for each core in every worker; cv2.setNumThreads(0)",
            published="1.09×",
            published_for="0.232 s a step with 16 threads in each worker, 0.213 s with none",
            bottleneck="threads",
            remedy="limit threads",
        ),
        RealCase(
            make=loops.workers_restarted,
            source="k2-fsa/icefall#1215",
            cause="workers started anew for every epoch of few steps; persistent_workers=True",
            published="about 12×",
            published_for="a training took a couple of minutes, and then about 10 s",
            bottleneck="start-up",
            remedy="persistent workers",
        ),
        RealCase(
            make=loops.workers_set_to_none,
            source="DIVA-DIA/DIVA-DAF#19",
            cause="with several GPUs the number of workers was set to 0; the user's is kept",
            published="number of workers",
            published_for="how many times as fast the training was before the slow-down",
            bottleneck="workers",
            remedy="more workers",
        ),
        RealCase(
            make=loops.tensor_of_arrays,
            source="huggingface/transformers#24772",
            cause="a tensor was made of a list of NumPy arrays; it is made of one array",
            published="56×",
            published_for="the conversion alone, 745 ms and then 13.3 ms",
            bottleneck="collate",
            remedy="faster collate",
        ),
        RealCase(
            make=loops.all_from_every_worker,
            source="espnet/espnet#2081",
            cause="every worker of an iterable dataset delivered all samples; they are divided",
            bottleneck="duplicated work",
            remedy="split between workers",
            changes="each comes once",
        ),
        RealCase(
            make=loops.losses_read_every_step,
            source="jolibrain/joliGEN#374",
            cause="the host waited for the losses in every step; it does when they are printed",
            published="2×",
            published_for="the training loop",
            bottleneck="synchronization",
            remedy="synchronize less often",
        ),
        RealCase(
            make=loops.saved_every_epoch,
            source="deepchem/deepchem#458",
            cause="a checkpoint was saved after every epoch; it is every tenth",
            published="1.2×",
            published_for="saving took 30 s after an epoch of two minutes",
            bottleneck="checkpoint",
            remedy="save less often",
        ),
        RealCase(
            make=loops.floats_sent,
            source="talmolab/sleap-nn#434",
            cause="images became float32 in the dataset; they stay uint8 until they are on the GPU",
            bottleneck="bytes or transfer or transform",  # the conversion is a transform
            remedy="fewer bytes or faster transform",
            changes="uint8, not float32 from 0 to 1",
        ),
    )
}
