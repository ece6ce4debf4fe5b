"""One vocabulary of hypothesis strategies for all tests."""

from __future__ import annotations

from hypothesis import strategies as st

from tunefarm.devices.target import Target, make_target
from tunefarm.search.space import Knob, KnobKind

attribute_names = st.sampled_from(["mcpu", "arch", "num-cores", "mattr"])
attribute_values = st.one_of(
    st.integers(0, 256), st.from_regex(r"[a-z][a-z0-9_.+-]{0,12}", fullmatch=True)
)


def targets() -> st.SearchStrategy[Target]:
    return st.builds(
        make_target,
        st.sampled_from(["llvm", "cuda"]),
        st.dictionaries(attribute_names, attribute_values, max_size=3),
    )


def knobs() -> st.SearchStrategy[Knob]:
    tiles = st.builds(
        Knob,
        st.just(KnobKind.TILE),
        st.integers(2, 4),
        st.sampled_from([1, 7, 13, 16, 27, 55, 64, 111, 224, 1000]),
        st.sampled_from([0, 16, 64]),
    )
    choices = st.builds(Knob, st.just(KnobKind.CHOICE), st.integers(1, 5))
    locations = st.builds(Knob, st.just(KnobKind.LOCATION), st.just(0))
    return st.one_of(tiles, choices, locations)


def sketches() -> st.SearchStrategy[tuple[tuple[Knob, ...], ...]]:
    return st.lists(st.lists(knobs(), max_size=6).map(tuple), min_size=1, max_size=3).map(tuple)


latencies = st.floats(1e-6, 10.0, allow_nan=False)
samples = st.lists(latencies, min_size=2, max_size=12)
