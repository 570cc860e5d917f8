"""The words under the storage chart: each is there because the rows bear it out, else missing.

Run: python -m pytest tests/test_findings.py
"""

import math
from dataclasses import replace

import pytest
from fakes import MEDIA, fake_info, fake_media_info, fake_media_trials, fake_trials

from labkit.block_ratios import compare
from labkit.findings import findings
from labkit.settings import AS_PUBLISHED
from labkit.summary import summarize

REAL = {name: replace(medium, label="real") for name, medium in MEDIA.items()}
FULL = {"mode": "full", "blocks": 10}
CAUSE = "the page cache makes them equal, not swap"
NO_SWAP = "No page was swapped in or out during these trials: swap explains nothing here."


def say(media=REAL, *, blocks=3, noise=0.005, drop=(), **info):
    """What is said of a run; `drop` lists trials (variant, block) that are missing."""
    info = fake_media_info(media, **info)
    trials = fake_media_trials(media, blocks=info.get("blocks", blocks), noise=noise)
    kept = [trial for trial in trials if (trial.variant, trial.block) not in drop]
    return findings(info, summarize(info, kept))


def about(said, *words):
    """The one sentence that holds all these words."""
    (found,) = [sentence for sentence in said if all(word in sentence for word in words)]
    return found


def changed(name, **values):
    return REAL | {name: replace(REAL[name], **values)}


# --- cold and warm ------------------------------------------------------------------------


def test_cold_and_warm_stand_side_by_side_with_what_was_measured():
    assert about(say(noise=0), "hdd and “hdd, warm”") == (
        "hdd and “hdd, warm” differ only in what memory held before epoch 1 "
        "(0.0 % and 100.0 % of the files). Epoch 1 took 2.05 s and 1.44 s, "
        "epoch 2 1.42 s and 1.42 s. Of the bytes of hdd, 50.1 % came from the disk, "
        "about one epoch's: epoch 1 read the disk, epoch 2 memory."
    )


@pytest.mark.parametrize(
    ("values", "ending"),
    [
        ({"read_share": 0.9}, "more was read ahead than was asked for."),
        ({"read_share": 0.1}, "less than one epoch's: where the others came from is not known."),
        ({"read_share": None}, "How much came from the disk could not be measured."),
        # Memory could not be looked at: what came from the disk may belong to any epoch.
        ({"resident_share": None, "on_disk": True}, "50.1 % came from the disk."),
    ],
)
def test_which_epoch_read_the_disk_is_only_said_where_it_follows(values, ending):
    sentence = about(say(changed("hdd", **values)), "hdd and “hdd, warm”")
    assert sentence.endswith(ending)
    assert "epoch 2 memory" not in sentence


def test_a_warm_run_that_read_the_disk_all_the_same_is_told():
    said = say(changed("ssd, warm", read_share=0.12))
    assert about(said, "ssd and").endswith("Of the bytes of “ssd, warm”, 12.0 % did too.")


def test_one_epoch_is_compared_alone():
    media = {
        name: replace(m, epochs_s=m.epochs_s[:1], read_share=2 * m.read_share)
        for name, m in REAL.items()
    }
    said = say(media, **FULL)
    assert not any("epoch 2" in sentence for sentence in said)
    assert about(say(media), "hdd and").endswith("100.2 % came from the disk.")


def test_an_experiment_without_a_cold_and_warm_pair_says_nothing():
    names = ["original", "prefetch_generator"]
    info = fake_info(names)
    assert findings(info, summarize(info, fake_trials(dict.fromkeys(names, 1.0)))) == ()
    assert say({n: m for n, m in REAL.items() if ", warm" not in n}) == ()


def test_a_skipped_twin_leaves_its_partner_unmentioned():
    info = fake_media_info(REAL, skipped={"ssd, warm": "not here"})
    left = {n: m for n, m in REAL.items() if n != "ssd, warm"}
    said = findings(info, summarize(info, fake_media_trials(left)))
    assert not any("ssd" in sentence.split() for sentence in said)
    assert about(said, "hdd and “hdd, warm”")


def test_variants_that_differ_in_anything_else_are_no_pair():
    info = fake_media_info(REAL)
    for name in ("hdd, warm", "ssd, warm"):
        info["variants"][name]["num_workers"] = 8
    assert findings(info, summarize(info, fake_media_trials(REAL))) == ()


def test_the_documents_own_order_is_named_as_a_second_difference():
    media = {"hdd": REAL["hdd"], "hdd, again": replace(REAL["hdd, warm"], cache="as found")}
    media["tmpfs"] = replace(REAL["tmpfs"], cache="as found")
    said = say(media, mode="document", blocks=1, shuffled=False, protocol=AS_PUBLISHED)
    assert said[0] == (
        "“hdd, again” changes nothing and took 0.828 of hdd, which ran first and cold: "
        "as much as that may be the order's and the cache's doing or noise, "
        "of which one trial each says nothing."
    )
    assert "differ only in their place in the order and in what memory held" in said[1]
    assert "numbers, no verdict" in said[-1]


# --- swap ---------------------------------------------------------------------------------


def test_swap_is_ruled_out_only_where_it_was_counted_for_every_variant():
    assert NO_SWAP in say()
    said = say(changed("tmpfs", swapped_pages=None))
    assert about(said, "could not be measured") == (
        "What was swapped in the trials of tmpfs could not be measured: "
        "nothing here rules swap out."
    )
    assert NO_SWAP not in said


def test_swapping_is_said_with_its_variant():
    said = say(changed("tmpfs", swapped_pages=500))
    assert "1,500 pages in the trials of tmpfs" in about(said, "The machine swapped")


def test_a_full_run_in_which_every_block_swapped_says_nothing():
    assert say(changed("tmpfs", swapped_pages=500), **FULL) == ()


# --- memory against disks -----------------------------------------------------------------


def test_without_verdicts_only_numbers_are_said():
    said = say(noise=0)
    assert said[-1] == (
        "tmpfs, “hdd, warm” and “ssd, warm” had all their files in memory and fetched at most "
        "0.0 % of their bytes from a disk. Their epochs took together: "
        "tmpfs 2.84 s, “hdd, warm” 2.86 s, “ssd, warm” 2.85 s; numbers, no verdict."
    )
    assert not any(word in " ".join(said) for word in ("ratio", "equal", "slower"))


def test_equality_is_put_down_to_the_page_cache_where_reading_cold_is_slower():
    said = say(**FULL)
    sentence = about(said, "tmpfs against “ssd, warm”")
    assert "no practical difference. Nothing was swapped, and ssd, the same disk" in sentence
    assert sentence.endswith(CAUSE + ".")
    cold = about(said, "ssd (cold) beside tmpfs")
    assert cold.endswith("So the disk costs time while it is read, and not after.")


def test_equality_has_no_such_cause_where_reading_cold_costs_nothing():
    said = say(changed("ssd", epochs_s=(1.43, 1.41)), **FULL)
    assert about(said, "tmpfs against “ssd, warm”").endswith(
        "Nothing was swapped, and ssd, the same disk read cold, takes as long: "
        "reading is not what limits these epochs."
    )
    assert "costs time" not in about(said, "ssd (cold) beside tmpfs")


def test_equality_must_be_earned():
    said = say(changed("tmpfs", epochs_s=(1.55, 1.53)), **FULL)
    assert about(said, "tmpfs against “ssd, warm”").endswith("], slower.")
    said = say(noise=0.3, **FULL)
    assert about(said, "tmpfs against “ssd, warm”").endswith("], inconclusive.")
    assert CAUSE not in " ".join(said)


def test_a_disk_that_was_read_in_between_is_not_compared_as_memory():
    said = say(changed("ssd, warm", read_share=0.2), **FULL)
    assert not any("tmpfs against “ssd, warm”" in sentence for sentence in said)
    assert about(said, "tmpfs against “hdd, warm”")
    assert not any("in memory and fetched" in s for s in say(changed("tmpfs", read_share=None)))


def test_a_variant_with_too_few_blocks_is_not_judged():
    said = say(drop={("ssd, warm", block) for block in range(5)}, **FULL)
    assert about(said, "tmpfs and “ssd, warm” are not judged") == (
        "tmpfs and “ssd, warm” are not judged: fewer than 6 blocks have both."
    )
    assert "ratio" not in about(said, "ssd and “ssd, warm”")
    assert "ratio" in about(said, "hdd and “hdd, warm”")
    said = say(drop={("ssd, warm", 3)}, **FULL)
    assert "ratio" in about(said, "ssd and “ssd, warm”")


# --- stand-ins ----------------------------------------------------------------------------


def test_stand_ins_come_first():
    said = say(MEDIA)
    assert said[0] == (
        "In place of a real disk, hdd and “hdd, warm” read one that the kernel slows down "
        "(7200 rpm: 81 reads/s, 106 MB/s): what they show is this stand-in's."
    )
    doubtful = "unknown(claims to be rotational, 6,012 cold reads/s)"
    assert say(changed("ssd", label=doubtful))[0] == (
        "What kind of disk ssd read is not known (claims to be rotational, 6,012 cold reads/s): "
        "it need not be what the name says."
    )
    assert "stand-in" not in " ".join(say())


def test_a_model_does_what_it_was_made_to_do_so_no_cause_is_found_in_it():
    models = {
        "throttled": {"storage": "modelled_hdd", "label": "modelled(7200 rpm)"},
        "ssd": {"storage": "modelled_ssd", "label": "modelled(SATA SSD)"},
        "tmpfs": {"storage": "modelled_memory", "label": "modelled(memory)"},
    }
    media = {name: replace(m, **models[m.storage]) for name, m in REAL.items()}
    said = say(media, **FULL)
    assert said[0].startswith(
        "All media are modelled, hdd and “hdd, warm” (7200 rpm); ssd and “ssd, warm” (SATA SSD); "
        "tmpfs (memory): their times"
    )
    assert about(said, "tmpfs against “ssd, warm”").endswith("no practical difference.")
    assert "costs time" not in " ".join(said)


# --- block ratios -------------------------------------------------------------------------


def test_ratios_pair_the_blocks_and_average_the_baselines_two_runs():
    info = fake_media_info(REAL, **FULL)
    summary = summarize(info, fake_media_trials(REAL, blocks=10, noise=0.02))
    rows = {row.variant: row for row in summary.rows}
    hdd, ssd = rows["hdd"], rows["ssd"]
    compared = compare(summary, [(ssd, hdd, "total"), (hdd, ssd, "total"), (ssd, hdd, "later")])
    # The total against the baseline is what the summary itself says.
    total = compared["ssd", "hdd", "total"]
    assert total.ratio == pytest.approx(ssd.normalized_time)
    assert compared["hdd", "ssd", "total"].ratio == pytest.approx(1 / total.ratio)
    later = [s[1] for s in ssd.epochs_s]
    base = [math.sqrt(a[1] * b[1]) for a, b in zip(hdd.epochs_s[::2], hdd.epochs_s[1::2])]
    expected = math.exp(sum(math.log(x / y) for x, y in zip(later, base)) / 10)
    assert compared["ssd", "hdd", "later"].ratio == pytest.approx(expected)


def test_nothing_is_compared_where_nothing_is_judged():
    summary = summarize(fake_media_info(REAL), fake_media_trials(REAL))
    assert compare(summary, [(summary.rows[1], summary.rows[0], "total")]) == {}


def test_an_unstable_machine_gets_no_other_word():
    info = fake_media_info(REAL, **FULL)
    trials = [
        replace(t, epochs=tuple(replace(e, epoch_s=1.2 * e.epoch_s) for e in t.epochs))
        if t.role == "A2"
        else t
        for t in fake_media_trials(REAL, blocks=10)
    ]
    said = findings(info, summarize(info, trials))
    assert about(said, "tmpfs against “ssd, warm”").endswith("machine unstable.")
