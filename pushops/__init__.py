"""pushops keeps a web-push subscriber table healthy."""
