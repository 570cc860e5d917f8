"""Variants of an experiment, made from settings.

base ─ sweep, change_all ─▶ label -> settings or variant ─ full_only, with_published, in_groups ─▶ …
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from labkit.runs.experiment import Variant, as_variants
from labkit.settings import Settings, pick, with_settings

SettingsOrVariant = TypeVar("SettingsOrVariant", Settings, Variant)
Values = Iterable[object] | Mapping[str, object]


def sweep(
    base: Settings,
    setting: str,
    values: Values,
    *,
    full: Values = (),
    label: Callable[[Any], str] = str,
) -> dict[str, Variant]:
    """Make a variant of each value of one setting, everything else equal.

    A value that is given again is left out: on few cores, "as many as cores" may be 2.

    Args:
        base: what the variants have in common.
        setting: name of the setting.
        values: a list, or label -> value; the first one is the baseline's.
        full: values that only full mode measures, as `values`.
        label: makes the label of a value in a list.

    Returns:
        label -> variant, in the given order.

    Raises:
        ValueError: an unknown setting, a value that it does not take, or two values of one label.

    Examples:
        >>> workers = lab.sweep(Settings(), "num_workers", [2, 0, 4], full=range(1, 5))
        >>> list(workers)
        ['2', '0', '4', '1', '3']
        >>> workers["4"].settings.num_workers, workers["3"].full_only
        (4, True)
        >>> list(lab.sweep(Settings(), "persistent_workers", {"started anew": False, "kept": True}))
        ['started anew', 'kept']
    """
    variants: dict[str, Variant] = {}
    for given, in_full_only in ((values, False), (full, True)):
        values_by_label = (
            given.items()
            if isinstance(given, Mapping)
            else ((label(value), value) for value in given)
        )
        for name, value in values_by_label:
            settings = with_settings(base, {setting: value})
            if settings in [known.settings for known in variants.values()]:
                continue
            if name in variants:
                raise ValueError(
                    f"labels must differ, got {name!r} for two values; name the values"
                )
            variants[name] = Variant(settings=settings, full_only=in_full_only)
    return variants


def change_all(
    variants: Mapping[str, SettingsOrVariant], label: str = "{}", /, **changes: object
) -> dict[str, SettingsOrVariant]:
    """Change the same settings in all variants.

    Args:
        variants: label -> settings, or variant.
        label: makes the new labels of the old ones, as "{}, warm".
        **changes: setting -> its new value.

    Raises:
        ValueError: an unknown setting, or a value that it does not take.

    Examples:
        >>> variants = {"opencv": Settings(decoder="opencv"), "pillow": Settings(decoder="pillow")}
        >>> warm = change_all(variants, "{}, warm", cache="warm")
        >>> {label: settings.cache for label, settings in warm.items()}
        {'opencv, warm': 'warm', 'pillow, warm': 'warm'}
    """

    def change(each: Any) -> Any:
        if isinstance(each, Variant):
            return replace(each, settings=with_settings(each.settings, changes))
        return with_settings(each, changes)

    return {label.format(old): change(each) for old, each in variants.items()}


def full_only(variants: Mapping[str, Any]) -> dict[str, Variant]:
    """Return the variants, or settings, as variants that only full mode measures.

    Examples:
        >>> full_only({"all": Settings()})["all"].full_only
        True
    """
    return {label: replace(each, full_only=True) for label, each in as_variants(variants).items()}


def with_published(figures: Mapping[str, float], variants: Mapping[str, Any]) -> dict[str, Variant]:
    """Return the variants, or settings, with a document's normalized times.

    Args:
        figures: label -> normalized time, of some of them.
        variants: label -> variant or settings.

    Examples:
        >>> with_published({"both": 0.897}, {"both": Settings(prefetcher="both")})["both"].published
        0.897
    """
    wrapped = as_variants(variants)
    for label in figures:
        pick(wrapped, label, "published label")
    return {
        label: replace(each, published=figures.get(label, each.published))
        for label, each in wrapped.items()
    }


def in_groups(
    groups: Mapping[str, Mapping[str, Any]],
    is_quick: Callable[[str, str], bool] = lambda group, label: True,
    tasks: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Variant]:
    """Return variants named "group: label".

    Args:
        groups: group -> label -> variant or settings.
        is_quick: of group and label; the others are for full mode only, as are those that were
            before.
        tasks: group -> what the trials of its variants need beside the settings.
    """
    return {
        f"{group}: {label}": replace(
            each,
            group=group,
            name=label,
            full_only=each.full_only or not is_quick(group, label),
            task={**each.task, **(tasks or {}).get(group, {})},
        )
        for group, variants in groups.items()
        for label, each in as_variants(variants).items()
    }


def in_document_order(variants: Mapping[str, Any]) -> dict[str, Settings]:
    """Start the first variant cold, and each other one from the cache that was left behind.

    The first variant runs again at the end: its gain is due to the order and the cache alone.
    """
    settings = {label: each.settings for label, each in as_variants(variants).items()}
    first = next(iter(settings))
    left = change_all(settings, cache="as found")
    cold = replace(settings[first], cache="cold")
    return left | {first: cold, f"{first}, again": left[first]}
