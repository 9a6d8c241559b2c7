"""Files that callers bring, and that are made for them: their rows in SQL, their bytes on a disk or in an S3 bucket."""
