"""The documentation site: README, the pages of docs/, the notebooks and the public names.

The files are read where they lie, so that their links hold here as on GitHub.
"""

project = "labkit"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/*.rst",
    "notebooks/*.ipynb",
    "results/examples/**/README.md",
]
html_theme = "furo"
html_title = "labkit"
html_show_copyright = False
html_copy_source = False

highlight_language = "none"  # a block without a language is a command or its output

nb_execution_mode = "off"
# The notebooks hold no widgets, whose scripts would come from the network.
nb_ipywidgets_js = {}
myst_heading_anchors = 3

default_role = "code"  # docstrings write `name`, as Markdown
autodoc_member_order = "bysource"

# GitHub shows README without it.
CONTENTS = """
```{toctree}
:hidden:
:caption: Pages

README <self>
docs/guide
docs/diagnosis
docs/faq
docs/documents
docs/environments
docs/security
docs/api
docs/architecture
CONTRIBUTING
CHANGELOG
```

```{toctree}
:hidden:
:caption: Notebooks
:glob:

notebooks/*
```

```{toctree}
:hidden:
:caption: 中文

README.zh-CN
docs/guide.zh-CN
docs/faq.zh-CN
```

```{toctree}
:hidden:
:caption: Measured
:glob:

results/examples/*/*/README
```
"""


def add_contents(app, page, text):
    """Append the list of all pages to README."""
    if page == root_doc:
        text[0] += CONTENTS


def begin_with_comment(app, what, name, value, options, lines):
    """Begin a field's text with an empty comment: napoleon would split it at its first colon."""
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]


def setup(app):
    """Connect both functions; napoleon's own has the priority 500."""
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", begin_with_comment, priority=400)
