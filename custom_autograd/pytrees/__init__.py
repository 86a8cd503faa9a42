"""Arguments and results that are containers: how they travel through a schema that knows only flat lists."""
