"""What differs between two versions of a rubric, in words."""

from data_prep.rubric import Dimension, Rubric

SHOWN = 5


def rubric_changes(old: Rubric, new: Rubric) -> list[str]:
    """One phrase a difference: dimensions, scales, and which wording; no text is repeated. At most five and a count."""
    found = []
    if old.version != new.version:
        found.append(f"version {old.version} -> {new.version}")
    before = {dimension.name: dimension for dimension in old.dimensions}
    after = {dimension.name: dimension for dimension in new.dimensions}
    found += [f"{name} is gone" for name in before if name not in after]
    found += [f"{name} is new" for name in after if name not in before]
    for name in before:
        if name in after:
            found += _dimension_changes(before[name], after[name])
    if [name for name in before if name in after] != [name for name in after if name in before]:
        found.append("the dimensions stand in another order")
    if old.description != new.description:
        found.append("another description")
    return found if len(found) <= SHOWN else [*found[:SHOWN], f"and {len(found) - SHOWN} more"]


def _dimension_changes(old: Dimension, new: Dimension) -> list[str]:
    if old.scale != new.scale:
        return [f"{old.name} has the scale {old.scale[0]}..{old.scale[1]} -> {new.scale[0]}..{new.scale[1]}"]
    levels = [str(level) for level in old.levels() if old.anchors[level] != new.anchors[level]]
    found = [f"{old.name} has another anchor at {', '.join(levels)}"] if levels else []
    found += [
        f"{old.name} has another {part}" for part in ("title", "question") if getattr(old, part) != getattr(new, part)
    ]
    return found or ([f"{old.name} has another official key"] if old.official_key != new.official_key else [])
