"""HTTP without routes: requests, forms, streams, pages and traces."""
