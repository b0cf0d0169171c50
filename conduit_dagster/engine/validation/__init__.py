"""Rules of ``validate`` that need plugins, or several pipelines. Rules on one file alone: ``config/rules.py``."""
