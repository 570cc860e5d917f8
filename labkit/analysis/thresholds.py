"""Thresholds by which trials, blocks and variants are judged; fixed before any run.

Shares are of 1: 0.03 is 3 %.  Levels are grey levels of 0 to 255.
"""

# --- verdicts (EVIDENCE 1, "Estimator") -----------------------------------------------------

# Probability of finding a difference where there is none.
ALPHA = 0.05
# Probability that a difference of the smallest detectable effect is detected.
POWER = 0.8
# The smallest practical difference, as a share of the baseline's time.
DELTA = 0.03
# Share of the time that is no reason to change a setting, even where it is shown to be real.
NEGLIGIBLE_SHARE = 0.01
# How much the baseline's two runs may differ, as a share.  Their mean is the denominator, so a
# difference of b moves it by b/2: DELTA/2 between the two moves a normalized time by 0.75 %.
MAX_AA_DIFFERENCE = DELTA / 2
# Blocks.  Exact sign-flip tests with 5 cannot reach p < 0.0625 (EVIDENCE, "How many").
MIN_JUDGED_BLOCKS = 6
# Tukey's outer fence, in interquartile ranges: values beyond it are "far out".
OUTER_FENCE = 3.0
# By how much GPU-util must differ, as a share of the time: NVML's sampling periods of 1/6 to 1 s do
# not match a loop's steps.
MIN_GPU_UTIL_DIFFERENCE = 0.10
# Steps of each of two watched trainings that are compared: three for each of the 16 batches.
MIN_COMPARED_STEPS = 50

# --- disturbed blocks (EVIDENCE 1, "Estimator": the only reasons for leaving out a block) ---

# Share of the CPU time that other virtual machines took.
MAX_STEAL_SHARE = 0.02
# Other programs may take a tenth of the machine's cores: with more, they compete for cores, caches
# and memory.  A quiet desktop takes a fifth of a core.
MAX_OTHER_SHARE, MIN_OTHER_CORES = 0.1, 0.2
# Share of the GPU's time that other programs took; a desktop draws its windows with it.
MAX_OTHER_GPU_SHARE = 0.05
# A variant that swaps in this many trials, and in most of its trials, swaps by itself.
MIN_SWAPPING_TRIALS = 3
# The kernel counts in hundredths of a second, so shorter trials of a block are judged together.
MIN_JUDGED_S = 1.0

# --- cache states ---------------------------------------------------------------------------

# Share of the files' bytes that come from the device: most in a cold trial, next to none in a warm
# one.  Whole pages, directories and programs add to it.
COLD_MIN_DEVICE_SHARE = 0.8
WARM_MAX_DEVICE_SHARE = 0.1
# Bytes of programs that a trial may read besides: a page of a library that is faulted in brings its
# neighbours along (300 KB were measured).
PROGRAM_BYTES = 1 << 20

# --- equal work: pixels ---------------------------------------------------------------------

# Decoders may differ by a few grey levels where chroma is upsampled; one level is 1/57 there.
DECODED_TOLERANCE_LEVELS = 3.0
# Images that were scaled before they were stored are filtered twice: 3 levels apart on average, 4
# compressed again (measured at 256 px); another image, or red in place of blue, tens.
SCALED_TOLERANCE_LEVELS = 8.0
# A scaled decode averages what the linear filter of four pixels leaves out: up to 8.8 levels apart
# in a batch of 8 from 64 px on; red in place of blue 14.9 and more (1,000 photographs, measured).
SCALED_DECODING_TOLERANCE_LEVELS = 12.0
# Pillow and OpenCV weigh the pixels of a shrunk crop differently: up to 2.3 levels apart in a batch
# of 8 from 64 px on, 4.0 in a single image; red in place of blue 14.0 and more, the other half of
# the flips 31 (240 photographs, measured).
AVERAGED_TOLERANCE_LEVELS = 6.0
# Difference of the means of a plane.  A scaled decode moves that of a single image of 64 px by up
# to 0.022, of a batch of 8 by 0.006 (1,000 photographs, measured).
MAX_MEAN_DIFFERENCE_SCALED_DECODING = 0.04

# --- equal work: means and losses -----------------------------------------------------------

# What one decoder and preprocessor make is the same number for number, whichever loader delivers it
# (measured); this share is room for sums in another order.
SAME_NUMBERS_TOLERANCE_SHARE = 1e-4
# Means and losses this close are the same: a share of a number near 0 says nothing.
SAME_NUMBERS_TOLERANCE = 1e-6
# Share of the last loss.  GPUs add in any order, and other decoders' pixels move a loss of 20 steps
# by 2 % (measured).
MAX_LOSS_DIFFERENCE = 0.05
MAX_LOSS_DIFFERENCE_OTHER_PIXELS = 0.10
# Share of the first loss.  From the same weights, bfloat16 moves a loss by 0.2 % and channels_last
# by nothing (measured); 40 steps later the classifier's losses are anywhere, as training magnifies
# what was rounded.
MAX_FIRST_LOSS_DIFFERENCE = 0.02
# Losses this close are the same, where they are not the same number for number.
LOSS_TOLERANCE = 0.001
