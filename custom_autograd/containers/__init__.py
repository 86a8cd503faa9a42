"""Arguments and results that are containers: how they travel through a schema that has only flat lists."""
