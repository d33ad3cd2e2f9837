"""An engine of several processes, on this machine or on many."""
