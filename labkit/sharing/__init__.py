"""Sharing: a run as one file for a colleague, and what must not be in it.

run ─ privacy: names, hosts and paths away ─▶ share_file: zip, checked ─▶ share: packed, opened
                                                        record: what may stand in it
"""
