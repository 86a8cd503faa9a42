"""What was declared, by whom, where; nothing runs here."""
