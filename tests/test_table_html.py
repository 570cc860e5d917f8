"""What HTML tables have in common: short cells and second lines, always escaped.

Run: python -m pytest tests/test_table_html.py
"""

from labkit.table_html import is_short, second_row


def test_an_interval_stays_on_one_line_and_a_reason_does_not():
    assert is_short("0.894 [0.872, 0.917]")
    assert not is_short("skipped: no NVIDIA driver")


def test_a_second_line_spans_the_table_and_is_never_markup():
    assert second_row("<b> & $x", 3) == (
        '<tr class="labkit-second"><td colspan="3"><small>&lt;b&gt; &amp; $x</small></td></tr>'
    )
    styled = second_row("words", 2, row='style="a"', cell='style="b"', small='style="c"')
    assert styled == (
        '<tr class="labkit-second" style="a"><td colspan="2" style="b">'
        '<small style="c">words</small></td></tr>'
    )


def test_no_words_no_row():
    assert second_row("", 3) == ""
