"""Files that clients upload, and results of batches: rows in SQL, bytes on a disk or in an S3 bucket."""
