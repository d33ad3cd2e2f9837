"""The engine on several ranks: groups, expert exchange and placement, disaggregated prefill."""
