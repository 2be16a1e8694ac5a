"""Language models over HTTP, as clients of OpenAI's API speak it."""
