"""What an op takes and returns: names, types, conversions, parsing, inference and samples."""
