"""Engines that consist of several processes, on one machine or many."""
