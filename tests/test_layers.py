"""The layout: torch comes late, and the names of parts are resolved in one place.

That imports point down is checked by `lint-imports`; its contracts are in pyproject.toml.
"""

import re
import subprocess
import sys
from pathlib import Path

from labkit.resolve import TABLES

LABKIT = Path(__file__).parent.parent / "labkit"
# A setting that names a part, as settings.loader or row["loader"], ...
SETTING = (
    rf"""(?:\w+|\])\.(?<!self\.)(?<!parts\.)(?:{"|".join(TABLES)})\b|"""
    rf"""(?:\[|\.get\()["'](?:{"|".join(TABLES)})["'][\])]"""
)
# ... that is compared with a name, or with a constant that holds some.
NAME = r"""(?:["'(\[{]|(?:\w+\.)?[A-Z][A-Z_]+\b)"""
COMPARED = re.compile(
    rf"(?:{SETTING})(?:\s*(?:==|!=|(?:not )?in)\s*{NAME}|\.(?:starts|ends)with\()"
    rf"|(?:{NAME}|\w['\"])\s*(?:==|!=)\s*(?:{SETTING})"
)


def test_importing_labkit_imports_no_heavy_library():
    heavy = ["torch", "pandas", "matplotlib", "scipy", "cv2", "PIL", "ipywidgets", "pyinstrument"]
    program = f"import sys, labkit; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


def test_no_setting_is_compared_with_a_parts_name_but_where_names_are_resolved():
    seen = ['settings.loader == "torch"', 'row["step"] in (', 'x.get("loader") != A.B_C']
    for compared in [*seen, 'a.settings.storage.startswith("far_")', '"cuda" == settings.device']:
        assert COMPARED.search(compared), compared
    places = [
        f"{path.relative_to(LABKIT)}: {compared.group()}"
        for path in sorted(LABKIT.rglob("*.py"))
        if path.relative_to(LABKIT).parts[0].removesuffix(".py")
        not in ("resolve", "parts", "experiments")
        for compared in COMPARED.finditer(path.read_text())
    ]
    assert places == []
