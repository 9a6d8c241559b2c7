"""From a request for audio, images or a moderation to the payload of its task. Pure."""
