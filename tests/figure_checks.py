"""What every figure must keep to, measured with matplotlib's own text extents after drawing."""

import itertools

from matplotlib.text import Text

from labkit.report.figures import style


def texts(figure):
    """Every text that is drawn."""
    # Matplotlib prepares a tick beyond each end of an axis, but does not draw it.
    undrawn = [
        t
        for axes in figure.axes
        for i, labels, ends in (
            (0, axes.get_xticklabels(), axes.get_xlim()),
            (1, axes.get_yticklabels(), axes.get_ylim()),
        )
        for t in labels
        if not min(ends) <= t.get_position()[i] <= max(ends)
    ]
    drawn = [t for t in figure.findobj(Text) if t.get_visible() and t not in undrawn]
    return [t for t in drawn if t.get_text().strip()]


def everything_written(figure):
    return " ".join(t.get_text().replace("\n", " ") for t in texts(figure))


def check_texts_are_whole_and_apart(figure, *, dpi=None):
    """Check that no text is cut off or overlaps another, at `dpi` dots per inch."""
    if dpi:
        figure.set_dpi(dpi)
        with style():
            figure.canvas.draw()
    for axes in figure.axes:
        assert axes.get_window_extent().width > 0.15 * figure.bbox.width
    boxes, pixel = {}, figure.dpi / 96
    for i, text in enumerate(texts(figure)):
        # Without the white box behind a reason, which may touch what lies under it.
        text.set_bbox(None)
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.y0 >= 0, text.get_text()
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, text.get_text()
        boxes[i, text.get_text()] = box.padded(-pixel)
    for (one, box), (other, other_box) in itertools.combinations(boxes.items(), 2):
        assert not box.overlaps(other_box), (one, other)
