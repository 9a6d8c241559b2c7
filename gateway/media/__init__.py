"""Audio, images and moderations in OpenAI's format."""
