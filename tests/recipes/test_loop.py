"""The loops that recipes write out do, without labkit, what their variants do beside the steps.

Each is written to a file and run as a program of its own, on the CPU.

Run: python -m pytest tests/recipes/test_loop.py
"""

import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from labkit.recipes import loop
from labkit.recipes.program import program
from labkit.settings import MODES, Settings, complete

pytestmark = pytest.mark.thorough

# Four steps an epoch of two photographs each.
SMALL = {"num_workers": 0, "batch_size": 2, "input_px": 64, "images": 8}
RUN = """
import runpy, sys
sys.modules["labkit"] = None  # importing it is an error from here on
found = runpy.run_path("recipe.py", run_name=sys.argv[1])
"""
RATE = r"[0-9.]+ images/s\n"


@pytest.fixture
def run(photos, tmp_path):
    """Write a variant's program and run it, or import it and run some lines after that."""

    def run(then="", *, edit=lambda text: text, **changes):
        changes = {"preprocessor": "classification", **changes, **SMALL}
        settings = Settings(data=str(photos), **changes)
        settings = complete(settings, MODES["quick"], cores=2, has_cuda=False, can_fork=True)
        (tmp_path / "recipe.py").write_text(edit(program(settings, layout="labkit")))
        done = subprocess.run(
            [sys.executable, "-c", RUN + then, "recipe" if then else "__main__"],
            cwd=tmp_path,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.mark.parametrize(("saver", "loader"), [("sync", "torch"), ("thread", "resident")])
def test_a_checkpoint_can_be_loaded_and_is_of_its_own_step(saver, loader, run, tmp_path):
    import torch

    # The last step changes the weights after the last save, so a file of live weights differs.
    watch = """
import torch
model, optimizer, loss_of = found["make_model"]()
seen = []
def keep(*_):
    seen.append({name: value.clone() for name, value in model.state_dict().items()})
optimizer.register_step_post_hook(keep)
found["train"](found["make_loader"](), model, optimizer, loss_of)
torch.save(seen, "seen.pt")
"""
    run(watch, checkpoint_every=3, saver=saver, loader=loader)
    saved, seen = (torch.load(tmp_path / name) for name in ("checkpoint.pth", "seen.pt"))
    assert (saved["step"], len(seen)) == (3, 4)
    assert all(torch.equal(saved["model"][name], seen[2][name]) for name in seen[2])
    assert any(not torch.equal(seen[2][name], seen[3][name]) for name in seen[2])
    assert saved["optimizer"]["state"]
    assert [path.name for path in tmp_path.glob(".*")] == []  # nothing unfinished is left


def test_reports_in_the_background_arrive_in_order(run, tmp_path):
    run(report_every=2, report_to="file", report_in_background=True)
    lines = (tmp_path / "reports.log").read_text().splitlines()
    assert [re.sub(r"^.{23} ", "", line)[:12] for line in lines] == ["step 2 loss ", "step 4 loss "]


def test_reports_without_the_loss_are_printed(run):
    done = run(report_every=2, report_to="terminal", report_loss=False)
    assert re.fullmatch(f"step 2\nstep 4\n{RATE}", done.stdout)


def test_reports_reach_a_server(run):
    arrived = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            arrived.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}/"
            run(
                report_every=4,
                report_to="http_5ms",
                edit=lambda text: text.replace("http://localhost:8000/", address),
            )
        finally:
            server.shutdown()
            thread.join()
    assert len(arrived) == 1
    assert re.fullmatch(r'\{"report": "step 4 loss [0-9.]+"\}', arrived[0])


@pytest.mark.parametrize("how", ["loops", "vectorized"])
def test_metrics_count_every_sample_of_the_steps_they_look_at(how, run):
    # A model that is always right: its scores are the labels.
    right = """
import torch
class Right(torch.nn.Linear):
    def forward(self, image):
        scores = torch.nn.functional.one_hot(labels.pop(0), 80).float()
        return scores + 0 * self.weight.sum()
labels = [batch["label"] for batch in found["batches"](found["make_loader"](), 0)]
model = Right(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
found["train"](found["make_loader"](), model, optimizer, found["loss_of"])
"""
    done = run(right, metrics=how, metrics_every=2)
    assert done.stdout == "epoch 0: {'top1': 1.0, 'top5': 1.0, 'class_mean': 1.0}\n"


def test_a_bar_shows_steps_and_loss(run):
    done = run(progress_bar="tqdm", progress_loss=True)
    assert "4/4" in done.stderr
    assert "loss=" in done.stderr
    assert "loss=" not in run(progress_bar="tqdm_every_step").stderr


def test_amp_computes_in_bfloat16_and_channels_last_orders_colors_beside_each_other(run):
    watch = """
import torch
def look(module, inputs, output):
    order = inputs[0].is_contiguous(memory_format=torch.channels_last)
    print(output.dtype, inputs[0].shape[1], order)
model, optimizer, loss_of = found["make_model"]()
next(m for m in model.modules() if isinstance(m, torch.nn.Conv2d)).register_forward_hook(look)
found["train"](found["make_loader"](), model, optimizer, loss_of)
"""
    done = run(watch, precision="amp", memory_format="channels_last")
    assert done.stdout.splitlines() == ["torch.bfloat16 3 True"] * 4


def test_a_loss_in_loops_gives_the_number_that_the_recipe_at_once_gives(run):
    look = """
import torch
torch.manual_seed(0)
model, optimizer, loss_of = found["make_model"]()
batch = next(found["batches"](found["make_loader"](), 0))
print(loss_of(model(batch["image"]), batch).item())
"""
    changes = {"preprocessor": "vectorized", "report_every": 4}
    loops, at_once = (
        float(run(look, loss=name, **changes).stdout) for name in ("loops_sync", "vectorized")
    )
    assert loops == pytest.approx(at_once, rel=1e-4)


def test_only_what_is_set_asks_for_a_loop():
    assert not loop.is_needed(Settings())
    assert not loop.is_needed(Settings(checkpoint_to="tmpfs", report_to="terminal"))
    for change in ({"checkpoint_every": 1}, {"precision": "amp"}, {"loss": "loops"}):
        assert loop.is_needed(Settings(**change))
        # What differs from the baseline is shown, a default too; what is beside the step is not.
        is_of_step = "checkpoint_every" not in change
        assert loop.is_needed(Settings(), Settings(**change)) == is_of_step
