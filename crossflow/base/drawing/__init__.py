"""What all pictures share: figures and axes, and how numbers and names are written on them."""
