"""Attributes through which torch's own parts talk to one another over tensors."""

# Set on outputs whose sizes vary, so that the graph after a graph break treats them as varying too.
DYNAMIC_MARK = "_dynamo_propagated_dynamic_indices"

WRITES = "straightline_writes"
"""In the meta of a graph's node that writes into its arguments, whatever its target is."""

RESULTS = "_input_metadata"
"""An autograd node's attribute that describes the results of its forward."""
