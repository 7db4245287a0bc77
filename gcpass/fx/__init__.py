"""Everything that touches torch: capture, costs, analysis, lowering and the backend."""
