"""English -> Chinese: all that `labkit watch` and `labkit diagnose` print, and the verdicts.

The fields of a template are those of the English one.  What a run stores stays English.
"""

CHINESE = {
    # --- between the parts of a sentence
    ", ": "，",
    "; ": "；",
    ": ": "：",
    ")": "）",
    ".": "。",
    ", and ": "，而且",
    # --- numbers and what is counted
    "{n:,} {noun}": "{n:,} 个{noun}",
    "{n} images/s": "{n} 张/秒",
    "images/s": "张/秒",
    "{now} → {then} {unit}/s": "{now} → {then} {unit}/秒",
    "image": "图像",
    "images": "图像",
    "sample": "样本",
    "samples": "样本",
    "blocks": "区组",
    "block": "区组",
    "step": "step",
    "steps": "step",
    "worker": "worker",
    # --- watch: what was measured
    "labkit, rank {rank}": "labkit，rank {rank}",
    "Training: {measured}": "训练：{measured}",
    "Loop: {measured}": "循环：{measured}",
    "{n:,} batches": "{n:,} 个 batch",
    " ({n:.3g} to an optimizer step)": "（每 {n:.3g} 个更新一次参数）",
    "waiting for data {share} of the time": "{share} 的时间在等数据",
    " (median {median}, 99th percentile {p99}": "（中位数 {median}，第 99 百分位数 {p99}",
    "; most of it every {n} batches": "；主要是每 {n} 个 batch 等一次",
    "{share} of the time preparing batches after the loader": (
        "{share} 的时间在 DataLoader 之后整理 batch"
    ),
    "Run: {parts}": "整个运行：{parts}",
    "training {share}": "训练占 {share}",
    "loops {share}": "循环占 {share}",
    "validation {share} (waiting for data {waits} of it)": (
        "验证占 {share}（其中 {waits} 在等数据）"
    ),
    "outside loops {share}": "循环之外占 {share}",
    "GPU: utilization {share}": "GPU：利用率 {share}",
    " (other programs: {share})": "（其他程序：{share}）",
    ", memory {used}": "，显存已用 {used}",
    " of {total}": "，共 {total}",
    " (memory in use says nothing about utilization)": "（显存占用多少与利用率无关）",
    "No GPU in use": "没有用 GPU",
    "GPU: utilization unknown": "GPU：利用率未知",
    "cores in use, of {cores}: training {process:.2g}": (
        "共 {cores} 个核，训练进程用了 {process:.2g} 个"
    ),
    ", workers {n:.2g}": "，worker 用了 {n:.2g} 个",
    "rank": "rank",
    "waiting for data": "等数据",
    # --- watch: the answer
    "Data loading is {problem}: {effect}.": "数据加载{problem}：{effect}。",
    "the problem": "是瓶颈",
    "a small part of the problem": "只是瓶颈的一小部分",
    "the problem in the validation": "是验证阶段的瓶颈",
    "a small part of the problem in the validation": "只是验证阶段瓶颈的一小部分",
    "Data loading is not the problem: {why}.": "数据加载不是瓶颈：{why}。",
    "Whether data loading is the problem cannot be told: {why}.": (
        "无法判断数据加载是不是瓶颈：{why}。"
    ),
    "{who} waits for data {share} of its time": "{who}有 {share} 的时间在等数据",
    "the training": "训练",
    "the loop": "循环",
    "the run": "整个运行",
    "on {device}": "在 {device} 上",
    "without NVML": "没有 NVML 时",
    "{waits}, but whether the GPU computes meanwhile cannot be seen {where}": (
        "{waits}，但{where}看不出这时 GPU 是否在计算"
    ),
    ", but other programs use the GPU as well": "，但其他程序也在用这块 GPU",
    ", but the GPU computes meanwhile (utilization {busy})": (
        "，但这时 GPU 在计算（利用率 {busy}）"
    ),
    "; the validation waits {share} of its time, which is {of_run} of the run": (
        "；验证有 {share} 的时间在等，占整个运行的 {of_run}"
    ),
    "; the GPU is idle {share} of it because of the CPU work in a step": (
        "；GPU 有 {share} 的时间空闲，因为 step 里有 CPU 的工作"
    ),
    "the rest may include waiting for other ranks": "其余的时间里可能还在等其他 rank",
    "its workers keep the cores busy, which slows down the rest as well": (
        "worker 占满了 CPU 核，其余部分也因此变慢"
    ),
    "with loading that takes no time {what} would be at most {speed_up:.3g} times as fast": (
        "如果加载不花时间，{what}的速度最多是现在的 {speed_up:.3g} 倍"
    ),
    "rank {rank} waits for data {share} of its time, and the other ranks, which wait for "
    "data at most {most} of theirs, wait for it": (
        "rank {rank} 有 {share} 的时间在等数据，其他 rank 至多 {most}，它们都在等它"
    ),
    "no DataLoader of torch was iterated over in this process": (
        "这个进程里没有遍历过 torch 的 DataLoader"
    ),
    "the run was too short: no step was seen after the first one and the batches that "
    "had been loaded meanwhile": "运行太短：除第一个 step 和其间已加载好的 batch 外，没有别的 step",
    "the training takes its batches from a loader that watch does not see (not a DataLoader of "
    "torch, or in another process); {wrap}": (
        "训练所用的加载器 watch 看不到（不是 torch 的 DataLoader，或在别的进程里）；{wrap}"
    ),
    "a thread takes the batches from the loader, and how they reach the training was not seen; "
    "{wrap}": "由一个线程从加载器取 batch，没有看到 batch 怎样交给训练；{wrap}",
    "wrap it in the training loop: `for batch in lab.watch(loader)`": (
        "请在训练循环里包一层：`for batch in lab.watch(loader)`"
    ),
    "Cause: {cause}.": "原因：{cause}。",
    "the training process itself prepares batches after the loader": (
        "训练进程自己在 DataLoader 之后整理 batch"
    ),
    "num_workers=0, so the training process loads every batch itself": (
        "num_workers=0，每个 batch 都由训练进程自己加载"
    ),
    "most of the waiting is at the start of epochs, while workers start": (
        "大部分等待在 epoch 开头，worker 正在启动"
    ),
    "all {cores} cores are busy, so more workers would not help": (
        "{cores} 个核全都很忙，增加 worker 没有用"
    ),
    "this process may use {cores} of the machine's {machine} cores: {reasons}": (
        "这台机器有 {machine} 个核，这个进程可以用 {cores} 个：{reasons}"
    ),
    "{ranks} ranks share {shared}": "{ranks} 个 rank 共用 {shared} 个",
    "the CPU affinity (taskset, numactl, a batch system) leaves out the others": (
        "CPU 亲和性（taskset、numactl 或作业系统所设）不含其余的核"
    ),
    "the control group, such as a container's, grants {quota:.3g}": (
        "控制组（例如容器的）只给 {quota:.3g} 个"
    ),
    "a worker uses {share} of a core": "每个 worker 用一个核的 {share}",
    " and cores are idle, so more workers may help": "，还有空闲的核，增加 worker 可能有用",
    ", and other programs keep the cores busy": "，其他程序占着 CPU 核",
    ": workers wait as well, for storage, a lock or one late batch": (
        "：worker 也在等，等存储、等锁，或等一个迟到的 batch"
    ),
    "Next: {command}": "下一步：{command}",
    "Every DataLoader that the script makes gets {arguments}.": (
        "脚本创建的每个 DataLoader 都用 {arguments}。"
    ),
    "The script was terminated; this was measured until then.": (
        "脚本被终止；以下是到那时为止的结果。"
    ),
    "The script ended with {error}; this was measured until then.": (
        "脚本因 {error} 结束；以下是到那时为止的结果。"
    ),
    "The training has waited {seconds} for its next batch: the loader may hang. "
    "Interrupt it (Ctrl-C) to end it and see what was measured.": (
        "训练等下一个 batch 已等了 {seconds}：加载器可能卡死了。按 Ctrl-C 结束，可看到已测结果。"
    ),
    "--loader changed nothing: the script made no DataLoader.": (
        "--loader 没有作用：脚本没有创建 DataLoader。"
    ),
    "--loader: a DataLoader without workers does not take {names}; add num_workers=N.": (
        "--loader：没有 worker 的 DataLoader 不接受 {names}；请加上 num_workers=N。"
    ),
    # --- compare
    "this run": "本次运行",
    " and ": " 和 ",
    "{n} of {run}": "{run}有 {n} 个",
    "Inconclusive: {n} steps of each run are needed after its first ones, got {counted}. "
    "Let it train longer.": (
        "尚无定论：除最初几个 step 外，每次运行还需要 {n} 个 step，而{counted}。请训练更久。"
    ),
    "{ratio} times as fast {interval}": "速度是原来的 {ratio} 倍 {interval}",
    " ({before} → {after})": "（{before} → {after}）",
    "Waiting for data: {before} of the time before, {after} after.": (
        "等数据：之前占 {before} 的时间，之后占 {after}。"
    ),
    "Inconclusive: {interval}, but only {run} has starts of epochs, which take {share} of "
    "its time. Let both train for several epochs.": (
        "尚无定论：{interval}，但只有{run}含 epoch 的开头，占其时间的 {share}。"
        "请让两次都训练几个 epoch。"
    ),
    "{verdict}: {interval}.": "{verdict}：{interval}。",
    " About {n:,} steps of each run would tell.": "每次运行约 {n:,} 个 step 才能判断。",
    "Changed in the DataLoader: {changes}.": "DataLoader 的改动：{changes}。",
    "an unknown number": "未知数目",
    "Data set {before} before, {after} after: whether their samples are the same was not "
    "checked.": ("数据集之前是 {before}，之后是 {after}：没有检查它们的样本是否相同。"),
    "The length of the data set is unknown: whether both runs train on as many samples was "
    "not checked.": "数据集的长度未知：没有检查两次运行的样本数是否相同。",
    "Other processes used {before} of {cores} cores before and {after} after, which changes "
    "the speed as well: repeat both runs without them.": (
        "共 {cores} 个核，其他程序之前用了 {before} 个，之后用了 {after} 个，这也会改变速度："
        "请在没有它们时重做两次运行。"
    ),
    # --- watch --pid
    "Loading is likely the limit: {why}.": "数据加载很可能是瓶颈：{why}。",
    "Loading is unlikely the limit: {why}.": "数据加载不太可能是瓶颈：{why}。",
    "Whether loading is the limit cannot be told from outside: {why}.": (
        "从外面无法判断数据加载是不是瓶颈：{why}。"
    ),
    "the training process sleeps {share} of the time": "训练进程有 {share} 的时间在休眠",
    " only": "，并不多",
    "the GPU computes {share} of the time": "GPU 有 {share} 的时间在计算",
    ", but NCCL does so, too, while it waits for other ranks": (
        "，但 NCCL 等其他 rank 时，GPU 也显示为在计算"
    ),
    "the training process itself waits for a disk {share} of the time": (
        "训练进程自己有 {share} 的时间在等硬盘"
    ),
    "it has no workers, so one process loads and computes": "没有 worker，加载和计算在同一个进程里",
    "this process only waits; look at one that it started: {started}": (
        "这个进程只是在等；请观察它启动的进程：{started}"
    ),
    "NVML does not say how much of the time its GPU computes": (
        "NVML 没有给出这个进程的 GPU 有多少时间在计算"
    ),
    "its workers work or wait for storage {share} of the time": (
        "worker 有 {share} 的时间在工作或等存储"
    ),
    ": they have nothing to do": "：它们闲着",
    "{who}: {states}": "{who}：{states}",
    "{state} {share}": "{state} {share}",
    "Training process": "训练进程",
    "running": "运行",
    "waiting for a disk": "等硬盘",
    "waiting for a network": "等网络",
    "asleep": "休眠",
    "GPU: none in use": "GPU：没有用",
    "; cores busy {share}": "；CPU 核忙 {share}",
    # --- diagnose: around the screen
    "This run is thrown away. Once {what} trains, copies of its loader and kept batches are "
    "measured for about {budget}; then it is ended, without the end of an epoch. Its own `finally` "
    "blocks and exception handlers run, and may write files.": (
        "这一遍运行作废。{what} 开始训练后，用它的加载器的副本和留存的 batch 测量约 {budget}，"
        "然后结束它，不会走到 epoch 的末尾。脚本自己的 `finally` 和异常处理会执行，可能写文件。"
    ),
    "Files that changed during this run: {files}": "这次运行中改动的文件：{files}",
    "Files that changed during this run: {files}, and {n} more": (
        "这次运行中改动的文件：{files}，以及另外 {n} 个"
    ),
    "Nothing was diagnosed: {why}.": "没有得到诊断：{why}。",
    "the script was terminated": "脚本被终止",
    "labkit: {why}": "labkit：{why}",
    "The script catches what ends it, and goes on: its process is ended.": (
        "脚本捕获了结束信号并继续运行：结束它的进程。"
    ),
    "no DataLoader was iterated over in this process": "这个进程里没有遍历过 DataLoader",
    "no DataLoader was iterated over in this process: the script may have computed 0 epochs from "
    "len(loader), which is large until it is diagnosed": (
        "这个进程里没有遍历过 DataLoader：诊断完成之前 len(loader) 很大，"
        "脚本可能据此算出了 0 个 epoch"
    ),
    "no optimizer step was seen, and no loop went on for long": (
        "没有看到优化器更新参数，也没有持续较久的循环"
    ),
    "the training ended after too few steps, or its steps do not follow its batches": (
        "训练在太少的 step 之后就结束了，或它的 step 与 batch 不对应"
    ),
    "{desc} {percentage:3.0f}% |{bar:20}| {elapsed}, {remaining} left{postfix}": (
        "{desc} {percentage:3.0f}% |{bar:20}| {elapsed}，还剩 {remaining}{postfix}"
    ),
    "diagnosis": "诊断",
    "first steps": "最初几个 step",
    "block {n} of {blocks}": "区组 {n}/{blocks}",
    "inside the workers": "worker 内部",
    "profile of the step": "step 的性能分析",
    "done": "完成",
    # --- diagnose: the screen
    "{verdict}: data loading costs {share}": "{verdict}：数据加载耗去 {share}",
    " of the training's time": " 的训练时间",
    "not input-bound": "训练不受限于数据加载",
    "moderately input-bound": "训练在一定程度上受限于数据加载",
    "highly input-bound": "训练严重受限于数据加载",
    "between {low} and {high}": "介于“{low}”与“{high}”之间",
    ", of which the medium takes {share}": "，其中存储介质占 {share}",
    ". Bottleneck: {bottleneck}": "。瓶颈：{bottleneck}",
    ". Not explained: {share} of a batch's time": "。一个 batch 的用时中有 {share} 原因不明",
    "; the largest known part is {name}, {share}": "；已知部分中最大的是 {name}，{share}",
    "; the largest part of a batch's time is {name}, {share}": (
        "；一个 batch 的用时中最大的部分是 {name}，{share}"
    ),
    ". Whether data loading is the bottleneck is not certain; raise budget_s": (
        "。不能确定数据加载是不是瓶颈；请加大 budget_s"
    ),
    ". Data loading is not the bottleneck": "。数据加载不是瓶颈",
    "Diagnosis stopped: {why}.": "诊断中止：{why}。",
    " What was measured until then is below.": "以下是到那时为止的结果。",
    "Bottleneck: {bottleneck}. {why}": "瓶颈：{bottleneck}。{why}",
    "With a loader that takes no time: up to {ratio:.3g}× as fast ({rates}).": (
        "如果加载不花时间：速度最多是现在的 {ratio:.3g} 倍（{rates}）。"
    ),
    "{number}. {name}: {reason}.": "{number}. {name}：{reason}。",
    "{number}. {name}: {gain}, {rates}; {reason}.": "{number}. {name}：{gain}，{rates}；{reason}。",
    "{ratio:.3g}× as fast{interval} ({how})": "速度是现在的 {ratio:.3g} 倍{interval}（{how}）",
    "expected": "推算",
    "tried": "实测",
    "Nothing to gain: no change that was tried or can be bounded saves 3 %.": (
        "没有可改进的：试过的和能估计的改法都省不了 3 %。"
    ),
    "No change that was tried or can be bounded saves 3 %.": "试过的和能估计的改法都省不了 3 %。",
    "The step alone ({device}): {step} {unit}/s; the loader alone: {alone}.": (
        "只做 step（{device}）：{step} {unit}/秒；只做加载：{alone}。"
    ),
    "{who} takes {seconds} for a batch: {parts}.": "{who}做一个 batch 要 {seconds}：{parts}。",
    "A worker": "一个 worker ",
    "The main process": "主进程",
    "{name} {share}": "{name} {share}",
    "A sample: {size}.": "一个样本：{size}。",
    "{dtype}, {size}": "{dtype}，{size}",
    "; {dtype} would be half": "；用 {dtype} 只要一半",
    "; {dtype} would be a quarter": "；用 {dtype} 只要四分之一",
    " They are busy {share} of the time: give the training more cores.": (
        "它们有 {share} 的时间在忙：请给训练更多的核。"
    ),
    "Note: {note}.": "注：{note}。",
    # --- diagnose: --details
    "{name} ({kind}): {seconds}, {share}": "{name}（{kind}）：{seconds}，{share}",
    "{name}: {gain}; {change}": "{name}：{gain}；{change}",
    "{name}: no epoch can take less than {least} of the time now": (
        "{name}：epoch 的用时不可能少于现在的 {least} 倍"
    ),
    "{blocks} of every arm in random order, on {device}; {size} a batch.": (
        "每种测法测{blocks}，顺序随机，在 {device} 上；每个 batch {size}。"
    ),
    "first steps, loading and computing: {seconds} a step": (
        "最初几个 step，加载加计算：每个 step {seconds}"
    ),
    "{arm}: {seconds} a step": "{arm}：每个 step {seconds}",
    "computing alone (batches are kept)": "只做计算（用留存的 batch）",
    "loading alone": "只做加载",
    "loading and computing": "加载加计算",
    "loading and computing, files evicted before": "加载加计算，文件先逐出页缓存",
    # --- diagnose: bottlenecks, and parts of a batch's time
    "{function} in {caller}": "{caller} 里的 {function}",
    "waiting in {name}": "{name} 里的等待",
    "not explained": "原因不明",
    "compute": "计算",
    "duplicated work": "重复的工作",
    "shared memory": "共享内存",
    "workers wait for each other": "worker 互相等待",
    "jitter": "快慢不均",
    "waiting for a core": "等 CPU 核",
    "per-batch overhead": "每个 batch 的固定开销",
    "bytes": "数据量",
    "serialization": "序列化",
    "sampler": "采样器",
    "shared storage": "共享存储",
    "pinning": "锁页",
    "start-up": "启动",
    "threads": "线程",
    "workers": "worker",
    "transfer": "传输",
    "synchronization": "同步",
    "checkpoint": "checkpoint",
    "reports": "上报",
    "host work": "主机上的工作",
    "main thread": "主线程",
    "launching": "kernel 启动",
    "storage": "存储",
    "reading": "读取",
    "read": "读取",
    "waiting": "等待",
    "decode": "解码",
    "transform": "变换",
    "collate": "collate",
    "sending": "发送",
    "handing over a batch": "交接 batch",
    "waiting for the main process": "等主进程",
    "waiting for a late batch": "等迟到的 batch",
    "waiting for shared storage": "等共享存储",
    "waiting for the thread that pins batches": "等锁页的线程",
    # --- diagnose: remedies
    "persistent workers": "保留 worker",
    "starting workers takes {seconds} of every epoch of {steps}": (
        "每个 epoch 有 {steps}，其中启动 worker 要 {seconds}"
    ),
    "more prefetching": "多预取",
    "the slowest batch takes {slowest}; the batches prepared ahead are used up after {ahead}": (
        "最慢的 batch 要 {slowest}；预先准备的 batch 在 {ahead} 后用完"
    ),
    "limit threads": "限制线程数",
    "{workers} workers × {threads:.2g} threads share {cores} cores": (
        "{workers} 个 worker × {threads:.2g} 个线程共用 {cores} 个核"
    ),
    "no workers": "不用 worker",
    "handing over a batch takes {handing}, making one {making}": (
        "交接一个 batch 要 {handing}，制作一个要 {making}"
    ),
    "more workers": "增加 worker",
    "the main process makes the batches itself, {seconds} each": (
        "batch 由主进程自己制作，每个 {seconds}"
    ),
    "{share} of making a batch is waiting, which needs no core": (
        "制作一个 batch 有 {share} 的时间在等，等待不占 CPU 核"
    ),
    "{workers} of {cores} cores make batches": "{cores} 个核中只有 {workers} 个在制作 batch",
    "fewer workers": "减少 worker",
    "{workers} workers make a batch in {together}, which one of them makes in {one} by itself": (
        "{workers} 个 worker 一起，每 {together} 做出一个 batch，其中一个单独做要 {one}"
    ),
    "no pinning": "不锁页",
    "pin less": "少锁页",
    "a single thread copies every batch of {size} into pinned memory; that takes it {pinning} "
    "of the {alone} in which the loader delivers a batch": (
        "只有一个线程把每个 {size} 的 batch 拷进锁页内存，要 {pinning}，"
        "而加载器每 {alone} 交出一个 batch"
    ),
    "batches of few, large tensors in a small dtype such as uint8": (
        "batch 由少数几个大张量组成，用 uint8 这样的小 dtype"
    ),
    "pin memory": "锁页内存",
    "pin memory alone": "只用锁页内存",
    "a copy of {size} takes {seconds}, in which the host waits; from pinned memory {pinned}": (
        "拷贝 {size} 要 {seconds}，这时主机在等；从锁页内存拷贝要 {pinned}"
    ),
    "pin_memory=True in the DataLoader, and batch.to(device, non_blocking=True)": (
        "DataLoader 用 pin_memory=True，再用 batch.to(device, non_blocking=True)"
    ),
    "synchronize less often": "少同步",
    "in every step the host waits {seconds} until the device is done (.item(), .cpu(), print)": (
        "每个 step 里主机要等 {seconds}，直到设备完成（.item()、.cpu()、print）"
    ),
    "keep the loss on the device (loss.detach()), and read it every 50 steps": (
        "把 loss 留在设备上（loss.detach()），每 50 个 step 读一次"
    ),
    "save less often": "少保存",
    "saving": "保存",
    "save every 10th time, or in a thread from a copy": "每 10 次保存一次，或在线程里保存副本",
    "report less often": "少上报",
    "reporting": "上报",
    "report every 10th time, or from a thread; in tqdm: set_postfix(…, refresh=False)": (
        "每 10 次上报一次，或在线程里上报；tqdm 用 set_postfix(…, refresh=False)"
    ),
    "average all weights in one call, torch._foreach_lerp_(averages, weights, 1 - decay), or only "
    "every 10 steps": (
        "一次调用平均所有权重：torch._foreach_lerp_(averages, weights, 1 - decay)，"
        "或每 10 个 step 做一次"
    ),
    "vectorize host work": "主机上的工作向量化",
    "work on the host": "主机上的工作",
    "operations on whole tensors, in the loader's workers, or only every 50 steps": (
        "对整个张量运算，或放到 DataLoader 的 worker 里，或每 50 个 step 做一次"
    ),
    "transform in workers": "在 worker 里做变换",
    "computing on the host": "主机上的计算",
    "do it in the data set, where workers run it beside the step, or on the device": (
        "放到数据集里，由 worker 与 step 并行完成，或放到设备上"
    ),
    "{what} takes {seconds} of the {step} of a step": "{what}在每个 step 的 {step} 中占 {seconds}",
    "{what} takes {seconds} of the {step} of a step, most in {function}": (
        "{what}在每个 step 的 {step} 中占 {seconds}，主要在 {function} 里"
    ),
    "bf16 autocast": "bf16 autocast",
    "channels last": "channels last",
    "torch.compile": "torch.compile",
    "the device is the limit": "瓶颈是设备",
    "with torch.autocast(device.type, torch.bfloat16): …": (
        "with torch.autocast(device.type, torch.bfloat16): …"
    ),
    "fewer launches": "减少 kernel 启动",
    "launching takes {launch} of the {step} of a step, in which the device computes for "
    "{device}": "每个 step 的 {step} 中，启动 kernel 占 {launch}，设备只计算 {device}",
    "model.compile(mode='reduce-overhead'), a fused optimizer (fused=True), or larger batches": (
        "model.compile(mode='reduce-overhead')，融合的优化器（fused=True），或更大的 batch"
    ),
    "split between workers": "由 worker 分担",
    "each of {workers} workers delivers the same samples: an epoch is {workers} times as "
    "long as its data": (
        "{workers} 个 worker 交出的样本相同：一个 epoch 的长度是数据的 {workers} 倍"
    ),
    "in __iter__: worker = get_worker_info(); "
    "itertools.islice(samples, worker.id, None, worker.num_workers)": (
        "在 __iter__ 里：worker = get_worker_info(); "
        "itertools.islice(samples, worker.id, None, worker.num_workers)"
    ),
    "share no lock": "不共用锁",
    "{workers} workers make a batch in {together}, one alone would in {one}, and cores are idle": (
        "{workers} 个 worker 一起每 {together} 做出一个 batch，单独一个要 {one}，而且有空闲的核"
    ),
    "a handle or connection of its own for each worker (worker_init_fn), no lock around "
    "what waits": "每个 worker 用自己的句柄或连接（worker_init_fn），等待时不持锁",
    "larger batches": "更大的 batch",
    "{seconds} a batch do not depend on its {samples}; from {enough} on they are below {share}": (
        "每个 batch 有 {seconds} 与它的 {samples}无关；从 {enough} 个起占不到 {share}"
    ),
    "fewer bytes": "减少数据量",
    "a batch is {total}, a sample {size}": "一个 batch {total}，一个样本 {size}",
    "float32 in the dataset: array.astype(np.float32)": (
        "数据集里用 float32：array.astype(np.float32)"
    ),
    "keep pixels uint8 in the dataset; on the device: x.float().div_(255)": (
        "数据集里像素保持 uint8；到设备上再 x.float().div_(255)"
    ),
    "cheaper serialization": "减少序列化",
    "a batch holds {objects:,} Python objects, which take {seconds} to send": (
        "一个 batch 里有 {objects:,} 个 Python 对象，发送要 {seconds}"
    ),
    "return tensors (they go through shared memory), not lists, dicts or objects": (
        "返回张量（经共享内存传递），不要返回列表、字典或对象"
    ),
    "faster decode": "更快的解码",
    "{name} takes {took} of the {made} that a batch takes": (
        "{name} 在一个 batch 的 {made} 中占 {took}"
    ),
    "{name} takes {took} of the {made} in which a worker makes a batch": (
        "worker 做一个 batch 要 {made}，{name} 占 {took}"
    ),
    "; an image takes {own}, labkit's {decoder} {seconds} here": (
        "；一张图像要 {own}，labkit 的 {decoder} 在这里要 {seconds}"
    ),
    "a faster decoder (lab.DECODERS), or images stored at the size that is trained on": (
        "换更快的解码器（lab.DECODERS），或按训练所用的尺寸存图像"
    ),
    "faster transform": "更快的变换",
    "; in the data set, where workers run it": "；放到数据集里，由 worker 完成",
    "faster collate": "更快的 collate",
    "an array or a tensor for each sample: of a list, default_collate makes a tensor for each "
    "number": "每个样本用一个数组或张量：对列表，default_collate 会为每个数建一个张量",
    "torch.stack of ready tensors, and nothing else in collate_fn": (
        "collate_fn 里只对现成的张量做 torch.stack"
    ),
    "faster sampler": "更快的采样器",
    "drawing a batch's samples takes the main process {seconds}": (
        "主进程为一个 batch 抽取样本要 {seconds}"
    ),
    "draw the order once per epoch, as an array": "每个 epoch 一次抽好顺序，存成数组",
    "wait less": "少等待",
    "faster medium": "更快的存储介质",
    "an epoch from the medium takes {cold}, from memory {warm}": (
        "从存储介质读，一个 epoch 要 {cold}；从内存读要 {warm}"
    ),
    "copy the files to an SSD or tmpfs, or pack them into one file": (
        "把文件拷到 SSD 或 tmpfs，或打包成一个文件"
    ),
    "cheaper reads": "更省的读取",
    "; it computes, so a faster disk does not help": "；它在计算，换更快的硬盘没有用",
    "faster shared storage": "更快的共享存储",
    "{workers} workers together read {together} from storage, and one alone {one}": (
        "{workers} 个 worker 一起从存储读 {together}，单独一个读 {one}"
    ),
    "copy the files to a local disk first, or store less to read: smaller images, or many "
    "in one file; more workers read no faster": (
        "先把文件拷到本机硬盘，或少存要读的数据：图像小一些，或多张存成一个文件；"
        "增加 worker 不会读得更快"
    ),
    "faster reads": "更快的读取",
    "copy the files to an SSD or tmpfs, or pack them into one file that is read in order": (
        "把文件拷到 SSD 或 tmpfs，或打包成一个顺序读的文件"
    ),
    "less prefetching": "少预取",
    "workers prepare {n} batches ahead": "worker 预先准备 {n} 个 batch",
    "workers prepare {n} batches of {size} ahead": "worker 预先准备 {n} 个 batch，每个 {size}",
    "{folder} must have room for the batches of all loader workers, got {free} free of {total}; "
    "use fewer workers or a smaller batch, or {more}": (
        "{folder} 必须放得下所有 worker 的 batch，现在共 {total}，还剩 {free}；"
        "请减少 worker 或用更小的 batch，或{more}"
    ),
    "give a container more with: docker run --shm-size=2g": "给容器更多：docker run --shm-size=2g",
    # --- tune
    "set": "组合",
    "sets": "组合",
    "trial": "试验",
    "trials": "试验",
    "tuning": "调参",
    "other arguments": "其他参数",
    "the best and as it is": "最好的与现状",
    "as it is": "现状",
    "one thread in each worker": "每个 worker 一个线程",
    "threads of a worker": "一个 worker 的线程",
    "no difference": "没有差别",
    "no gain shown": "没有显示出提升",
    "{value} takes {times} times as long": "{value} 的用时是 {times} 倍",
    "no time for it in budget_s={budget_s:g}; {enough_s} is enough for all": (
        "budget_s={budget_s:g} 的时间不够；{enough_s} 够试全部"
    ),
    "budget_s must be at least {needed_s} to try {candidates} sets of arguments once, as each "
    "takes {seconds}, got {budget_s:g}; give it more seconds": (
        "budget_s 至少要 {needed_s} 才能把 {candidates} 组参数各试一次，因为每次要 {seconds}，"
        "现在是 {budget_s:g}；请多给些时间"
    ),
    "Tuning stopped: {why}.": "调参提前结束：{why}。",
    "{gain}; the interval includes 1: more time may show it, budget_s={longer_s}": (
        "{gain}；区间包含 1：多给时间可能看得出来，budget_s={longer_s}"
    ),
    "Nothing is worth changing: nothing that was tried is shown to be faster.": (
        "没有值得改的：试过的没有一个被证明更快。"
    ),
    "Nothing is worth changing: {arguments} is {gain}, not more than {most} faster.": (
        "没有值得改的：{arguments} 的{gain}，提速不超过 {most}。"
    ),
    "Inconclusive: {arguments} was the fastest, and there was no time to compare it with the "
    "loader as it is; more time may show it, budget_s={longer_s}.": (
        "尚无定论：{arguments} 最快，但没有时间与现在的 loader 比较；多给时间可能看得出来，"
        "budget_s={longer_s}。"
    ),
    "Inconclusive: {arguments} is {gain}; more time may show it, budget_s={longer_s}.": (
        "尚无定论：{arguments} 的{gain}；多给时间可能看得出来，budget_s={longer_s}。"
    ),
    "Not worth changing: {words}.": "不值得改：{words}。",
    "Not tried, {arguments}: {reason}": "没有试 {arguments}：{reason}",
    "{sets} of arguments in {trials}, {took}.": "参数试了 {sets}，共 {trials}，用时 {took}。",
    "{arguments}: {times} of the time of the best of its step, {blocks}": (
        "{arguments}：用时是这一步里最好的 {times} 倍，{blocks}"
    ),
    "step must work on the loader's batches, got {error}; try step(next(iter(loader)))": (
        "step 必须能处理 loader 的 batch，现在是 {error}；请试 step(next(iter(loader)))"
    ),
    "loader must yield batches, got {error}": "loader 必须产出 batch，现在是 {error}",
    "each worker would yield all samples of this IterableDataset": (
        "每个 worker 都会产出这个 IterableDataset 的全部样本"
    ),
    "{workers} would take {needed} of memory, of which {free} is free": (
        "{workers}要占 {needed} 内存，空闲的有 {free}"
    ),
    "{workers} in each of {ranks} processes would take {needed} of memory, of which {free} is "
    "free": "{ranks} 个进程各用{workers}要占 {needed} 内存，空闲的有 {free}",
    "a worker cannot load: {error}": "worker 不能加载：{error}",
    "a worker to yield a batch": "worker 产出 batch",
    # --- diagnose: what to write instead of a function
    "keep pixels uint8, and convert the batch on the device: x.float().div_(255)": (
        "像素保持 uint8，到设备上对整个 batch 转换：x.float().div_(255)"
    ),
    "do it for the whole batch on the device": "到设备上对整个 batch 做",
    "open it once in each worker, at its first sample, not for each sample": (
        "每个 worker 在第一个样本时打开一次，不要每个样本都打开"
    ),
    "fetch several at once in threads, keep the connection open, or read larger shards": (
        "用线程同时取几个，保持连接，或读更大的分片"
    ),
    "decode fewer pixels (image.draft('RGB', size) before it), store images at the size that is "
    "trained on, or cv2.resize on an array": (
        "少解码像素（先 image.draft('RGB', size)），按训练所用的尺寸存图像，或对数组用 cv2.resize"
    ),
    "ImageFolder(root, loader=…) with a function that decodes with simplejpeg or cv2.imread, or "
    "store images at the size that is trained on": (
        "给 ImageFolder(root, loader=…) 一个用 simplejpeg 或 cv2.imread 解码的函数，"
        "或按训练所用的尺寸存图像"
    ),
    "decode JPEG at a reduced size, simplejpeg.decode_jpeg(data, min_height=…, min_width=…), or "
    "store images at the size that is trained on": (
        "按缩小的尺寸解码 JPEG：simplejpeg.decode_jpeg(data, min_height=…, min_width=…)，"
        "或按训练所用的尺寸存图像"
    ),
    "decode with simplejpeg or cv2.imdecode, or store images at the size that is trained on": (
        "用 simplejpeg 或 cv2.imdecode 解码，或按训练所用的尺寸存图像"
    ),
    "decode with simplejpeg, or at half the size where that is enough (IMREAD_REDUCED_COLOR_2)": (
        "用 simplejpeg 解码，够用时按一半的尺寸解码（IMREAD_REDUCED_COLOR_2）"
    ),
    "decode at a reduced size (IMREAD_REDUCED_COLOR_2), so that less is resized; "
    "cv2.setNumThreads(0) in workers": (
        "按缩小的尺寸解码（IMREAD_REDUCED_COLOR_2），缩放就少；worker 里用 cv2.setNumThreads(0)"
    ),
    "torchvision.transforms.v2 on uint8 tensors after cropping, or do it for the whole batch on "
    "the device": ("裁剪后对 uint8 张量用 torchvision.transforms.v2，或到设备上对整个 batch 做"),
    "crop before anything else, on uint8; or crop and flip on the device": (
        "先裁剪，用 uint8；或到设备上裁剪和翻转"
    ),
    "crop first, on uint8 arrays; cv2.setNumThreads(0) in workers": (
        "先裁剪，用 uint8 数组；worker 里用 cv2.setNumThreads(0)"
    ),
    "collate as it is stored, and reshape or permute the batch on the device": (
        "按存储的样子 collate，到设备上对 batch 做 reshape 或 permute"
    ),
    "make samples on the CPU, and copy whole batches to the device in the training loop": (
        "在 CPU 上做样本，在训练循环里把整个 batch 拷到设备"
    ),
    "crop and resize first, so that it touches fewer pixels, or do it on the device": (
        "先裁剪和缩放，要处理的像素就少，或到设备上做"
    ),
    "convert after resizing, or decode to RGB at once: simplejpeg.decode_jpeg, or "
    "cv2.IMREAD_COLOR_RGB": (
        "缩放之后再转换，或直接解码成 RGB：simplejpeg.decode_jpeg 或 cv2.IMREAD_COLOR_RGB"
    ),
    "make one array when the data set is made, and return views: torch.from_numpy(array[i])": (
        "创建数据集时建一个数组，返回它的视图：torch.from_numpy(array[i])"
    ),
    "make it once and reuse it, or make it on the device": "只创建一次并重复使用，或在设备上创建",
    "return tensors of one shape from the data set, and nothing but torch.stack in collate_fn": (
        "数据集返回形状相同的张量，collate_fn 里只做 torch.stack"
    ),
    "look values up in a NumPy array that is made once: frame['column'].to_numpy(); the rows of "
    "each key: frame.groupby('key').indices": (
        "在只创建一次的 NumPy 数组里查值：frame['column'].to_numpy()；每个键的各行："
        "frame.groupby('key').indices"
    ),
    "read it once, when the data set is made, and keep NumPy arrays: frame['column'].to_numpy()": (
        "创建数据集时读一次，存成 NumPy 数组：frame['column'].to_numpy()"
    ),
    "parse once, when the data set is made, and keep arrays": "创建数据集时解析一次，存成数组",
    "store it uncompressed, or compressed with lz4 or zstd, which decompress much faster": (
        "不压缩，或用解压快得多的 lz4、zstd 压缩"
    ),
    "store chunks of one sample, chunks=(1, …), without compression": (
        "每个 chunk 存一个样本，chunks=(1, …)，不压缩"
    ),
    "store chunks of one sample, chunks=(1, …), so that no other sample is read": (
        "每个 chunk 存一个样本，chunks=(1, …)，就不会读到别的样本"
    ),
    "one environment for each worker, and env.begin(buffers=True), which copies nothing": (
        "每个 worker 一个 environment，用 env.begin(buffers=True)，不复制数据"
    ),
    "lmdb.open(path, readahead=False) where the file is larger than memory": (
        "文件大于内存时用 lmdb.open(path, readahead=False)"
    ),
    "store images as they are, ZipFile(path, 'w', zipfile.ZIP_STORED), as JPEG and PNG are "
    "compressed already": (
        "图像原样存入 ZipFile(path, 'w', zipfile.ZIP_STORED)，JPEG 和 PNG 本来就是压缩的"
    ),
    "note where each file begins, member.offset_data, and read it with os.pread; a search by name "
    "reads the whole archive": (
        "记下每个文件的起始位置 member.offset_data，用 os.pread 读；按名字查找要读完整个归档"
    ),
    "start no process for each sample: convert the files once, or call a library": (
        "不要为每个样本启动进程：文件事先转换一次，或直接调用库"
    ),
    "one connection for each worker, and many rows with each query": (
        "每个 worker 一个连接，每次查询取多行"
    ),
    "np.load(path, mmap_mode='r') once, .npy instead of .npz": (
        "只做一次 np.load(path, mmap_mode='r')，用 .npy 代替 .npz"
    ),
    "one array file that is mapped, np.load(path, mmap_mode='r'), not a pickle per sample": (
        "用一个映射的数组文件，np.load(path, mmap_mode='r')，不要每个样本一个 pickle"
    ),
    "OpenCV has most of these functions, for uint8 arrays, and faster": (
        "这些函数 OpenCV 大多都有，用于 uint8 数组，更快"
    ),
    "draw for many samples at once: rng.random(n)": "一次为多个样本抽取：rng.random(n)",
    "list the files once, when the data set is made": "创建数据集时列一次文件",
    "return new objects instead of copies": "返回新对象，不要复制",
    "operations on whole arrays instead of Python numbers": "对整个数组运算，不要用 Python 数字",
    "store decoded or resampled audio; spectrograms for the whole batch on the device": (
        "存解码或重采样后的音频；到设备上对整个 batch 算频谱"
    ),
    "draw each mask once, and store it as a PNG file beside its image": (
        "每个 mask 只画一次，存成图像旁边的 PNG 文件"
    ),
    "skip frames with VideoCapture.grab(), which does not convert them, or store the frames that "
    "are used": "用 VideoCapture.grab() 跳过帧，它不做转换，或只存用到的帧",
    "decode only the frames that are used, and seek to keyframes": "只解码用到的帧，按关键帧定位",
    # --- diagnose: what to write instead of a function of a step
    "AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay)), which "
    "averages all weights in one call, or only every 10 steps": (
        "用 AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))，"
        "一次调用平均所有权重，或每 10 步才做一次"
    ),
    "timm.utils.ModelEmaV3(model, foreach=True), which averages all weights in one call, or only "
    "every 10 steps": (
        "用 timm.utils.ModelEmaV3(model, foreach=True)，一次调用平均所有权重，或每 10 步才做一次"
    ),
    "set_postfix(…, refresh=False), and tqdm(…, mininterval=1)": (
        "用 set_postfix(…, refresh=False) 和 tqdm(…, mininterval=1)"
    ),
    "collect what the metrics need, and compute them once per epoch": (
        "先收集指标所需的数据，每个 epoch 只计算一次"
    ),
    "draw only every 100 steps, or after the epoch": "每 100 步才画一次，或在 epoch 之后画",
    # --- diagnose: notes, and what ended it early
    "{what} could not be tried: {why}": "没能试 {what}：{why}",
    "the first {n} batches stand for the whole epoch, as later ones cannot be read without them": (
        "epoch 的前 {n} 个 batch 代表整个 epoch，因为不读它们就读不到后面的"
    ),
    "looking into a worker ended early: {why}": "对 worker 的观察提前结束：{why}",
    "cold was not measured: {why}": "没有测冷缓存：{why}",
    "the budget was over before loading and computing were measured; raise budget_s": (
        "预算用完时，加载和计算还没有测完；请加大 budget_s"
    ),
    "Not measured for lack of time: {what}; raise budget_s.": (
        "因为时间不够没有测：{what}；请加大 budget_s。"
    ),
    "{n} of {blocks} blocks of measurements": "{blocks} 个区组中的 {n} 个",
    "the look into a worker": "worker 内部",
    "decoders and an empty batch": "各解码器和空批次",
    "epochs from the disk": "从磁盘读取的 epoch",
    "the profile of the step": "step 的性能分析",
    "the profile of the device": "设备的性能分析",
    "trials of {changes}": "试 {changes}",
    "give files for that": "需要给出 files",
    "the files that a script reads stay in memory or on the disk, as they are": (
        "脚本读的文件保持原状，在内存里还是在硬盘上都不变"
    ),
    "warm is as found: {why}": "没有准备热缓存：{why}",
    "{size} of files do not fit into memory": "{size} 的文件放不进内存",
    "not a torch DataLoader: only what it does in this thread was seen": (
        "不是 torch 的 DataLoader：只看到它在这个线程里做了什么"
    ),
    "what the host does in a step was not looked at: {missing}": (
        "没有观察主机在 step 里做什么：{missing}"
    ),
    "copying was not timed: no step with batches on the device: {message}": (
        "没有测拷贝的时间：batch 在设备上时 step 不能运行：{message}"
    ),
    "loader must yield batches in every epoch, got none; give one that can be iterated again": (
        "加载器每个 epoch 都必须给出 batch，却没有；请给一个可以再次遍历的"
    ),
    "loader must yield batches, got None; does its collate_fn return one?": (
        "加载器必须给出 batch，却给出了 None；它的 collate_fn 返回 batch 吗？"
    ),
    "loader must yield at least one batch, got an empty one; look at its length": (
        "加载器至少要给出一个 batch，却是空的；请看它的长度"
    ),
    "waited {limit_s:g} s for {awaited}, got nothing; "
    "try it by hand with num_workers=0, where an error shows itself": (
        "等{awaited}已 {limit_s:g} 秒，没有结果；请用 num_workers=0 手动试一次，错误会显示出来"
    ),
    "loader to yield a batch": "加载器给出一个 batch",
    "loader to begin an epoch": "加载器开始一个 epoch",
    "step to return": "step 返回",
    "two workers": "两个 worker",
    "a first step with it": "改动后的第一个 step",
    "the loader cannot be copied: {why}": "加载器无法复制：{why}",
    "{message} (in a loader worker)": "{message}（在 worker 里）",
    "a loader worker ended while it was waited for ({message}); memory may have run out": (
        "等 worker 时它结束了（{message}）；内存可能用完了"
    ),
    "the training moves from one thread to another": "训练从一个线程转到另一个线程",
    "not all ranks load batches; with dispatch_batches, accelerate's first rank loads for all": (
        "不是所有 rank 都加载 batch；使用 accelerate 的 dispatch_batches 时，"
        "由第一个 rank 为所有 rank 加载"
    ),
    "the training left its loop before it was diagnosed": "训练在诊断完成之前离开了循环",
    "the training ended with {error}": "训练因 {error} 结束",
    "the training ended before it was diagnosed": "训练在诊断完成之前结束了",
    # --- verdicts of runs
    "verdict": "结论",
    "faster": "更快",
    "slower": "更慢",
    "no practical difference": "无实际差别",
    "real but small": "有差别但很小",
    "inconclusive": "尚无定论",
    "machine unstable": "机器不稳定",
}
