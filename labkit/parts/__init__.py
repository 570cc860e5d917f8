"""The eight stations a batch passes, one module each; none imports another.

storage → packing → decoding → preprocessing → loading → prefetching → devices → training
"""
