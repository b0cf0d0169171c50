"""Rules of ``validate`` that need plugins, or several pipelines. Those of one file alone: ``config/rules.py``."""
