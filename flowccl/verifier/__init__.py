"""The independent verifier: replays a schedule and lists every violation of the model. Never imports methods."""
