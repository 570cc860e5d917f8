"""Thresholds of a run: what is checked, for how long, what is noted, when a variant is dropped."""

from labkit.records import EPOCHS, ROOFLINE

# --- images that cannot be read -------------------------------------------------------------

# Enough for calibration in most runs; more images are checked once the run knows how many it takes,
# so that a large data set on a slow disk is not read in vain.
FIRST_LOOK_IMAGES = 512

# --- calibration ----------------------------------------------------------------------------

# How long epochs should be, as a share of the mode's length: a roofline has many trials.
EPOCH_LENGTH_SHARES = {EPOCHS: 1.0, ROOFLINE: 0.5}
# Long enough to choose how many images an epoch has.
CALIBRATION_S = 1.2
# The speeds of a roofline are multiples of this rate.
LOADING_S = 2.4
# How many times the mode's length an epoch may take, so that variants with many workers have a
# steady rate: 3 × 8 batches of 8 images from a disk of 81 files/s take 2.4 s where quick mode has
# 1.6 s.
MAX_EPOCH_LENGTH_RATIO = 2.5
# Epochs shorter than this share of the mode's length get a note.
SHORT_EPOCH_SHARE = 0.9
# Simulated GPU's speed / the reference's loading rate: the documents' 39 % need a device at least
# 1.64 times as fast as the loader (EVIDENCE 2).
GPU_TO_LOADER_RATIO = 2
# A process loads for so long; all of them, for so long at most.
CALIBRATION_PROCESS_S, MAX_CALIBRATION_S = 1.0, 30.0
# Half the 95 % interval of the simulated GPU's mean speed, as a share of it: calibrating ends here.
MAX_HALF_INTERVAL_SHARE = 0.05
# An interval of fewer processes is often narrow by chance.
MIN_CALIBRATION_PROCESSES = 5

# --- simulated hardware (EVIDENCE 2) --------------------------------------------------------

# Difference between the rate of a simulated disk or network and the rate that its label states, as
# a share: small beside what media save, which [004] gives as 14 %.
MAX_RATE_ERROR_SHARE = 0.05
# Share of the time in which the simulated GPU computes with a loader that costs nothing: what is
# missing from 1 is the simulation's own cost, which must stay below the smallest practical
# difference.
MIN_FREE_LOADER_UTILIZATION = 0.99
# A simulated disk fails after so many tries: another program may disturb one of them.
RATE_TRIES = 3
# Other programs can only make a try worse, so the best one shows what the simulation costs itself:
# 0.03 % on two cores.
GPU_TRIES = 10

# --- trials ---------------------------------------------------------------------------------

# Seconds that a single operation's repeats in a round take together, at least, by mode.
MIN_ROUND_S = {"quick": 0.005, "document": 0.02, "full": 0.02}
# The first choices of cuDNN and of the allocator take so many steps.
WARM_UP_STEPS = 3
# A variant is dropped when it fails for the second time.
FAILURES_BEFORE_DROPPED = 2
# Disk requests per image: a file of a photograph's size takes one or two.  Throttled disks with
# more get a note.
MAX_REQUESTS_PER_IMAGE = 4
