"""The ``file`` connector: lines of one growing file, of a folder or of a glob; one ordered file or a folder of parts."""
