"""The pieces of a recipe's training loop: short programs with blanks ($name).

    train: EPOCHS of batches, AMP around the step ─ Checkpoints, Printed: what it calls ─ MODELS

Main trap: whatever does work, and whatever was measured, is taken from labkit's own source; a
piece only joins it.
"""

SAVER = '''
from concurrent.futures import ThreadPoolExecutor
from labkit.parts.training.checkpoint_file import remove_left, write
from labkit.parts.training.snapshot import Memory

class Checkpoints:
    """Copies a state while training waits, and writes the copy in a thread; one at a time."""

    def __init__(self, path: Path) -> None:
        remove_left(path)
        self._path, self._memory, self._written = path, Memory(), None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")

    def save(self, state: dict) -> None:
        """Save a state; it may be changed when this returns. Waits for the save before."""
        self.finish()
        skeleton = self._memory.take(state)
        self._written = self._thread.submit(self._write, skeleton)

    def finish(self) -> None:
        """Wait until the last state is on the disk; raises what kept it from there."""
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def close(self) -> None:
        """Finish, and end the thread."""
        try:
            self.finish()
        finally:
            self._thread.shutdown()
            self._memory.close()

    def _write(self, skeleton: bytes) -> None:
        write(self._path, self._memory.restore(skeleton))
'''
PRINTED = '''
class Printed:
    """Prints reports."""

    def write(self, line: str) -> None:
        """Print a line."""
        print(line)

    def close(self) -> None:
        """Nothing to end."""
'''
TRAIN = '''\
def train(
    loader: $loader,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[..., torch.Tensor],
    epochs: int = 1,
) -> None:
    """Train a model; loss_of takes what it returned, and the batch."""
    model.to(DEVICE$layout)
$body'''
AMP = """\
dtype = _amp_dtype(DEVICE.type)
# float16's gradients would vanish unless they were scaled.
scaler = torch.amp.GradScaler(DEVICE.type, enabled=dtype == torch.float16)
"""
EPOCHS = """\
step = 0
for epoch in range(epochs):
$totals    for batch in batches(loader, epoch):
        # The step: yours goes here.
$step        step += 1
$beside$result"""
# The model that the run trained, in the place of one's own.
MODELS = {
    "classifier": '''
from labkit.parts.training import CLASSIFIER_LEARNING_RATE, CLASSIFIER_MOMENTUM
from labkit.parts.training.models import build_classifier

def loss_of(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Cross entropy."""
    return torch.nn.functional.cross_entropy(logits.float(), batch["label"])


def make_model() -> tuple:
    """Make a ResNet-18, its optimizer and its loss; yours take their place."""
    model = build_classifier().to(DEVICE)
    how = {"lr": CLASSIFIER_LEARNING_RATE, "momentum": CLASSIFIER_MOMENTUM}
    return model, torch.optim.SGD(model.parameters(), **how), loss_of
''',
    "detector": '''
from labkit.parts.training import DETECTOR_LEARNING_RATE
from labkit.parts.training.models import Detector
from $loss_module import $loss

def loss_of(maps: tuple[torch.Tensor, ...], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Compare heat maps, sizes and offsets with their targets, in float32."""
    return $loss(*(one.float() for one in maps), batch)


def make_model() -> tuple:
    """Make CenterNet's res_18, its optimizer and its loss; yours take their place."""
    model = Detector().to(DEVICE)
    return model, torch.optim.Adam(model.parameters(), lr=DETECTOR_LEARNING_RATE), loss_of
''',
}
MAIN = """

if __name__ == "__main__":
    loader, model = make_loader(), make_model()
    started_s = time.perf_counter()
    train(loader, *model)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    print(f"{BATCH_SIZE * len(loader) / (time.perf_counter() - started_s):.1f} images/s")
"""
