"""What moves, and in which order: from the source's rows to the partner's answer, the record, the report."""
