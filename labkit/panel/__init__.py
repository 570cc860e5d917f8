"""The lab as a form in a notebook."""
