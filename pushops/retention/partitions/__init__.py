"""Tables that are cut into spans of time: partitions are made ahead of time, and dropped whole when they are over."""
