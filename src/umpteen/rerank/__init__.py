"""A second look at the first labels: sparse weights a label on the words of a text, fused with the dual encoder."""
