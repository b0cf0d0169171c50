"""The subset of Go's text/template and of sprig that pipeline files use."""
