"""labkit's sentences in the language of the locale: what terminals get, and what files keep."""

import ast
import copy
import json
import pickle
import re
import string
from pathlib import Path

import pytest

import labkit
from labkit import units
from labkit.analysis.compare import NOTHING, Comparison
from labkit.chinese import CHINESE
from labkit.diagnosis import outside
from labkit.diagnosis.advice import IN_SAMPLE, IN_STEP
from labkit.diagnosis.answer import Facts, answer, lines, lines_of_ranks
from labkit.diagnosis.bounds import bounds_of
from labkit.diagnosis.compare import Watched, compare_watched
from labkit.diagnosis.diagnose import Diagnosis
from labkit.diagnosis.loader_search import Tuned, effect
from labkit.diagnosis.loaders import NO_DATALOADER
from labkit.diagnosis.measure import FROM_BEGINNING
from labkit.diagnosis.rules import REMEDIES, VERDICTS, conclude, propose
from labkit.diagnosis.say import ARMS
from labkit.language import VARIABLES, Name, Text, capitalized, columns, shown
from labkit.machine import shared_memory
from labkit.report.table import Table
from tests import warm_python
from tests.diagnosis import test_answer, test_bounds, test_outside

LABKIT = Path(labkit.__file__).parent
# What `watch` and `diagnose` print comes from these modules.
DIAGNOSIS = (
    "advice", "answer", "arms", "bounds", "compare", "diagnose", "live", "live_script",
    "loader_arguments", "loader_search", "measure", "outside", "probe", "rules", "say", "script",
    "tune", "verify", "watch",
)  # fmt: skip
PRINTING = [*(f"diagnosis/{name}.py" for name in DIAGNOSIS), "units.py"]
NOT_PRINTED = {
    "cannot tell", "no problem", "small problem",  # in JSON
    "as it is",  # names an arm
    "not measured",  # of a diagnosis whose screen has no verdict
    "bus error", "no space left on device", "DataLoader worker", "Original Traceback",  # of errors
    # Parts of errors of wrong use.
    "the batch size", "the images of a step", "the machine", "the samples of the data set",
    "the processes that train",
    "write it again with `labkit watch --json`",
    "f'{each.name} holds no training: {UNSEEN[each.unseen]}'",
    "True or False", "a whole number, 0 or more", "a whole number, 1 or more",
    "a number of seconds, 0 or more", "f\"one of {', '.join(CONTEXTS)}\"",
}  # fmt: skip


@pytest.fixture
def chinese(monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")


# --- the table ----------------------------------------------------------------------------------


def fields(template):
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


def below(nodes):
    return {inner for node in nodes for inner in ast.walk(node)}


@pytest.mark.parametrize("path", PRINTING)
def test_every_sentence_is_a_template_that_has_a_translation(path):
    """But docstrings, errors of wrong use, patterns, lines of code and what is not printed."""
    nodes = list(ast.walk(ast.parse((LABKIT / path).read_text())))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    own = ("Error", "compile", "warnings.filterwarnings")
    unprinted = below(call for call in calls if ast.unparse(call.func).endswith(own))
    f_strings = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    docstrings = [node.value for node in nodes if isinstance(node, ast.Expr)]
    constants = {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node not in unprinted | below(f_strings) | {*docstrings}
    }
    several_words = re.compile(r"[A-Za-z]{2,} [A-Za-z({]")
    assert {*filter(several_words.search, constants)} - CHINESE.keys() - NOT_PRINTED == set()
    # An f-string of several words would stay English.
    put_together = {
        ast.unparse(node)
        for node in f_strings
        if node not in unprinted
        for part in node.values
        if isinstance(part, ast.Constant) and re.search("[a-z]{2,} [a-z]", part.value)
    }
    assert put_together - NOT_PRINTED == set()


def test_every_template_has_a_translation_with_the_same_fields():
    templates = {
        node.args[0].value
        for path in [*PRINTING, "machine/cores.py", "machine/shared_memory.py"]
        for node in ast.walk(ast.parse((LABKIT / path).read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Text"
        if isinstance(node.args[0], ast.Constant)
    }
    assert len(templates) > 100
    words = {one for one in templates if re.search("[A-Za-z]", re.sub(r"{[^}]*}", "", one))}
    assert words - CHINESE.keys() == set()
    assert [one for one, other in CHINESE.items() if fields(one) != fields(other)] == []


def test_every_name_in_the_tables_of_the_diagnosis_has_a_translation():
    names = {word for line in REMEDIES for word in (line.name, line.bottleneck)}
    changes = {line.change for line in REMEDIES if isinstance(line.change, str)} - {""}
    advice = {text for line in IN_SAMPLE for text in line[1:]} - {""}
    advice |= {text for _, text in IN_STEP}
    code = {text for text in changes if re.fullmatch(r"model\.\S+", text)}
    others = {*VERDICTS, *ARMS.values(), NO_DATALOADER, shared_memory.MORE}
    assert (names | changes | advice | others) - code - CHINESE.keys() == set()


# --- texts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "is_chinese"),
    [
        ({}, False),
        ({"LANG": "zh_CN.UTF-8"}, True),
        ({"LC_MESSAGES": "zh_TW", "LANG": "en_US.UTF-8"}, True),
        ({"LC_ALL": "C.UTF-8", "LC_MESSAGES": "zh_CN", "LANG": "zh_CN"}, False),
        ({"LC_ALL": "", "LANG": "zh_CN"}, True),
        ({"LANGUAGE": "zh_CN", "LANG": "de_DE.UTF-8"}, False),
    ],
)
def test_the_locale_decides(monkeypatch, environment, is_chinese):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert shown("faster") == ("更快" if is_chinese else "faster")


def test_a_text_is_english_and_its_parts_are_translated(chinese):
    rate = units.rate(123.4)
    text = Text("Loop: {measured}").format(measured=Text(", ").join([rate, "decode"]))
    assert text == "Loop: 123 images/s, decode"
    assert shown(text) == "循环：123 张/秒，解码"
    assert shown("a: " + text + Text(".")) == "a: 循环：123 张/秒，解码。"
    # A name in the user's code, values with braces, and what no table has.
    assert shown(Text("waiting in {name}").format(name=Name("decode"))) == "decode 里的等待"
    assert shown(Text("Note: {note}.").format(note="{0}")) == "注：{0}。"
    assert shown(capitalized("highly input-bound")) == CHINESE["highly input-bound"]
    assert capitalized("highly input-bound") == "Highly input-bound"
    assert shown("of no table") == "of no table"
    assert shown(Text(", ").join([])) == ""


def test_a_text_is_stored_in_english_and_copied_whole(chinese):
    text = units.count(2, "worker")
    assert json.dumps({"text": text}) == '{"text": "2 workers"}'
    for twin in (copy.deepcopy(text), pickle.loads(pickle.dumps(text))):
        assert (twin, shown(twin)) == ("2 workers", "2 个worker")


def test_verdicts_in_a_terminal_are_chinese_and_in_a_page_english(chinese):
    table = Table({"variant": ["faster"], "verdict": ["no practical difference"]})
    header, rule, row = repr(table).splitlines()
    assert (header.split(), row.split()) == (["variant", "结论"], ["faster", "无实际差别"])
    assert columns(row) == columns(rule) == len(rule)  # a character takes two
    assert "no practical difference" in table.to_html()


# --- what the commands print --------------------------------------------------------------------

TERMS = re.compile(  # which Chinese users write in English, as the other texts do
    r"labkit \w+ \S+|lab\.watch|in range|\b(GPU|CPU|NVML|NCCL|DataLoader|batch|worker|step|epoch|"
    r"rank|kernel|torch|loader|for|in)\b"
)


def leftover(text):
    """Words of English sentences in a text."""
    return re.findall(r"\b[a-z]{2,} [a-z]{2,}\b", TERMS.sub("·", text))


def test_watch_prints_six_lines_and_stores_english(chinese):
    training = test_answer.phase(60, 40, median_wait_s=0.34, p99_wait_s=0.41, cycle=4)
    facts = test_answer.facts(
        training,
        validation=test_answer.phase(5, 5),
        outside_s=20,
        computes_on="cuda",
        gpu=test_answer.gpu(0.12),
    )
    assert lines(facts, "labkit diagnose train.py") == [
        "训练：100 个 batch，32.0 张/秒，60.0 % 的时间在等数据"
        "（中位数 340 ms，第 99 百分位数 410 ms；主要是每 4 个 batch 等一次）",
        "整个运行：训练占 76.9 %，验证占 7.7 %（其中 50.0 % 在等数据），循环之外占 15.4 %",
        "GPU：利用率 12.0 %，显存已用 60 GB，共 80 GB（显存占用多少与利用率无关）；"
        "共 8 个核，训练进程用了 1 个，worker 用了 1.9 个",
        "数据加载是瓶颈：如果加载不花时间，整个运行的速度最多是现在的 2 倍。",
        "原因：每个 worker 用一个核的 95.0 %，还有空闲的核，增加 worker 可能有用。",
        "下一步：labkit diagnose train.py",
    ]
    stored = json.loads(json.dumps(facts.as_json()))
    assert stored["answer"]["sentence"].startswith("Data loading is the problem: with loading")
    assert answer(Facts.from_json(stored)) == answer(facts)


def test_the_table_of_ranks_is_chinese(chinese):
    slow, fast = test_answer.BOUND, test_answer.FREE
    ranks = [test_answer.rank(1, slow), test_answer.rank(0, fast)]
    printed = lines_of_ranks(test_answer.facts(fast, ranks=2), ranks)
    assert printed[0].split() == ["rank", "张/秒", "等数据", "step"]
    assert len({columns(line) for line in printed[:3]}) == 1
    assert "数据加载是瓶颈：rank 1 有 60.0 % 的时间在等数据" in "\n".join(printed)


def cases_of(test):
    """The first argument of each case of a parametrized test."""
    return [case[0] for case in test.pytestmark[0].args[1]]


@pytest.mark.parametrize(
    ("print_lines", "seen"),
    [
        *((lines, facts) for facts in cases_of(
            test_answer.test_the_sentence_says_problem_no_problem_or_cannot_be_told)),
        *((outside.lines, sight) for sight in cases_of(
            test_outside.test_the_answer_rests_on_what_was_seen)),
    ],
)  # fmt: skip
def test_every_answer_of_watch_is_chinese(chinese, print_lines, seen):
    assert leftover("\n".join(map(shown, print_lines(seen)))) == []


def test_the_screen_of_diagnose_is_chinese_and_its_json_english(chinese):
    first = FROM_BEGINNING.format(n=43)
    measured = test_bounds.facts(
        warm=(0.1, 0.11, 0.1), resident=(0.01,) * 3, first_s=0.2, failed=(first,)
    )
    bounds = bounds_of(measured)
    diagnosis = Diagnosis(**vars(conclude(measured, bounds, propose(bounds))))
    screen = f"{diagnosis}\n{diagnosis.details()}"
    assert screen.startswith("训练严重受限于数据加载：数据加载耗去 9")
    assert re.search(r"\n1\. \S+：速度最多是现在的|\n1\. .*：速度是现在的", screen)
    assert "前 43 个 batch 代表整个 epoch" in screen
    assert leftover(screen) == []
    stored = json.dumps(diagnosis.as_json(), ensure_ascii=False)
    assert "highly input-bound" in stored and not re.search("[\u4e00-\u9fff]", stored)


def test_the_screen_of_tune_is_chinese_and_its_json_english(chinese):
    faster = Comparison(log_ratios=(-0.7, -0.69, -0.71))
    how = {
        "tried": "num_workers=2",
        "unchanged": {"threads of a worker": effect(8, faster), "in_order": "no gain shown"},
        "left_out": {"num_workers=8": Text("a worker cannot load: {error}").format(error="x")},
        "budget_s": 60.0,
    }
    unsure = Comparison(log_ratios=(-0.5, 0.5, 0.1))
    equal = Comparison(log_ratios=(0.0, 0.001, 0.0))
    results = [
        Tuned(changes={"num_workers": 2}, line="DataLoader(...)", compared=faster, **how),
        Tuned(changes={"num_workers": 2}, line="DataLoader(...)", compared=unsure, **how),
        *(Tuned(compared=compared, **how) for compared in (unsure, equal, NOTHING)),
        Tuned(broken=Text("loader must yield batches, got {error}").format(error="x")),
    ]
    screens = [str(result) for result in results]
    assert screens[0].splitlines()[0] == "速度是原来的 2.01 倍 [1.96, 2.06]:"
    assert screens[2].startswith("尚无定论：num_workers=2 的速度是原来的 ")
    assert "没有试 num_workers=8：worker 不能加载：x" in screens[0]
    assert leftover("\n".join(screens)) == []
    assert not re.search("[\u4e00-\u9fff]", json.dumps(results[0].as_json(), ensure_ascii=False))


def watched(name, step_s, **changes):
    how = {
        "name": name, "stretches": [(10, 10 * step_s * (1 + 0.01 * (n % 3))) for n in range(30)],
        "steps": 300, "images": 9600, "loading_share": 0.5, "starts_share": 0.0, "unseen": "",
        "datasets": ("Photos",), "samples": {100}, "batch_sizes": {32},
        "arguments": {"num_workers": 0}, "ranks": 1, "machine": "8 cores", "cores": 8,
        "other_cores": 0.0,
    }  # fmt: skip
    return Watched(**how | changes)


def test_the_comparison_of_two_runs_is_chinese(chinese):
    before = watched("a.json", 0.1)
    after = watched("b.json", 0.05, arguments={"num_workers": 2}, other_cores=7.0)
    assert list(map(shown, compare_watched(before, after))) == [
        "更快：速度是原来的 2.00 倍 [1.993, 2.007]（317 → 634 张/秒）。",
        "等数据：之前占 50.0 % 的时间，之后占 50.0 %。",
        "DataLoader 的改动：num_workers 0 → 2。",
        "共 8 个核，其他程序之前用了 0.0 个，之后用了 7.0 个，这也会改变速度："
        "请在没有它们时重做两次运行。",
    ]
    short = watched("b.json", 0.1, stretches=[(5, 0.5)])
    starts = watched("b.json", 0.1, starts_share=0.2)
    cached = watched("b.json", 0.1, datasets=("Cached",))
    for other in (short, starts, cached):
        assert leftover("\n".join(map(shown, compare_watched(before, other)))) == []


def test_watch_prints_chinese_and_writes_english(tmp_path, chinese):
    script = Path(__file__).parent / "diagnosis" / "trainings.py"
    path = tmp_path / "seen.json"
    done = warm_python.run("-m", "labkit.watch", "--json", path, script, "none", encoding="utf-8")
    assert "[labkit] 无法判断数据加载是不是瓶颈：" in done.stderr
    sentence = json.loads(path.read_text())["answer"]["sentence"]
    assert sentence.startswith("Whether data loading is the problem cannot be told: no DataLoader")
