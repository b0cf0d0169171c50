"""The ``file`` connector: lines of a growing file, a folder or a glob; one ordered file or a folder of parts."""
