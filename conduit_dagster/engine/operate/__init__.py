"""Operations on a stopped pipeline: inspect its log, move offsets and positions, send one record."""
