"""Runs are written as the library writes them, only faster."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.evidence.run_text import dumped, flow

SCALARS = (
    st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats()
    | st.text(max_size=12)
    | st.from_regex(r"[A-Za-z][A-Za-z0-9_./ -]{0,20}", fullmatch=True)
    | st.sampled_from(
        [
            "yes",
            "NO",
            "null",
            "True",
            "y",
            "1e3",
            "0x1",
            "a - b",
            "a: b",
            "x #y",
            "h100_sxm",
            "2025-10",
            "t.csv[3]",
            "a[1]b",
            "x[]",
        ]
    )
)
KEYS = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)


@given(
    SCALARS | st.lists(SCALARS, max_size=4) | st.dictionaries(KEYS, SCALARS | st.lists(SCALARS, max_size=3), max_size=4)
)
def test_a_line_is_what_the_library_writes(value: object) -> None:
    made = flow(value)
    assert made == dumped(value)
    back = yaml.safe_load(f"a: {made}")["a"]
    assert back == value or value != value or repr(back) == repr(value)
