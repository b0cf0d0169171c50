"""Helpers shared by several folders of tests: projects in temporary folders, servers, plugins, kills."""
