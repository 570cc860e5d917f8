"""Remedies are bounded by what was measured; what is named follows from what they gain."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from labkit.diagnosis.advice import advice_for
from labkit.diagnosis.bounds import OVERHEAD, UNEXPLAINED, Bounds, Copy, Demand, Row
from labkit.diagnosis.diagnose import Diagnosis
from labkit.diagnosis.facts import Batch, Copies, Facts, Kind, Stage, Stages
from labkit.diagnosis.rules import REMEDIES, conclude, in_order, propose, worth_it


def stage(kind, name, cpu_s, wait_s=0.0):
    return Stage(name=name, kind=kind, wall_s=cpu_s + wait_s, cpu_s=cpu_s)


STAGES = (
    stage("transform", "blur", 0.070),
    stage("decode", "imdecode", 0.020),
    stage("transform", "flip", 0.010),
)


def measured(stages=STAGES, demand=None, sizes=None, facts=None, **changes):
    """100 ms of CPU to make a batch in two workers on two cores, 20 ms of a device."""
    wall_s, cpu_s = (sum(getattr(s, what) for s in stages) for what in ("wall_s", "cpu_s"))
    now = {
        "workers": 2, "cores": 2, "cpu_s": cpu_s, "wall_s": wall_s, "hindered_s": 0.0,
        "take_s": 0.0, "step_s": 0.020, "host_s": 0.001, "host_cpu_s": 0.001, "device_s": 0.020,
        "startup_s": 0.0, "fetch_s": 0.0,
    }  # fmt: skip
    demand = Demand(**(now | (demand or {})))
    sizes = sizes or {"uint8": 10_000_000}
    known = {
        "arguments": {"batch_size": 8, "num_workers": demand.workers}, "has_queue": True,
        "batch": Batch(bytes_by_dtype=sizes, samples=8, unit="images"),
    }  # fmt: skip
    usual = {
        "facts": Facts(**(known | (facts or {}))), "now": demand, "steps": 200,
        "epoch_s": 200 * demand.least_s(), "alone_s": demand.least_s(), "stages": stages,
    }  # fmt: skip
    return Bounds(**(usual | changes))


def by_subject(m):
    return {(r.name, r.change.split(":")[0]): r for r in propose(m)}


def bounds(m):
    return {key: remedy.expected for key, remedy in by_subject(m).items()}


def by_name(m):
    return {remedy.name: remedy for remedy in propose(m)}


def host(step_s, device_s, **more):
    """Demands of a step that the host takes all of."""
    return {"step_s": step_s, "host_s": step_s, "host_cpu_s": step_s, "device_s": device_s} | more


DECODES = (stage("decode", "imdecode", 0.010),)


def screen(m, name):
    """What the screen prints of the remedies with a name."""
    found = conclude(m.facts, m, tuple(one for one in propose(m) if one.name == name))
    lines = str(Diagnosis(**vars(found))).splitlines()
    begun = next(i for i, line in enumerate(lines) if line.startswith(f"1. {name}: "))
    return "\n".join(lines[begun : begun + 2])


def first(m):
    bottleneck, remedies = in_order(m, worth_it(propose(m)))
    assert remedies[0].bottleneck == bottleneck
    return remedies[0]


def test_a_bound_is_as_uncertain_as_the_epoch_unless_it_counts_steps():
    m = measured(epoch_ci=(0.5, 1.25), facts={"duplicated": True})
    found = by_subject(m)
    blur, flip = found["faster transform", "blur"], found["faster transform", "flip"]
    assert (blur.ci_low, blur.ci_high) == pytest.approx((blur.expected / 1.25, blur.expected * 2))
    assert (flip.ci_low, flip.ci_high) == pytest.approx((flip.expected / 1.25, 1.0))
    halved = next(r for (name, _), r in found.items() if name == "split between workers")
    assert (halved.expected, halved.ci_low, halved.ci_high) == (0.5, None, None)
    # A bound whose interval reaches 1 may be right; a trial's gain may be none.
    assert worth_it([flip]) == [flip]
    assert worth_it([replace(flip, measured=flip.expected)]) == []


def test_every_bottleneck_has_a_row_in_the_docs():
    page = Path(__file__).parents[2] / "docs/diagnosis.md"
    table = page.read_text("utf-8").partition("| bottleneck | what was measured |\n")[2]
    rows = table.partition("\n\n")[0].splitlines()
    listed = {name for row in rows for name in row.split("|")[1].strip().split(", ")}
    assert {line.bottleneck for line in REMEDIES} - listed == set()


def test_nothing_is_proposed_where_the_device_is_the_limit():
    m = measured(DECODES)
    assert propose(m) == ()
    assert in_order(m, ()) == ("compute", ())
    late = measured(stages=(), epoch_s=2 * m.epoch_s)
    assert in_order(late, ()) == (UNEXPLAINED, ())
    unsure = replace(late, ceiling_ci=(0.5, 0.99))
    assert in_order(unsure, ()) == ("compute", ())
    known = {"ceiling": unsure.ceiling, "facts": unsure.facts, "bounds": unsure}
    found = Diagnosis(verdict="unsure", bottleneck="compute", **known)
    assert "Whether data loading is the bottleneck is not certain; raise budget_s." in str(found)


def test_a_stage_is_bounded_by_what_is_left_without_it():
    found = bounds(measured())
    assert found["faster transform", "blur"] == pytest.approx(0.020 / 0.050, rel=0.05)
    assert found["faster transform", "flip"] == pytest.approx(0.045 / 0.050, rel=0.05)
    assert first(measured()).bottleneck == "transform"
    assert "blur takes 70.0 ms" in first(measured()).reason


def test_more_prefetching_bridges_the_slowest_batch():
    late = {"demand": {"hindered_s": 0.05}, "facts": {"probe": Stages(slowest=5)}}
    more = by_name(measured(**late))["more prefetching"]
    assert (more.expected, more.arguments) == (pytest.approx(0.5, abs=0.02), {"prefetch_factor": 5})
    late["facts"] = {"probe": Stages(slowest=2)}  # as long as those ahead last
    assert "more prefetching" not in by_name(measured(**late))


def test_a_remedy_that_was_tried_counts_as_measured():
    m = measured(demand={"workers": 0})
    others = [r for r in propose(m) if r.name != "more workers"]
    more = by_name(m)["more workers"]
    assert more.arguments == {"num_workers": 2}
    tried = replace(more, measured=0.6, ci_low=0.5, ci_high=0.7)
    bottleneck, remedies = in_order(m, worth_it([tried, *others]))
    assert bottleneck == "workers"
    assert remedies[0] is tried
    assert tried.change == "DataLoader(dataset, batch_size=8, num_workers=2)"
    in_vain = replace(more, measured=1.1, ci_low=1.0, ci_high=1.2)
    assert "more workers" not in {r.name for r in worth_it([in_vain, *others])}
    # Of several numbers that were not tried, one is shown.
    four = replace(more, arguments={"num_workers": 4}, change="DataLoader(dataset, num_workers=4)")
    assert worth_it([more, four]) == [more]


def test_remedies_are_told_apart_by_what_they_change_and_not_by_their_text():
    proposed = propose(measured())
    assert {("faster transform", "blur"), ("faster transform", "flip")} < {r.key for r in proposed}
    assert len({remedy.key for remedy in proposed}) == len(proposed)
    same_words = [replace(remedy, change="as an expert would") for remedy in proposed]
    assert worth_it(same_words) == same_words


def test_above_a_third_that_is_not_explained_no_known_part_is_blamed():
    rows = (Row(name=UNEXPLAINED, kind=UNEXPLAINED, seconds=0.04, share=0.4),)
    m = measured(rows=rows, demand={"workers": 1})
    bounds = worth_it(propose(m))
    assert "more workers" in {remedy.name for remedy in bounds}
    assert in_order(m, bounds)[0] == UNEXPLAINED
    said = "Bottleneck: workers. Not explained: 40 % of a batch's time"
    tried = Diagnosis(verdict="x", bottleneck="workers", ceiling=m.ceiling, facts=m.facts, bounds=m)
    assert said in str(tried)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.4, "Bottleneck: not explained; the largest part of a batch's time is waiting for the "
              "main process, 70 %."),
        (0.9, "Bottleneck: reports."),
    ],
)  # fmt: skip
def test_what_saves_hardly_any_of_what_loading_costs_does_not_explain_it(share, words):
    # The main process takes 80 ms to receive a batch, and 20 for the step.
    row = Row(name="waiting for the main process", kind="bytes", seconds=0.14, share=0.7)
    kinds = {"host_kinds": {"reports": Kind(share, "print")}}
    m = measured(DECODES, host(0.02, 0.0, take_s=0.08), rows=(row,), facts=kinds)
    lines = str(Diagnosis(**vars(conclude(m.facts, m, propose(m))))).splitlines()
    assert words in lines[0]
    saves = {0.4: "1.09", 0.9: "1.22"}[share]
    assert any(line.startswith(f"1. report less often: {saves}× as fast") for line in lines)


def test_what_is_easy_and_comes_first_is_named_where_another_change_saves_much():
    m = measured(demand={"workers": 0})
    proposed = propose(m)
    easy = next(remedy for remedy in proposed if remedy.easy)
    other = next(remedy for remedy in proposed if not remedy.easy)
    enough = 0.2 * m.loading_cost_share
    for most, bottleneck in ((1.2 * enough, easy.bottleneck), (0.9 * enough, UNEXPLAINED)):
        gains = [replace(other, expected=1 - most), replace(easy, expected=1 - most / 2)]
        assert in_order(m, gains)[0] == bottleneck


def test_many_workers_are_tried_where_batches_wait_and_need_no_core():
    m = measured(stages=(stage("transform", "sleep", 0.001, wait_s=0.15),))
    tried = [r.arguments["num_workers"] for r in propose(m) if r.name == "more workers"]
    assert tried == [8, 16]


def test_reading_that_computes_is_not_answered_with_a_faster_disk():
    unzipped = stage("read", "gzip.read", 0.070, wait_s=0.005)
    fetched = stage("read", "open", 0.005, wait_s=0.070)
    found = by_name(measured((unzipped, fetched)))
    assert found["cheaper reads"].bottleneck == "reading"
    assert found["cheaper reads"].change == (
        "gzip.read: store it uncompressed, or compressed with lz4 or zstd, which decompress much "
        "faster; it computes, so a faster disk does not help"
    )
    assert found["faster reads"].reason.startswith("open takes 75.0 ms")


@pytest.mark.parametrize(
    "name",
    [
        "PIL.Image.convert", "PIL.Image.convert in mine.load_image", "cv2.imread",
        "imageio.imread", "zlib.decompress",
    ],
)  # fmt: skip
def test_decoding_is_answered_with_what_to_write_instead(name):
    stages = (stage("decode", "PIL.open", 0.010), stage("decode", name, 0.080))
    assert f"{name}: {advice_for(name)}" in screen(measured(stages), "faster decode")
    assert advice_for(name)


def test_decoding_by_the_users_own_function_is_answered_with_a_faster_decoder():
    shown = screen(measured((stage("decode", "decode_photo", 0.080),)), "faster decode")
    assert "a faster decoder (lab.DECODERS), or images stored at the size that is" in shown


def test_lists_of_numbers_are_named_where_default_collate_makes_many_tensors():
    stages = (stage("collate", "collate", 0.1),)
    many = {"batch": Batch(bytes_by_dtype={"int64": 64_000}, samples=8, tensors=1000)}
    listed = "an array or a tensor for each sample: of a list, default_collate makes a tensor for"
    assert listed in screen(measured(stages, facts=many), "faster collate")
    few = screen(measured(stages), "faster collate")
    assert "torch.stack of ready tensors, and nothing else in collate_fn" in few


@pytest.mark.parametrize(
    ("kind", "line", "function", "words"),
    [
        ("host work", "vectorize host work", "update_ema", "average all weights in one call"),
        ("compute", "transform in workers", "ema_step", "average all weights in one call"),
        ("launch", "fewer launches", "moving_average", "average all weights in one call"),
        ("launch", "fewer launches", "torch.AveragedModel.update_parameters", "multi_avg_fn="),
        ("reports", "report less often", "tqdm.tqdm.set_postfix", "mininterval=1"),
        ("host work", "vectorize host work", "schema_of", "operations on whole tensors"),
        ("compute", "transform in workers", "blur", "do it in the data set"),
        ("launch", "fewer launches", "forward", "model.compile(mode='reduce-overhead')"),
        ("reports", "report less often", "log", "in tqdm: set_postfix(…, refresh=False)"),
    ],
)
def test_what_a_step_does_on_the_host_is_answered_by_its_function(kind, line, function, words):
    kinds = {"host_kinds": {kind: Kind(0.9, function)}}
    m = measured(DECODES, host(0.1, 0.01), facts=kinds)
    assert words in screen(m, line)


def test_what_a_transform_reads_is_answered_by_the_transform():
    unzipped = stage("read", "zipfile.ZipFile.open", 0.080)
    unzipped = replace(unzipped, reader="numpy.NpzFile.__getitem__")
    shown = screen(measured((unzipped,)), "cheaper reads")
    assert "np.load(path, mmap_mode='r') once, .npy instead of .npz; it computes" in shown


def test_a_decoder_that_waits_for_the_disk_gets_a_faster_disk():
    read = stage("decode", "cv2.imread", 0.020, wait_s=0.080)
    found = by_name(measured((read,)))
    assert "faster decode" not in found
    assert found["faster reads"].bottleneck == "storage"
    assert found["faster reads"].change.startswith("copy the files to an SSD or tmpfs")
    # What it computes is left: 10 of the 50 ms that a batch takes two workers.
    assert found["faster reads"].expected == pytest.approx(0.020 / 0.050, rel=0.01)
    decoded = stage("decode", "cv2.imread", 0.080, wait_s=0.020)
    found = by_name(measured((decoded,)))
    assert "faster reads" not in found and "faster decode" in found


@pytest.mark.parametrize(
    ("name", "reader", "change"),
    [
        ("posix.listdir", "", "posix.listdir: list the files once, when the data set is made"),
        ("TextIOWrapper.read in json.load", "json.load", "parse once, when the data set is made"),
        ("requests.get", "", "requests.get: fetch several at once in threads"),
        ("open", "", "copy the files to an SSD or tmpfs, or pack them into one file"),
        ("numpy.load", "", "copy the files to an SSD or tmpfs, or pack them into one file"),
    ],
)
def test_what_waits_is_answered_by_what_it_waits_for(name, reader, change):
    waiting = replace(stage("read", name, 0.005, wait_s=0.090), reader=reader)
    assert change in screen(measured((waiting,)), "faster reads")


def test_a_transform_that_waits_is_not_answered_as_one_that_computes():
    waiting = screen(measured((stage("transform", "cv2.resize", 0.01, wait_s=0.09),)), "wait less")
    assert "cv2.resize" in waiting and "IMREAD_REDUCED_COLOR_2" not in waiting
    computing = (stage("transform", "cv2.resize", 0.09, wait_s=0.01),)
    assert "IMREAD_REDUCED_COLOR_2" in screen(measured(computing), "faster transform")


def test_decompressing_is_not_compared_with_decoders_of_photographs():
    photos = {"decoders_s": {"simplejpeg": 0.001}}
    for name, is_compared in (("zlib.decompress", False), ("cv2.imdecode", True)):
        shown = screen(measured((stage("decode", name, 0.1),), facts=photos), "faster decode")
        assert ("labkit's simplejpeg" in shown) == is_compared


def test_no_epoch_takes_less_than_the_floor():
    # 50 ms a step of two cores take 100 ms, as they delay each other: how much is left is expected.
    flip = by_subject(measured(epoch_s=200 * 0.1))["faster transform", "flip"]
    assert (flip.expected, flip.floor) == (pytest.approx(0.9), pytest.approx(0.45, abs=0.01))
    for remedy in propose(measured(demand={"hindered_s": 0.03})):
        assert remedy.expected is None or remedy.floor <= remedy.expected + 1e-9


@pytest.mark.parametrize(("device_s", "is_named"), [(0.010, True), (0.095, False), (0.0, False)])
def test_a_step_that_mostly_launches_needs_fewer_launches(device_s, is_named):
    kinds = {"host_kinds": {"launch": Kind(0.9, ""), "compute": Kind(0.05, "")}}
    m = measured(DECODES, host(0.1, device_s), facts=kinds)
    assert ("fewer launches" in by_name(m)) == is_named


def reading(read_s):
    """A transform of 70 ms that reads, and decoding."""
    reads = replace(stage("read", "open", read_s), reader="crop")
    return (stage("transform", "crop", 0.070), reads, stage("decode", "imdecode", 0.050))


def doing(kind):
    return {"host_kinds": {kind: Kind(0.9, "")}}


about = partial(pytest.approx, abs=0.04)
SLOW_STEP = {"step_s": 0.1, "host_s": 0.1}
COPIED = {
    "stages": (stage("decode", "imdecode", 0.020),), "sizes": {"float32": 10_000_000},
    "copy": Copy(0.02, is_beside=True),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "name", "bound"),
    [
        ({"demand": {"startup_s": 0.1}}, "persistent workers", about(0.35)),
        ({"demand": {"fetch_s": 0.1}}, "faster medium", about(0.35)),
        ({"demand": SLOW_STEP, "facts": doing("checkpoint")}, "save less often", about(0.5)),
        ({"demand": SLOW_STEP, "facts": doing("host work")}, "vectorize host work", about(0.5)),
        ({"demand": SLOW_STEP | {"device_s": 0.06}, "syncs_s": 0.05},
         "synchronize less often", about(0.6)),
        # 50 ms of copying, 10 ms of computing, 50 ms of other work on the host.
        ({"demand": SLOW_STEP | {"device_s": 0.06}, "copy": Copy(0.05, blocks=True),
          "facts": {"copies": Copies(pinned_s=0.01)}}, "pin memory", about(0.5)),
        # A transform goes with what it reads, unless it mostly reads.
        ({"stages": reading(0.050)}, "faster transform", pytest.approx(0.025 / 0.085, rel=0.02)),
        ({"stages": reading(0.090)}, "faster transform", pytest.approx(0.070 / 0.105, rel=0.02)),
        # 80 of 100 ms transform, and 10 send: half of both is left.
        ({"sizes": {"float64": 10_000_000}, "facts": {"probe": Stages(pickle_s=0.01)}},
         "fewer bytes", pytest.approx(0.55, rel=0.05)),
        # The copy takes 20 ms, a quarter of its bytes 5; two workers take 10 ms a batch.
        ({"demand": {"device_s": 0.004, "cores": 8}} | COPIED, "fewer bytes", pytest.approx(0.5)),
        ({"demand": {"device_s": 0.012, "cores": 8}} | COPIED, "fewer bytes", pytest.approx(0.6)),
    ],
)  # fmt: skip
def test_what_is_measured_apart_is_bounded_apart(changes, name, bound):
    assert by_name(measured(**changes))[name].expected == bound


def test_what_needs_no_rewriting_is_easy():
    easy = {line.name for line in REMEDIES if line.easy}
    assert {"persistent workers", "save less often", "vectorize host work", "pin memory"} <= easy
    assert not {"faster medium", "faster transform", "fewer bytes"} & easy


def test_pinning_in_vain_does_not_hide_what_copies_beside_the_step_may_gain():
    demand = {"step_s": 0.1, "host_s": 0.1, "device_s": 0.06}
    known = {"copies": Copies(pinned_s=0.01), "resident_on_device": object()}
    m = measured(demand=demand, copy=Copy(0.05, blocks=True), facts=known)
    (alone,) = [remedy for remedy in propose(m) if remedy.arguments == {"pin_memory": True}]
    in_vain = replace(alone, measured=0.99, ci_low=0.98, ci_high=1.01)
    others = [remedy for remedy in propose(m) if remedy is not alone and not remedy.arguments]
    assert "pin memory" in {remedy.name for remedy in worth_it([in_vain, *others])}


def test_a_short_copy_is_not_blamed_for_the_hosts_other_work():
    demand = {"step_s": 0.1, "host_s": 0.1, "device_s": 0.06}
    copies = {"copies": Copies(pinned_s=2e-6)}
    m = measured(demand=demand, copy=Copy(5e-6, blocks=True), facts=copies)
    assert "pin memory" not in by_name(m)


def test_an_easy_change_comes_before_work_that_saves_a_little_more():
    demand = {"step_s": 0.1, "host_s": 0.1, "device_s": 0.1}
    copies = {"copy": Copy(0.06, blocks=True), "facts": {"copies": Copies(pinned_s=0.02)}}
    m = measured(DECODES, demand, sizes={"float32": 10_000_000}, **copies)
    assert {r.name: r.expected for r in propose(m)} == {
        "pin memory": pytest.approx(0.6), "fewer bytes": pytest.approx(0.55)
    }  # fmt: skip
    assert first(m).name == "pin memory"


def test_a_step_shrinks_no_more_than_what_shrinks_most():
    # 50 ms of CPU a step on each core take 100 ms, as the workers delay each other.
    found = bounds(measured(epoch_s=200 * 0.1))
    assert found["faster transform", "flip"] == pytest.approx(0.9)
    assert found["faster transform", "blur"] == pytest.approx(0.3)
    # Everything that bytes touch is halved, and so is what delays it.
    blur = (stage("transform", "blur", 0.1),)
    halved = by_name(measured(blur, sizes={"float64": 10_000_000}, epoch_s=200 * 0.1))
    assert halved["fewer bytes"].expected == pytest.approx(0.5)


def test_what_delays_the_busiest_is_gone_with_its_work():
    demand = {"step_s": 0.1, "host_s": 0.1, "device_s": 0.03}
    loops = {"facts": {"host_kinds": {"host work": Kind(0.9, "")}}, "epoch_s": 200 * 0.12}
    found = by_name(measured(DECODES, demand, **loops))
    # 120 ms a step, as others delay the host: without its loops 30 ms of the device are left.
    assert found["vectorize host work"].expected == pytest.approx(0.25)
    assert "faster decode" not in found


def test_no_change_of_the_loader_is_bounded_below_the_ceiling():
    # The host seems busy where it waits for the device, so the model exceeds the measured 100 ms.
    demand = {"workers": 0, "step_s": 0.1, "device_s": 0.1, "host_s": 0.063}
    m = measured((stage("decode", "imdecode", 0.060),), demand, epoch_s=200 * 0.1)
    assert m.ceiling == 1.0
    assert propose(m) == ()


@pytest.mark.parametrize(
    ("workers", "hindered_s", "fewer"), [(3, 0.05, [2]), (2, 0.05, [1]), (1, 0.05, []), (2, 0, [])]
)
def test_fewer_workers_are_tried_where_several_hinder_each_other(workers, hindered_s, fewer):
    m = measured(demand={"workers": workers, "hindered_s": hindered_s})
    tried = [r.arguments["num_workers"] for r in propose(m) if r.name == "fewer workers"]
    assert tried == fewer


@pytest.mark.parametrize(
    ("device_s", "copy", "bound"),
    [
        (0.02, Copy(), 0.4),
        (0.02, Copy(0.015), 0.1),  # of the 20 ms, 15 are the copy
        (0.02, Copy(0.015, is_beside=True), 0.4),
        (0.0, Copy(), None),  # what the device works is not known
    ],
)
def test_of_larger_batches_samples_and_the_devices_computing_are_left(device_s, copy, bound):
    rows = (Row(name="handing over a batch", kind=OVERHEAD, seconds=0.04, share=0.8),)
    blur = (stage("transform", "blur", 0.01),)
    found = by_name(measured(blur, host(0.05, device_s), rows=rows, copy=copy))
    assert ("larger batches" in found) == bool(bound)
    assert not bound or found["larger batches"].expected == pytest.approx(bound)


@pytest.mark.parametrize(
    ("workers", "words"),
    [(0, " that a batch takes"), (2, " in which a worker makes a batch")],
)
def test_a_stage_is_told_beside_the_batch_it_is_part_of(workers, words):
    found = by_subject(measured(demand={"workers": workers}))
    assert found["faster transform", "blur"].reason.endswith(words)


def test_a_gain_within_the_noise_is_no_gain_and_a_speed_up_is_its_inverse():
    blur = by_subject(measured())["faster transform", "blur"]
    assert worth_it([replace(blur, expected=0.98)]) == []
    assert replace(blur, expected=0.8).speed_up == pytest.approx(1.25)
    assert replace(blur, measured=0.5).speed_up == pytest.approx(2.0)


@pytest.mark.parametrize(("factor", "is_fewer"), [(None, False), (2, False), (8, True)])
def test_without_room_in_shared_memory_fewer_batches_ahead_are_proposed(factor, is_fewer):
    arguments = {"batch_size": 1, "num_workers": 2}
    arguments |= {"prefetch_factor": factor} if factor else {}
    stalled = conclude(Facts(arguments=arguments, broken="no space left on device"), None, ())
    names = {remedy.name for remedy in stalled.remedies}
    assert ("less prefetching" in names, "fewer workers" in names) == (is_fewer, True)
