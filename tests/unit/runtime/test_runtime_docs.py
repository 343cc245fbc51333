"""The page of settings is made from the comments of the settings; HOLDFAST_REWRITE=1 makes it anew."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path

import msgspec

from holdfast.runtime.config import NodeConfig

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
HEAD = """\
# Settings of a node

`holdfast node --config node.toml` reads a file of settings. `holdfast run --set 'heartbeat = "50 ms"'` sets one for
every node of a local run and wins over the flags of `run`. `run` itself sets `name`, `dir`, `endpoints`, `secret_file`
and `metrics_port`. Times are written with a unit (us, ms, s, min, h), and so are sizes (B, KB, MB, GB). An unknown name
is an error.

Made from the comments of `NodeConfig` in `src/holdfast/runtime/config.py` by `tests/unit/runtime/test_runtime_docs.py`;
do not edit.
"""


def _settings() -> str:
    text = inspect.getsource(NodeConfig)
    return text[: text.index("    def ")]


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "(needed)"
    if not isinstance(field.default_factory, type(msgspec.NODEFAULT)):
        return f"`{field.default_factory()!r}`"
    return f"`{field.default:_}`" if type(field.default) is int else f"`{_quoted(field.default)}`"


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def drawn() -> str:
    fields = {field.name: field for field in msgspec.structs.fields(NodeConfig)}
    lines = [HEAD]
    about: list[str] = []
    for line in map(str.strip, _settings().splitlines()):
        if section := re.fullmatch(r"# --- (.+)", line):
            lines.append(f"## {section[1]}\n\n| setting | default | what |\n|---|---|---|")
        elif line.startswith("#: "):
            about.append(line.removeprefix("#: "))
        elif (name := line.partition(":")[0]) in fields:
            lines.append(f"| `{name}` | {_default(fields[name])} | {' '.join(about)} |")
            about = []
        elif not line and lines[-1].startswith("|"):
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def test_the_page_is_made_from_the_settings_and_their_comments():
    if os.environ.get("HOLDFAST_REWRITE"):
        PAGE.write_text(drawn())
    assert PAGE.read_text() == drawn()


def test_every_setting_has_a_comment_of_its_own():
    rows = dict(re.findall(r"^\| `(\w+)` \| .+? \| (.*) \|$", drawn(), re.M))
    assert set(rows) == {field.name for field in msgspec.structs.fields(NodeConfig)}
    assert [name for name, about in rows.items() if not about] == []
    assert len(set(rows.values())) == len(rows)
