"""Markdown: any text stays text, wherever it comes to stand.

Run: python -m pytest tests/test_markdown.py
"""

import re

import pytest

from labkit import markdown as md


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("0.894 [0.872, 0.917]", "0.894 [0.872, 0.917]"),
        ("[004] section 3.1", "[004] section 3.1"),
        ("prefetch_generator", "prefetch_generator"),
        ("_bold_ *bold* ~no~ `code`", r"\_bold\_ \*bold\* \~no\~ \`code\`"),
        ("<script>alert(1)</script>", r"\<script\>alert(1)\</script\>"),
        ("a | b", r"a \| b"),
        ("[c](d) ![e][f] [g]: h", r"[c\](d) \![e\][f] [g\]: h"),
        ("see http://x.org", r"see http\://x.org"),
        ("&lt; $x$", r"\&lt; \$x\$"),
        ("C:\\data", r"C:\\data"),
        ("# no heading", r"\# no heading"),
        ("- no list", r"\- no list"),
        ("-5 %", "-5 %"),
        ("1. no list", r"1\. no list"),
        ("1.50 s", "1.50 s"),
        ("[x] no box", r"\[x] no box"),
        ("two\nlines  and\tblanks", "two lines and blanks"),
        ("数据预取", "数据预取"),
    ],
)
def test_text_is_escaped_where_it_would_be_markup(text, escaped):
    assert md.escape(text) == escaped


def test_a_table_has_a_line_per_row_with_small_print_in_the_first_cell():
    shown = md.table(["a", "b|c"], [["x", "1"], ["y", "|\n|"]], ["rests on <all>", ""])
    assert shown.splitlines() == [
        r"| a | b\|c |",
        "| --- | --- |",
        r"| x<br><small>rests on \<all\></small> | 1 |",
        r"| y | \| \| |",
    ]


def test_no_line_of_a_text_closes_its_fence():
    shown = md.code("a\n```\n````b\n", "python").splitlines()
    assert (shown[0], shown[-1]) == ("`````python", "`````")
    assert not any(re.match("`{5}", line) for line in shown[1:-1])
