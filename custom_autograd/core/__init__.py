"""The vocabulary: names, types, schemas, messages. No state, and no private name of torch."""
