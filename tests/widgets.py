"""What is in a panel, found as a user finds it: by its label."""


def below(widget):
    """A widget and all inside it."""
    found = [widget]
    for child in getattr(widget, "children", ()):
        found += below(child)
    return found


def labelled(box, text):
    (found,) = (w for w in below(box) if getattr(w, "description", None) == text)
    return found
