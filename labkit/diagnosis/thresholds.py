"""Thresholds that decide what a diagnosis measures and reports, each with its unit and its reason.

A share is a number from 0 to 1.
"""

from labkit.analysis.thresholds import DELTA

# How much of its time a training waits for data.
MODERATELY_INPUT_BOUND_SHARE = 0.05  # a training that waits less is not input-bound
INPUT_BOUND_SHARE = 0.20  # a training that waits at least this share is highly input-bound
REPORTED_SHARE = 0.05  # a smaller share of the time gets no sentence of its own
MAIN_CAUSE_SHARE = 0.5  # a part that takes more of the waiting time is named as the cause

# The hardware during a watched training.
GPU_IDLE_SHARE = 0.20  # of the time; reported although the data come in time
OTHER_PROGRAMS_SHARE = 0.10  # of a GPU; above, its utilization says little of this training
CORES_BUSY_SHARE = 0.80  # of all cores; above, workers slow down the training step, too
WORKER_BUSY_SHARE = 0.80  # of a core, for each worker; above, the workers compute all the time
WORKER_IDLE_SHARE = 0.50  # of a core, for each worker; below, the workers wait for something

# A training that is observed from outside.
GPU_BUSY_SHARE = 0.90  # of the time; above, the GPU is the limit
TRAINER_WAITING_SHARE = INPUT_BOUND_SHARE  # of the time in which the trainer sleeps
NEVER_WAITING_SHARE = 0.05  # of the time; a trainer that sleeps less never waits
WORKERS_WORKING_SHARE = 0.50  # of the workers' time; above, loading is likely the limit
WORKERS_IDLE_SHARE = 0.20  # of the workers' time; below, loading is unlikely the limit

# The steps of a loop.
FEWEST_CYCLES = 8  # that waits must have followed
SLOW_STEP_WAIT_SHARE = 0.8  # of a cycle's waiting, in one step; above, one batch of a cycle is late
LOOKED_AT_STACKS = 20  # of the first batches and optimizer steps of a thread; looks are costly
FEWEST_LOOKS = 20  # at the stack of the training thread, from outside; fewer give no share
FEWEST_UPDATES_SHARE = 0.1  # of the optimizer steps that must follow a batch of an observed loop

# What a step needs of each resource.
MAIN_PROCESS_BUSY_SHARE = 0.5  # of its time in CPU; above, workers wait until it takes a batch
IDLE_CORES_SHARE = 0.25  # of all cores; above, workers do not wait for a core
SMALL_WORK_RATIO = 4  # a batch's time / an empty batch's; below, handing it over matters more
OVERLAPPED_SHARE = 0.5  # of the shorter of loading and computing; above, both happen at once
CONTENTION_SHARE = 0.15  # of a worker's time that is not explained; less may be noise
PINNING_BUSY_SHARE = 0.8  # of its time in CPU; above, batches wait for the thread that pins them
LEAST_FETCHED_BYTES = 2048  # a sample, of pages of 4096; less: most samples come from memory
ADDED_READS_SHARE = 0.5  # of what each further worker would read if it were alone; below: saturated
BLOCKING_SYNCS_PER_STEP = 0.9  # above, the host waits for the device in every step
LEAST_CPU_RATIO = 0.1  # CPU time / probed time; CPU time is counted in ticks and may read as 0
MOSTLY_WAITING_SHARE = 0.5  # of making a batch; above, more workers than cores help
HINDERED_SHARE = 0.1  # of a batch's time; below, the step does not slow the workers down
LAUNCHING_SHARE = 0.5  # of a step; below, launching is not its limit
MANY_OBJECTS_PER_BATCH = 64  # fewer objects cost little to pickle
MANY_TENSORS_PER_BATCH = 64  # as default_collate makes of lists of numbers
SMALL_BATCH_BYTES = 1 << 20  # fewer bytes take no time to copy

# Which changes are proposed, and which one is the answer.
PER_BATCH_OVERHEAD_SHARE = 0.3  # of a batch's loading time that does not depend on its size
NEGLIGIBLE_OVERHEAD_SHARE = 0.05  # of the time; larger batches are tried down to this overhead
DEVICE_BOUND_CEILING = 0.9  # normalized time with free loading; above, faster computing is tried
LAUNCH_BOUND_DEVICE_SHARE = (
    0.8  # of a step; where the device works less, launching may be the limit
)
LOADER_BOUND_CEILING = 0.8  # normalized time with free loading; up to this the loader is the limit
UNEXPLAINED_SHARE = 1 / 3  # of a batch's time; above, no known part is called the bottleneck
LEAST_EXPLAINED_SHARE = 0.2  # of what loading costs; a change that saves less is not its cause
EQUAL_GAIN_DIFFERENCE = DELTA  # of the normalized time; the easier of two such changes comes first
EASY_GAIN_SHARE = 0.8  # of the best easy change's gain; an easy change that saves it is the answer
EASY_TO_BEST_GAIN_SHARE = 0.4  # of the best gain; below, the answer is work to rewrite
FREE_SHARED_MEMORY_SHARE = 0.1  # of /dev/shm; less has no room for a batch

# Which changes are tried and returned.
MOST_WAITING_WORKERS = 16  # tried where batches mostly wait, whatever the cores
MOST_AHEAD_BYTES = 2 << 30  # of batches that are loaded ahead
MOST_REMEDIES = 5  # returned, the best first

# Which parts of a batch's time are shown.
SHOWN_SHARE = 0.03  # of a batch's time, on the screen
LISTED_SHARE = 0.005  # of a batch's time, in the details

# When a running training is diagnosed.
STEADY_STEPS = 3  # after the first one, in which libraries compile
UNTRAINED_BATCHES = 60  # of a loop without optimizer steps, as of inference
MOST_FOLLOWING_STEPS = 60  # of a training whose epochs do not end
MOST_STEPS_PER_S = 5000  # of the smallest models; len(loader) is so many for a second of the budget
MOST_INSIDE_STEPS = 50  # on batches of other loaders, such as those of an inner loop

# When a watched training is reported.
FIRST_REPORT_STEPS = 50  # before the first report
REPORT_PERIOD_S = 30.0  # until another report; later ones come after twice as long each time

# When a loader, a worker or a step is no longer waited for.
STALL_S = 30.0  # without a batch; slow storage takes seconds
FIRST_TO_STALL_RATIO = 4  # for the first batch or step: workers start, libraries compile
LAST_BATCH_S = 5.0  # at most, for the batch that a thread still loads when the training has ended
DRAWING_S = 5.0  # at most, in which the order of an epoch is drawn

# How long a diagnosis measures: in a block, a stretch of steps for each arm.
BUDGET_S, LEAST_BUDGET_S = 50.0, 5.0  # a minute with what comes on top; less gives no interval
BLOCKS, FEWEST_BLOCKS = 5, 3  # planned; at least, where the time does not suffice
SHORTEST_STRETCH_S, LONGEST_STRETCH_S = 0.25, 4.0
FEWEST_STRETCH_STEPS = 8  # after those that are skipped, where they take no longer
FILLING_S = 4.0  # at most, until persistent workers have filled their queues
RESTS_S = 0.03  # in which workers that have full queues use hardly any CPU
# Of the budget: the arms, the probe inside a worker, the profile of the step, trials of remedies.
# The rest is for workers to start and to end.  The bar shows the same shares.
ARMS_SHARE, STAGES_SHARE, PROFILE_SHARE, TRIALS_SHARE = 0.4, 0.1, 0.03, 0.4
# The first steps: of the budget, at most, and how many; they may compile.
FIRST_STEPS_SHARE, FIRST_STEPS_S, FIRST_STEPS = 0.06, 3.0, 12
FEWEST_COMPARED_BLOCKS = 2  # of trials; one has no interval
MOST_TRIED = 5  # changes, the most promising
MOST_FILES_SHARE = 0.4  # of memory; more files cannot stay in the page cache beside a training

# How long the search for a loader's arguments measures.
TUNING_BUDGET_S = 60.0  # of a loader
# Of the budget: the ends of the first and the second step; the second one ends earlier where the
# third needs more time.
WORKERS_END_SHARE, OTHERS_END_SHARE = 0.35, 0.75
# Blocks that compare the best with the loader as it is: those that time is kept for, and the most.
FEWEST_PAIRS, MOST_PAIRS = 4, 40
