"""Thresholds that decide what a report and its charts show, each with its unit and its reason."""

# --- tables and texts -------------------------------------------------------------------------

SMALL_COMMUNICATION_SHARE = 0.03  # of a step; a link that takes less holds nobody up
PAGE_CACHE_SHARE = 0.8  # of memory, assumed: programs, workers and batches take the rest
# Bytes that come from disk / bytes of two epochs: the first one's, up to 10 % of them.
FIRST_EPOCH_READS_SHARES = (0.45, 0.55)
MIN_SIZE_RATIO = 1.1  # the largest stored images / the smallest; below, sizes are not shown

# --- charts -----------------------------------------------------------------------------------

MIN_CURVE_NUMBERS = 3  # distinct numbers of a setting; fewer make no line
LOGARITHMIC_AXIS_RATIO = 10  # the longest time / the shortest; above, the axis is logarithmic
MAX_INTERVAL_END_RATIO = 1.5  # how far an axis reaches for an interval's end / the longest time
# How far an axis reaches for this GPU: its speed / that of the fastest measured one, or the slowest
# one's / its.  The dots must not be crowded by a GPU that is far from them.
MAX_OWN_SPEED_RATIO = 4

# --- share files ------------------------------------------------------------------------------

# A full run of all media takes some MB.
MAX_FILE_BYTES, MAX_MEMBER_BYTES = 20_000_000, 50_000_000
