"""The page of settings and the settings are the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import msgspec

from holdfast.runtime.config import NodeConfig

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_every_setting_is_documented_with_its_default_and_nothing_else_is():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE.read_text(), re.M))
    fields = {f.name: f for f in msgspec.structs.fields(NodeConfig)}
    assert set(rows) == set(fields)
    for name, shown in rows.items():
        if fields[name].required:
            assert shown == "(needed)", name
        elif not isinstance(fields[name].default_factory, type(msgspec.NODEFAULT)):
            assert ast.literal_eval(shown.strip("`")) == fields[name].default_factory(), name
        else:
            assert ast.literal_eval(shown.strip("`")) == fields[name].default, name
