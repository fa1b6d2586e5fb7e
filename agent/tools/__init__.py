"""The tools of an agent: what the model is told of them, how files are read and edited, how results are shown."""
