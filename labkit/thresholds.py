"""Thresholds that parts and the analysis share: when files count as cold, warm or cached.

Shares are of the files' pages in memory.  What one package alone decides by stands in its own
`thresholds.py`.
"""

# Neighbours in a pack share pages, and a page that another program has mapped stays.
COLD_MAX_SHARE = 0.02
WARM_MIN_SHARE = 0.98
# Around the percentage that was asked for: a few images make no exact share.
CACHED_TOLERANCE_SHARE = 0.05
