"""OpenAI's answers that are no chat: transcripts, speech, images, moderations. Folds over a task's log, as all views are."""
