"""Code shared by several processors; the plugins are the files beside this folder."""
