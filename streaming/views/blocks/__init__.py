"""An answer as blocks, one after the other: what Messages and Responses share."""
