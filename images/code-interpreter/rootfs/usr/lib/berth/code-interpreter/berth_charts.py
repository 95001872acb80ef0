"""Reads from a figure of Matplotlib what it shows, so that a client can draw it itself.

What a chart has is what E2B's SDKs read (`charts.py` there): a type, a title, elements, and for those with axes their
labels, units, ticks and scales.
"""

import re

import matplotlib.category
import matplotlib.dates
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle, Wedge
from matplotlib.text import Text

# A unit stands behind a label: `Time (s)`, `Time [s]`.
UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")


def of_figure(figure):
    """A figure's chart; of more than one, a chart of charts; nothing of one that shows nothing."""
    axes = figure.get_axes()
    if not any(each.has_data() for each in axes):
        return None
    if len(axes) == 1:
        return of_axes(axes[0])
    title = figure._suptitle.get_text() if figure._suptitle else None
    return {"type": "superchart", "title": title or None, "elements": [of_axes(each) for each in axes]}


def of_axes(axes):
    """The chart of one pair of axes."""
    shown = [artist for artist in axes.get_children() if is_shown(axes, artist)]
    marks = [artist for artist in shown if not is_grid_line(artist)]
    if only(marks, Line2D):
        # A line that is parallel to an axis may be all there is.
        return boxes(axes, outlines(marks), shown) if outlines(marks) else points(axes, "line", lines(marks or shown))
    if only(shown, (PathPatch, Line2D)):
        found = [artist for artist in shown if isinstance(artist, PathPatch)]
        return boxes(axes, [extent(box.get_path().vertices) for box in found], shown)
    if only(marks, PathCollection):
        return points(axes, "scatter", scatters(marks))
    if only(marks, Wedge):
        return {**titled(axes, "pie"), "elements": [slice_of(wedge) for wedge in marks]}
    if any(isinstance(held, BarContainer) for held in axes.containers) and only(marks, (Rectangle, Line2D)):
        return bars(axes)
    return {**titled(axes, "unknown"), "elements": []}


def is_shown(axes, artist):
    """Whether somebody drew it; axes have parts of their own."""
    own = (axes.patch, axes.xaxis, axes.yaxis, axes.title, axes._left_title, axes._right_title, *axes.spines.values())
    return artist not in own and not isinstance(artist, Text) and artist is not axes.get_legend()


def only(artists, kinds):
    return all(isinstance(artist, kinds) for artist in artists)


def is_grid_line(artist):
    """One of two points, parallel to an axis: `axhline`, a whisker."""
    if not isinstance(artist, Line2D):
        return False
    x, y = list(artist.get_xdata()), list(artist.get_ydata())
    return len(x) == len(y) == 2 and (x[0] == x[1] or y[0] == y[1])


def titled(axes, kind):
    return {"type": kind, "title": axes.get_title() or None}


def labelled(axes, kind):
    """With labels of both axes, and their units."""
    chart = titled(axes, kind)
    for side, label in (("x", axes.get_xlabel()), ("y", axes.get_ylabel())):
        unit = UNIT.search(label)
        chart[f"{side}_label"] = label or None
        chart[f"{side}_unit"] = (unit.group(1) or unit.group(2)) if unit else None
    return chart


def turned(chart):
    """The same on its side: the values of a bar that lies are at x."""
    for part in ("label", "unit"):
        chart[f"x_{part}"], chart[f"y_{part}"] = chart[f"y_{part}"], chart[f"x_{part}"]
    return chart


def points(axes, kind, elements):
    chart = labelled(axes, kind)
    for side, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        labels = [label.get_text() for label in axis.get_ticklabels()]
        ticks = [float(tick) for tick in axis.get_ticklocs()]
        scale = scale_of(axis, ticks, labels)
        if scale == "datetime":
            ticks = [matplotlib.dates.num2date(tick).isoformat() for tick in ticks]
        chart.update({f"{side}_ticks": ticks, f"{side}_tick_labels": labels, f"{side}_scale": scale})
    return {**chart, "elements": elements}


def scale_of(axis, ticks, labels):
    """What the SDKs call an axis's scale."""
    if isinstance(axis.get_major_locator(), matplotlib.dates.DateLocator):
        return "datetime"
    if axis.get_scale() != "linear":
        return axis.get_scale()
    # Places from 0 on that are called something else: `plt.xticks([0, 1], ["a", "b"])`.
    named = bool(ticks) and all(tick == at and label != str(at) for at, (tick, label) in enumerate(zip(ticks, labels)))
    categories = isinstance(axis.get_major_locator(), matplotlib.category.StrCategoryLocator)
    return "categorical" if categories or named else "linear"


def lines(artists):
    def name(line, at):
        label = str(line.get_label())
        return f"Line {at}" if label.startswith("_child") else label

    return [
        {"label": name(line, at), "points": [list(point) for point in zip(line.get_xdata(), line.get_ydata())]}
        for at, line in enumerate(artists)
    ]


def scatters(artists):
    return [
        {"label": str(artist.get_label()), "points": [[float(x), float(y)] for x, y in artist.get_offsets()]}
        for artist in artists
    ]


def slice_of(wedge):
    # Matplotlib reckons them in single precision.
    angle = float(f"{abs(wedge.theta2 - wedge.theta1):.6g}")
    return {"label": wedge.get_label(), "angle": angle, "radius": wedge.r}


def bars(axes):
    chart, elements = labelled(axes, "bar"), []
    groups = [held for held in axes.containers if isinstance(held, BarContainer)]
    lying = all(group.orientation == "horizontal" for group in groups)
    axis = axes.yaxis if lying else axes.xaxis
    names = dict(zip(map(float, axis.get_ticklocs()), (label.get_text() for label in axis.get_ticklabels())))
    for at, group in enumerate(groups):
        label = str(group.get_label())
        called = f"Group {at}" if label.startswith("_container") else label
        for number, bar in enumerate(group):
            middle = bar.get_y() + bar.get_height() / 2 if lying else bar.get_x() + bar.get_width() / 2
            value = bar.get_width() if lying else bar.get_height()
            elements.append({"label": nearest(names, middle, number), "value": value, "group": called})
    return {**(turned(chart) if lying else chart), "elements": elements}


def nearest(names, place, number):
    """What the tick closest to a place is called; its number where there is none."""
    tick = min(names, key=lambda tick: abs(tick - place), default=None)
    return names[tick] if tick is not None and names[tick] and abs(tick - place) <= 0.5 else str(number)


def extent(vertices):
    """The rectangle around points: (left, bottom, right, top)."""
    x, y = [float(point[0]) for point in vertices], [float(point[1]) for point in vertices]
    return min(x), min(y), max(x), max(y)


def outlines(artists):
    """The boxes that are drawn as lines: five points, the last of which is the first."""
    found = []
    for line in artists:
        path = list(zip(line.get_xdata(), line.get_ydata()))
        if len(path) == 5 and path[0] == path[4] and len({x for x, _ in path}) == len({y for _, y in path}) == 2:
            found.append(extent(path))
    return found


def boxes(axes, rectangles, artists):
    """Boxes with whiskers: what lies within a box's width is the box's."""
    chart = labelled(axes, "box_and_whisker")
    widths, heights = [{round(box[side + 2] - box[side], 6) for box in rectangles} for side in (0, 1)]
    # Boxes of one chart are equally wide; one alone stands where its middle is a tick.
    lying = len(heights) == 1 and (len(widths) > 1 or not stands(axes, rectangles[0]))
    axis = axes.yaxis if lying else axes.xaxis
    names = dict(zip(map(float, axis.get_ticklocs()), (label.get_text() for label in axis.get_ticklabels())))
    elements = []
    for number, box in enumerate(rectangles):
        left, bottom, right, top = (box[1], box[0], box[3], box[2]) if lying else box
        own = values_within(artists, left, right, lying)
        elements.append({"label": nearest(names, (left + right) / 2, number), **spread(bottom, top, own)})
    return {**(turned(chart) if lying else chart), "elements": elements}


def stands(axes, box):
    middle = (box[0] + box[2]) / 2
    return any(abs(float(tick) - middle) < 1e-6 for tick in axes.get_xticks())


def values_within(artists, left, right, lying):
    """The lines that lie within a box's width: how wide each is, and its values."""
    found = []
    for line in artists:
        if not isinstance(line, Line2D):
            continue
        along, values = (line.get_ydata(), line.get_xdata()) if lying else (line.get_xdata(), line.get_ydata())
        if len(along) and all(left - 1e-9 <= float(place) <= right + 1e-9 for place in along):
            width = max(map(float, along)) - min(map(float, along))
            found.append((line, width, [float(value) for value in values]))
    return found


def spread(bottom, top, own):
    """What the lines of a box say: whiskers reach out of it, the median crosses it, outliers are points."""
    ends, across, marks = [bottom, top], [], []
    for line, width, values in own:
        if line.get_linestyle() in ("None", "", " "):
            marks += values
        elif len(values) == 2:
            ends += values
            if values[0] == values[1] and bottom <= values[0] <= top:
                # A whisker's end is narrower.
                across.append((width, values[0]))
    return {
        "min": min(ends),
        "first_quartile": bottom,
        "median": max(across)[1] if across else bottom,
        "third_quartile": top,
        "max": max(ends),
        # A mean is a mark, too, but within.
        "outliers": [mark for mark in marks if not min(ends) <= mark <= max(ends)],
    }
