"""Writers: where items are written."""
