"""What tasks cost, and who pays for them."""
