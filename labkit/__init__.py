"""labkit: why is my GPU at 0 %, and what fixes it?"""
