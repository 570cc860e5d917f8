"""NCCL's log: every era's lines, what looks like a transport and is none, and one sentence."""

import pytest

import labkit as lab
from labkit.cli import main

INFO = "machine-1:16194:18583 [3] NCCL INFO "
MPI = "[1,0]<stdout>:"
DISABLED_HCA = "NET/IB : GPU Direct RDMA Disabled for HCA {0} 'mlx5_{0}'"
NO_NVLS = "NVLS multicast support is not available on dev 5"


def read(folder, *lines):
    path = folder / "nccl.log"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return lab.read_nccl_log(path)


# What a line says -> channel, connection, source, target, end, transport, GPUDirect RDMA; most of
# the lines were posted in issues of NCCL, and the eras follow one another.
CHANNELS = {
    "Ring 00 : 43 -> 44 [receive] via NET/Socket/0":
        (0, None, 43, 44, "receive", "sockets", False),
    "Ring 01 : 1[160] -> 0[160] [send] via NET/AWS Libfabric/0":
        (1, None, 1, 0, "send", "AWS Libfabric", False),
    "Channel 03 : 7[b2000] -> 14[b1000] [send] via NET/IB/0/GDRDMA":
        (3, None, 7, 14, "send", "InfiniBand", True),
    "Channel 00 : 11[3e000] -> 9[1b000] via P2P/direct pointer":
        (0, None, 11, 9, "", "P2P", None),
    "Channel 00 : 0[18000] -> 1[3b000] via direct shared memory":
        (0, None, 0, 1, "", "shared memory", None),
    "Coll 00 : 2 [send] via COLLNET/SHARP/0":
        (0, None, 2, None, "send", "collnet", False),
    "Channel 03/0 : 7[3] -> 3[3] [receive] via NET/IBext_v8/3/GDRDMA":
        (3, 0, 7, 3, "receive", "InfiniBand", True),
    "Channel 01/1 : 4[0] -> 0[0] [send] via NET/IB/0(5)/GDRDMA(PCI)/Shared":
        (1, 1, 4, 0, "send", "InfiniBand", True),
    "Channel 00/0 : 9[0] -> 0[0] [receive] via NET/IB/2 comm 0x9bbf nRanks 16":
        (0, 0, 9, 0, "receive", "InfiniBand", False),
    "CollNet 00/0 : 6 [receive] via COLLNET/SHARP/1/GDRDMA":
        (0, 0, 6, None, "receive", "collnet", True),
}  # fmt: skip


@pytest.mark.parametrize("line", CHANNELS)
def test_a_line_of_any_era_names_a_channel_and_its_transport(tmp_path, line):
    (found,) = read(tmp_path, INFO + line).channels
    assert found[:-1] == CHANNELS[line]
    assert f" via {found.via}" in line


@pytest.mark.parametrize("line", [NO_NVLS, "Ring 00 : 0 -> 1 -> 0", "Channel 00/02 : 0 1"])
def test_what_is_no_transport_is_no_channel(tmp_path, line):
    log = read(tmp_path, INFO + line)
    assert log.channels == ()
    assert log.table().empty
    assert "No transport is known" in repr(log)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NCCL version 2.4.8+cuda10.1", "2.4.8+cuda10.1"),
        (INFO + "NCCL version 2.28.3 compiled with CUDA 12.9", "2.28.3"),
    ],
)
def test_the_version_is_found_in_either_form(tmp_path, line, version):
    assert read(tmp_path, line, INFO + "Using network IB").version == version


DISABLED = [
    DISABLED_HCA.format(0),
    "GPU Direct RDMA Disabled for GPU ca000 / HCA 0 (distance 7 > 4)",
    "NET/OFI Could not disable CUDA API usage for HMEM, disabling GDR",
    "NET/IB : No device found.",
    NO_NVLS,
    "P2P is disabled between connected GPUs 1 and 0.",
    "NCCL_IB_DISABLE set by environment to 1.",
    "NCCL_NVLS_ENABLE set by environment to 0.",
    "NCCL_NET_GDR_LEVEL set by environment to LOC",
    "NCCL_P2P_LEVEL set by environment to LOC",  # what NCCL_P2P_DISABLE=1 becomes, up to 2.22
    "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401",
    "Communicator has 1 nodes which is less than CollNet node threshold 2, disabling CollNet",
]
NOT_DISABLED = [
    "GPU Direct RDMA Enabled for GPU 81000 / HCA 1 (distance 6 <= 7), read 1",
    "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)",
    "NCCL_IB_DISABLE set by environment to 0.",
    "NCCL_NET_GDR_LEVEL set by environment to PXB",
    "NCCL_P2P_LEVEL set by environment to SYS",
    "Using 256 threads, Min Comp Cap 7, Trees disabled",
]


def test_what_is_disabled_is_said_in_the_words_of_nccl(tmp_path):
    log = read(tmp_path, *(INFO + words for words in (*NOT_DISABLED, *DISABLED)))
    assert log.disabled == tuple(DISABLED)


def channel(source, target, via, *, number=0):
    return f"{INFO}Channel {number:02}/0 : {source}[0] -> {target}[0] {via}"


def both_ends(via):
    """Lines of two ranks, interleaved: each sends to the other and receives."""
    return [
        channel(source, 1 - source, f"[{end}] via {via}", number=number)
        for number in range(4) for source in (0, 1) for end in ("send", "receive")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (both_ends("NET/IB/0/GDRDMA"), "GPUDirect RDMA on 8 of 8 network channels"),
        (both_ends("NET/Socket/0"), "No GPUDirect RDMA: sockets between ranks 0 and 1"),
        ([channel(rank, rank + 1, "[send] via NET/IB/0") for rank in range(3)],
         "No GPUDirect RDMA: InfiniBand between ranks 0 and 1 and 2 others"),
        ([channel(0, 8, "[send] via NET/IB/0"), channel(0, 8, "[receive] via NET/IB/1/GDRDMA"),
          channel(8, 0, "[receive] via NET/IB/0/GDRDMA")],
         "GPUDirect RDMA on 1 of 2 network channels: "
         "without it InfiniBand [send] between ranks 0 and 8"),
        ([f"{INFO}CollNet 00/0 : 6 [send] via COLLNET/SHARP/1"],
         "No GPUDirect RDMA: collnet at rank 6"),
        ([channel(0, 1, "via P2P/IPC")], "No GPUDirect RDMA: no channel uses a network"),
    ],
)  # fmt: skip
def test_one_sentence_says_where_gpudirect_rdma_is_in_use(tmp_path, lines, sentence):
    assert read(tmp_path, *lines).sentence == sentence


@pytest.fixture
def interleaved(tmp_path):
    """The log of four ranks on two machines, and of the training around NCCL."""
    lines = [
        INFO + "NCCL version 2.19.3+cuda12.3",
        INFO + "24 coll channels, 0 collnet channels, 16 nvls channels, 8 p2p channels",
        *(INFO + DISABLED_HCA.format(n) for n in range(3)),
        INFO + "Channel 00/02 :    0   1   2   3",
        channel(0, 1, "via P2P/CUMEM") + channel(1, 2, "[send] via NET/IB/0/GDRDMA"),  # one line
        "epoch 1:  12%|█▏        | 7/60",
        channel(2, 3, "via SHM/direct/direct"),
        MPI + channel(1, 2, "[receive] via NET/IB/3/GDRDMA"),
        channel(0, 1, "via P2P/CUMEM", number=1),
        channel(0, 1, "via P2P/CUMEM"),  # of another communicator
    ]
    path = tmp_path / "nccl.log"
    path.write_bytes(b"\xff not UTF-8\n" + "\n".join(lines).encode())
    return path


def test_a_log_of_several_ranks_is_one_table(interleaved):
    log = lab.read_nccl_log(interleaved)
    assert (log.version, log.nvls_channels) == ("2.19.3+cuda12.3", 16)
    assert log.disabled == tuple(DISABLED_HCA.format(n) for n in range(3))
    table = log.table()
    names = ["channel", "source", "target", "end", "transport", "via"]
    assert table[names].to_numpy().tolist() == [
        [0, 0, 1, "", "P2P", "P2P/CUMEM"],
        [0, 1, 2, "send", "InfiniBand", "NET/IB/0/GDRDMA"],
        [0, 2, 3, "", "shared memory", "SHM/direct/direct"],
        [0, 1, 2, "receive", "InfiniBand", "NET/IB/3/GDRDMA"],
        [1, 0, 1, "", "P2P", "P2P/CUMEM"],
    ]
    assert table["gdrdma"].count() == table["gdrdma"].sum() == 2


def test_the_command_prints_the_sentence_and_a_row_per_pair_of_ranks(interleaved, capsys):
    assert main(["nccl", str(interleaved)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(
        "GPUDirect RDMA on 1 of 1 network channel NCCL 2.19.3+cuda12.3 16 NVLS channels "
    )
    for row in (
        "0 → 1 P2P 2 P2P/CUMEM",
        "1 → 2 InfiniBand with GPUDirect RDMA 1 send NET/IB/0/GDRDMA, receive NET/IB/3/GDRDMA",
        "2 → 3 shared memory 1 SHM/direct/direct",
    ):
        assert row in shown
    assert shown.endswith(f"- {DISABLED_HCA.format(0)} (2 more like it)")
    assert "<table" in lab.read_nccl_log(interleaved)._repr_html_()


@pytest.mark.parametrize("text", [None, "", "epoch 1: loss 0.3\n", "NCCL version 2.19.3\n"])
def test_any_other_file_is_refused_in_one_line(tmp_path, capsys, text):
    path = tmp_path / "train.log"
    if text is not None:
        path.write_text(text)
    assert main(["nccl", str(path)]) == 1
    why = " (No such file or directory)" if text is None else ""
    assert capsys.readouterr().err == (
        f"labkit: path must be a file with lines of NCCL INFO, got {path}{why}; "
        "run the training with NCCL_DEBUG=INFO and keep what it prints\n"
    )
