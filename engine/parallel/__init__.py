"""The engine on many ranks: groups, exchange of tokens and experts, placement, hand-over."""
