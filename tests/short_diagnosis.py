"""A short diagnosis, for tests of which what is measured is large or does not matter."""

from labkit.diagnosis import arms, diagnose, measure, rules, verify

BUDGET_S = 200.0  # its stretches are so short that it ends much earlier, on a busy machine, too
# In the environment of a script that `warm_python` runs: it is diagnosed so.
SHORT = {"LABKIT_SHORT_DIAGNOSIS": "1"}


def shorten(set_attribute=setattr):
    set_attribute(diagnose, "LEAST_BUDGET_S", 1.0)
    for module in (measure, verify):
        set_attribute(module, "stretch_s", lambda *_: 0.1)
    # Shares of the budget that would be used up.
    set_attribute(measure, "STAGES_SHARE", 0.01)
    set_attribute(measure, "PROFILE_SHARE", 0.003)
    set_attribute(arms, "SHORTEST_STRETCH_S", 0.1)
    set_attribute(arms, "FEWEST_STRETCH_STEPS", 4)
    set_attribute(arms, "BLOCKS", 3)
    set_attribute(rules, "MOST_WAITING_WORKERS", 2)  # sixteen take seconds to start
